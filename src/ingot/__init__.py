"""Ingot: PyTorch models captured as graphs, transformed by passes that are checked, compiled to one C file.

    program = ingot.capture(model, args, kwargs, dynamic_shapes={"x": {0: "batch"}})
    program(*args, **kwargs)        # runs through torch: the reference meaning
    print(program)                  # readable code with shapes, module paths and your source lines
    program.save("m.ingot")         # one file: graph as JSON, weights as safetensors
    program = ingot.load("m.ingot")
    program.module()                # an nn.Module that trains
    program.unflatten()             # an nn.Module with the original hierarchy
    program.verify()                # raises VerifyError
    program.to_exported()           # torch.export's form, and ingot.from_exported(ep) back
    program = ingot.from_torchscript("m.pt", args)  # TorchScript, its loops and branches intact
    program = ingot.transform(program, [ingot.passes.autocast], check="numerics")
    program, count = ingot.rewrite(program, before, after, example_inputs)  # what looks like this becomes that
    ingot.shapes_of(program, {"x": ("n", None)})    # what holds of every value's type and sizes in every run

    prepared = ingot.quantize.prepare(program, ingot.quantize.int8_static())
    ingot.quantize.calibrate(prepared, batches)
    program = ingot.quantize.convert(prepared)      # whole numbers: compile, export or save it like any program

    compiled = ingot.compile(model, args, kwargs)   # or of a program
    compiled(*args, **kwargs)       # native code: torch tensors in and out
    compiled.source                 # the C text
    compiled.save("m.ingot")        # runs without torch: ingot_runtime.load("m.ingot")
    torch.compile(model, backend="ingot")
    ingot.compile(model, args, training=True)       # forward and backward as native code, under torch's autograd
    ingot.attention(q, k, v, score_mod=…, mask_mod=…)   # your functions inside the kernel

    ingot.export_onnx(program, "m.onnx")    # verified in ONNX Runtime before the file appears

`ingot.errors` draws the tree of everything that can go wrong. torch is imported when the first of these is used.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ingot import collector

if TYPE_CHECKING:
    from ingot import errors, passes, patterns, quantize
    from ingot.direct import attention
    from ingot.entry import capture, from_torchscript
    from ingot.errors import IngotError
    from ingot.onnx_file import export_onnx
    from ingot.passes.manager import transform
    from ingot.passes.rewrite import rewrite
    from ingot.pipeline import compile, load
    from ingot.program.exported import from_exported
    from ingot.program.program import Program
    from ingot.program.shapes import shapes_of

__version__ = "0.1.0"

_HOMES = {
    "IngotError": "ingot.errors",
    "Program": "ingot.program.program",
    "attention": "ingot.direct",
    "capture": "ingot.entry",
    "compile": "ingot.pipeline",
    "export_onnx": "ingot.onnx_file",
    "from_exported": "ingot.program.exported",
    "from_torchscript": "ingot.entry",
    "load": "ingot.pipeline",
    "rewrite": "ingot.passes.rewrite",
    "shapes_of": "ingot.program.shapes",
    "transform": "ingot.passes.manager",
}


class _Package(ModuleType):
    """This module. `ingot.capture` is the function although a subpackage has that name."""

    @property
    def capture(self) -> Any:
        return importlib.import_module("ingot.entry").capture

    @capture.setter
    def capture(self, subpackage: ModuleType) -> None:
        """Importing the subpackage stores it here; it stays reachable by import, and the function by attribute."""

    def __getattr__(self, name: str) -> Any:
        if name in ("errors", "passes", "patterns", "quantize"):
            return importlib.import_module(f"ingot.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'ingot' has no attribute {name!r}")
        with collector.paused():
            module = importlib.import_module(_HOMES[name])
        value = getattr(module, name)
        vars(self)[name] = value
        return value

    def __dir__(self) -> list[str]:
        return sorted([*__all__, *vars(self)])


sys.modules[__name__].__class__ = _Package

__all__ = [
    "IngotError",
    "Program",
    "attention",
    "capture",
    "compile",
    "errors",
    "export_onnx",
    "from_exported",
    "from_torchscript",
    "load",
    "passes",
    "patterns",
    "quantize",
    "rewrite",
    "shapes_of",
    "transform",
]
