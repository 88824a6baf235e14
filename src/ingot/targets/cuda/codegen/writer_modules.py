"""The modules that write kernels: to import this one is to have them in `KERNELS`."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

_PACKAGE = "ingot.targets.cuda.codegen"
_MODULES = (
    "loops",
    "reductions",
    "scan",
    "extern_kernels",
    "gemm",
    "convolution",
    "attention",
    "mask_blocks",
    "attention_backward",
)

for _module in _MODULES:
    if find_spec(f"{_PACKAGE}.{_module}") is not None:
        import_module(f"{_PACKAGE}.{_module}")
