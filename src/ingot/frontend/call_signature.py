"""The model's own signature, and whether it takes the arguments that capture was given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ingot.errors import CaptureError, format_error


def signature_parameters(call: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a forward, or none where Python does not know them."""
    try:
        return list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):
        return []


def bind_check(call: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises CaptureError if `call` cannot take these arguments."""
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as failure:
        raise CaptureError(
            format_error(
                f"The model cannot be called with these arguments: {failure}.",
                why=f"its forward is {signature}",
                fix="give capture the arguments that you would call the model with",
            )
        ) from None
