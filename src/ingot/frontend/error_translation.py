"""Turns what torch raises while a model is captured into an error that says what, where, why, and what to do."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ingot import torch_internals as internals
from ingot.errors import (
    CaptureError,
    DataDependentError,
    EagerError,
    IngotError,
    UntraceableError,
    format_error,
)
from ingot.frontend.source_locations import is_user_code
from ingot.ir.metadata import Source

_NUMPY = ("numpy", "__array__", "can't convert", "Cannot convert")
_POINTER = ("data pointer", "data_ptr", "storage().data", "does not have a storage", "not have storage")


def translate(failure: Exception, run_eager: Callable[[], Any]) -> IngotError:
    """The error to raise instead of `failure`; `run_eager` runs the model on the real arguments."""
    if isinstance(failure, IngotError):
        return failure
    place = user_place(failure.__traceback__)
    text = str(failure)
    if isinstance(failure, internals.GuardOnDataDependentSymNode | internals.DataDependentOutputException):
        return DataDependentError(
            format_error(
                "The model's Python code needs a value that is known only at run time.",
                where=place,
                why="a branch, a loop bound or a size depends on the contents of a tensor: " + _first_line(text),
                fix="use torch.cond or torch.where for a branch, torch.while_loop for a loop, "
                "or promise a range with torch._check",
            )
        )
    if isinstance(failure, internals.DynamicOutputShapeException):
        return UntraceableError(
            format_error(
                f"The output shape of {_first_line(text)} depends on the contents of its input.",
                where=place,
                why="a capture runs the model on tensors without values",
                fix="register a fake kernel for the operator with torch.library.register_fake",
            )
        )
    if isinstance(failure, internals.UnsupportedOperatorException) or "register_fake" in text or "fake impl" in text:
        return UntraceableError(
            format_error(
                f"An operator has no shape function: {_first_line(text)}",
                where=place,
                why="a capture runs the model on tensors without values, so each operator must define its shape",
                fix="register a fake kernel for it with torch.library.register_fake",
            )
        )
    if any(word in text for word in _NUMPY):
        return UntraceableError(
            format_error(
                "A tensor is handed to numpy while the model is captured.",
                where=place,
                why=_first_line(text),
                fix="use the torch operation, or wrap the numpy code in torch.library.custom_op with register_fake",
            )
        )
    if isinstance(failure, internals.MemoryHidden) or any(word in text for word in _POINTER):
        return UntraceableError(
            format_error(
                "A tensor's memory is handed to code outside torch while the model is captured.",
                where=place,
                why=_first_line(text),
                fix="wrap that code in torch.library.custom_op with register_fake",
            )
        )
    return _compare_with_eager(failure, place, run_eager)


def _compare_with_eager(failure: Exception, place: str, run_eager: Callable[[], Any]) -> IngotError:
    try:
        run_eager()
    except Exception as eager:
        error: IngotError = EagerError(
            format_error(
                f"The model fails in eager with these arguments: {_summarize_exception(eager)}",
                where=user_place(eager.__traceback__) or place,
                why="what fails without Ingot fails with it too; the model's own exception is the cause of this one",
                fix="make model(*args, **kwargs) run first",
            )
        )
        error.__cause__ = eager
        return error
    return CaptureError(
        format_error(
            f"The model runs in eager but not while it is captured: {type(failure).__name__}: "
            f"{_first_line(str(failure))}",
            where=place,
            why="inside a capture tensors have shapes and dtypes but no values",
            fix="the exception that torch raised is the cause of this one, above",
        )
    )


def user_place(trace: TracebackType | None) -> str:
    """The innermost line of the user's code in a traceback."""
    frames = [f for f in traceback.extract_tb(trace) if is_user_code(f.filename)]
    if not frames:
        return ""
    last = frames[-1]
    source = Source(last.filename, last.lineno or 0, last.name)
    return f"{source}" + (f": {source.text}" if source.text else "")


def _summarize_exception(failure: Exception) -> str:
    """An exception's name and what it says first; of one of TorchScript's, what it says after the script's lines."""
    said = re.findall(r"^\w+(?:Error|Exception): .*", str(failure), re.MULTILINE)
    if said and "TorchScript interpreter" in str(failure):
        return str(said[-1])
    return f"{type(failure).__name__}: {_first_line(str(failure))}"


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")
