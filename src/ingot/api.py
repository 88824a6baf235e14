"""Entry points that create a Program: capture of a model, import of TorchScript.

Apart from the compiler, so that capture-only users do not import the code generator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from ingot import pipelines
from ingot.frontend import trace
from ingot.frontend.torchscript.importer import Script, import_script
from ingot.ir.program import Program
from ingot.passes.manager import run_pipeline


def capture(
    model: nn.Module | Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    preserve_module_call_signature: Sequence[str] = (),
    concrete_args: Mapping[str, Any] | None = None,
    strict: bool = False,
) -> Program:
    """Captures a model or a function as a Program: what it does with these arguments, for all sizes of dynamic dims.

    `dynamic_shapes` maps argument names to dims: {"x": {0: "batch", 1: torch.export.Dim("seq", max=512)}}; a dim is a
    name, an expression of one ("2*seq"), "auto", or a torch.export.Dim. `preserve_module_call_signature` names the
    submodules whose calls are kept, so that unflatten() returns them as modules that can be swapped.
    `concrete_args` fixes arguments by name to values that every call must then repeat.
    `strict` has no effect: it is there so that calls of torch.export.export need no change.
    """
    program = trace(
        model,
        args,
        kwargs,
        dynamic_shapes=dynamic_shapes,
        preserve_module_call_signature=preserve_module_call_signature,
        concrete_args=concrete_args,
    )
    run_pipeline(program, pipelines.CAPTURE)  # markers belong to the trace: no Program shows them
    return program


def from_torchscript(
    script: Script,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    method: str = "forward",
    dynamic_shapes: Any = None,
    preserve_module_call_signature: Sequence[str] = (),
    unroll: bool = False,
) -> Program:
    """Imports a ScriptModule, a ScriptFunction, or a file of one (a path, or open) as a Program, with its loops intact.

    `args` are example arguments; a traced script remembers its own. `method` names another method than forward. A
    data-dependent branch becomes a cond and such a loop a while_loop; `unroll` writes loops with a constant number of
    iterations out instead. The other options are those of `capture`. A quantized nn.Module is traced first.
    """
    program = import_script(
        script,
        args,
        kwargs,
        method=method,
        dynamic_shapes=dynamic_shapes,
        preserve_module_call_signature=preserve_module_call_signature,
        unroll=unroll,
    )
    run_pipeline(program, pipelines.CAPTURE)
    return program
