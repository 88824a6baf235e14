"""Where in the user's code a TorchScript node comes from."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from ingot.frontend.source_locations import is_user_code
from ingot.ir.metadata import Source
from ingot.torch_internals.torchscript import Node

_SCRIPTED = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_TRACED = re.compile(r"^(?P<file>[^\s(]+)\((?P<line>\d+)\): (?P<function>\S+)", re.MULTILINE)


def source_of(node: Node, function: str) -> Source | None:
    """The line that a node was compiled or traced from; `function` is what its graph is called."""
    text = node.sourceRange()
    frames = [(m["file"], int(m["line"]), m["function"]) for m in _TRACED.finditer(text)]
    frames = frames or [(m["file"], int(m["line"]), function) for m in _SCRIPTED.finditer(text)]
    found = next((f for f in frames if is_user_code(f[0])), frames[0] if frames else None)
    return None if found is None else Source(*found)


def format_source(source: Source | None) -> str:
    """A place as messages show it."""
    return "" if source is None else f"{source}" + (f": {source.text}" if source.text else "")


def run_at(source: Source | None, call: Callable[[], Any]) -> Any:
    """Calls `call` from a Python frame that claims to be the user's line, so that nodes and errors name it."""
    if source is None:
        return call()
    return FunctionType(_frame_code(source), {})(call)


@functools.lru_cache(maxsize=4096)
def _frame_code(source: Source) -> CodeType:
    # The call stands one line below the `def`.
    return _template.__code__.replace(
        co_filename=source.file, co_firstlineno=max(source.line - 1, 1), co_name=source.function
    )


def _template(call: Callable[[], Any]) -> Any:
    return call()
