"""What packages import and never call here: operators of torchvision, and torchaudio's native library.

Both wheels hold libraries that were linked with CUDA. The Python parts of the packages work without them.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import torch

_SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


def install() -> None:
    """To be called once, before a package is imported."""
    for name, schema in _SCHEMAS.items():
        torch.library.define(f"torchvision::{name}", schema)
    extension: Any = types.ModuleType("torchaudio._extension")
    extension._IS_TORCHAUDIO_EXT_AVAILABLE = False
    extension._IS_ALIGN_AVAILABLE = False
    extension.fail_if_no_align = _as_it_is
    extension.lazy_import_sox_ext = extension._check_cuda_version = _as_it_is
    sys.modules["torchaudio._extension"] = extension


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function
