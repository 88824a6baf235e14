"""Source locations: frames of the user's code, or those that stand for it while a graph runs."""

from __future__ import annotations

import ast
import linecache
import sys
import textwrap
from contextlib import suppress
from types import FunctionType
from typing import Any

from torch import fx, nn

from ingot import torch_internals as internals
from ingot.ir import metadata

_HIDDEN: dict[str, bool] = {}
# The last is how a TorchScript file calls torch's own code.
_OUR_FOLDERS = (internals.TORCH_FOLDER, __file__.rsplit("/", 2)[0], "code/__torch__/torch/")
# Where functions of torch are wrapped: context managers as decorators, and deprecations.
_WRAPPERS = ("contextlib.py", "typing_extensions.py", "/warnings.py")


def is_user_code(filename: str) -> bool:
    """Whether a file is neither torch's nor ours."""
    hidden = _HIDDEN.get(filename)
    if hidden is None:
        hidden = filename.startswith((*_OUR_FOLDERS, "<frozen")) or filename.endswith(_WRAPPERS)
        _HIDDEN[filename] = hidden
    return not hidden


def user_frame() -> Any:
    frame: Any = sys._getframe(1)
    while frame is not None and not is_user_code(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def user_place() -> str:
    """The innermost frame of the user's code as messages show it: file, line and text."""
    frame = user_frame()
    if frame is None:
        return ""
    source = metadata.Source(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
    return f"{source}" + (f": {source.text}" if source.text else "")


def assertion_message(frame: Any) -> str:
    """The message of the assert statement that a frame stands at, as far as its text shows; "" where there is none."""
    if frame is None:
        return ""
    file, line = frame.f_code.co_filename, frame.f_lineno
    position = next(iter(list(frame.f_code.co_positions())[frame.f_lasti // 2 :]), None)
    last = position[1] if position is not None and position[1] is not None else line
    linecache.checkcache(file)  # a module that was edited and reloaded
    # The statement may end some lines below its condition; its end is where it parses.
    for first in range(line, max(line - 10, 0), -1):
        if linecache.getline(file, first).lstrip().startswith("assert"):
            for end in range(last, last + 10):
                text = "".join(linecache.getline(file, number) for number in range(first, end + 1))
                with suppress(SyntaxError):
                    return _message_of(ast.parse(textwrap.dedent(text)))
            return ""
    return ""


def _message_of(parsed: ast.Module) -> str:
    statement = parsed.body[0] if parsed.body else None
    message = statement.msg if isinstance(statement, ast.Assert) else None
    if message is None:
        return ""
    return str(message.value) if isinstance(message, ast.Constant) else ast.unparse(message)


class SourceLocationInterpreter(fx.Interpreter):
    """Runs each node as if the line of the user's that it came from had called it, so that capture sees that line."""

    def run_node(self, n: fx.Node) -> Any:
        source = metadata.source_of(n)
        if source is None:
            return super().run_node(n)
        code = _call.__code__.replace(co_filename=source.file, co_firstlineno=source.line, co_name=source.function)
        return FunctionType(code, {})(super().run_node, n)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A function of the user's that the graph holds runs in the user's lines as well."""
        value = super().get_attr(target, args, kwargs)
        return _Function(value) if isinstance(value, fx.GraphModule) else value


class _Function(nn.Module):
    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, *arguments: Any) -> Any:
        return SourceLocationInterpreter(self.graph).run(*arguments)


_call = lambda run, node: run(node)  # noqa: E731  one line, so that it is the line that the code is said to begin on
