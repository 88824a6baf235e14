"""Frames of the user's code: neither torch's nor ours."""

from __future__ import annotations

import sys
from typing import Any

from ingot import torch_internals as internals
from ingot.program import metadata

_HIDDEN: dict[str, bool] = {}
_OUR_FOLDERS = (internals.TORCH_FOLDER, __file__.rsplit("/", 2)[0])


def is_user_code(filename: str) -> bool:
    """Whether a file is neither torch's nor ours."""
    hidden = _HIDDEN.get(filename)
    if hidden is None:
        hidden = _HIDDEN[filename] = filename.startswith((*_OUR_FOLDERS, "<frozen")) or "contextlib.py" in filename
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
