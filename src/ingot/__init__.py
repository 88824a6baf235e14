"""Ingot: PyTorch models captured as graphs, transformed by checked passes, compiled to native code.

    program = ingot.capture(model, args, kwargs, dynamic_shapes={"x": {0: "batch"}})
    program(*args, **kwargs)        # runs through torch: the reference meaning
    print(program)                  # readable code with shapes, module paths and your source lines
    program.save("m.ingot")         # one file: graph as JSON, weights as safetensors
    program = ingot.load("m.ingot")
    program.module()                # an nn.Module that trains
    program.unflatten()             # an nn.Module with the original hierarchy
    program.verify()                # raises VerifyError
    program.view()                  # every stage from source line to C, as a page in the browser
    program.to_exported()           # torch.export's form, and ingot.from_exported(ep) back
    program = ingot.from_torchscript("m.pt", args)  # TorchScript, its loops and branches intact
    program = ingot.transform(program, [ingot.passes.autocast], check="numerics")
    program, count = ingot.rewrite(program, before, after, example_inputs)  # pattern rewrites
    ingot.shapes_of(program, {"x": ("n", None)})    # dtype and shape of every value, for all sizes

    prepared = ingot.quantize.prepare(program, ingot.quantize.int8_static())
    ingot.quantize.calibrate(prepared, batches)
    program = ingot.quantize.convert(prepared)      # an integer (QDQ) program like any other

    compiled = ingot.compile(model, args, kwargs)   # or ingot.compile(program)
    compiled(*args, **kwargs)       # native code: torch tensors in and out
    compiled.source                 # the C text
    compiled.save("m.ingot")        # runs without torch: ingot_runtime.load("m.ingot")
    torch.compile(model, backend="ingot")
    ingot.compile(model, args, training=True)       # forward and backward as native code, under torch's autograd
    ingot.register_c_kernel(torch.ops.mine.op.default, c_text, function="mine_op")  # an operator of your own
    ingot.attention(q, k, v, score_mod=…, mask_mod=…)   # your functions inside the kernel

    ingot.export_onnx(program, "m.onnx")    # verified in ONNX Runtime before the file appears

`ingot.errors` lists every exception. torch is imported when the first of these is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ingot import _gc
from ingot.config import configure_logging

if TYPE_CHECKING:
    from ingot import errors, passes, quantize, rewriting
    from ingot.analysis.shape_inference import shapes_of
    from ingot.api import capture, from_torchscript
    from ingot.compiler import compile, load
    from ingot.errors import IngotError
    from ingot.interop.torch_export import from_exported
    from ingot.ir.program import Program
    from ingot.lowering.custom_rules import register_c_kernel, register_lowering
    from ingot.onnx.api import export_onnx
    from ingot.ops.attention import attention
    from ingot.passes.manager import transform
    from ingot.rewriting.rewrite import rewrite

__version__ = "0.1.0"

configure_logging()

_HOMES = {
    "IngotError": "ingot.errors",
    "Program": "ingot.ir.program",
    "attention": "ingot.ops.attention",
    "capture": "ingot.api",
    "compile": "ingot.compiler",
    "export_onnx": "ingot.onnx.api",
    "from_exported": "ingot.interop.torch_export",
    "from_torchscript": "ingot.api",
    "load": "ingot.compiler",
    "register_c_kernel": "ingot.lowering.custom_rules",
    "register_lowering": "ingot.lowering.custom_rules",
    "rewrite": "ingot.rewriting.rewrite",
    "shapes_of": "ingot.analysis.shape_inference",
    "transform": "ingot.passes.manager",
}


def __getattr__(name: str) -> Any:
    if name in ("errors", "passes", "quantize", "rewriting"):
        return importlib.import_module(f"ingot.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'ingot' has no attribute {name!r}")
    with _gc.pause():
        module = importlib.import_module(_HOMES[name])
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *globals()})


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
    "quantize",
    "register_c_kernel",
    "register_lowering",
    "rewrite",
    "rewriting",
    "shapes_of",
    "transform",
]
