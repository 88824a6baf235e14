"""Takes writes and aliases out of the graph: what the model wrote to becomes an output.

before                                      after
add_ = aten.add_(b_count, 1)                add = aten.add(b_count, 1)
slice = aten.slice(x, 0, 0, 2)              mul = aten.mul(aten.slice(x, 0, 0, 2), 2)
mul_ = aten.mul_(slice, 2)                  slice_scatter = aten.slice_scatter(x, mul, 0, 0, 2)
return (x + b_count,)                       return (add, slice_scatter, slice_scatter + add)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.analysis.alias import written_dropouts
from ingot.errors import PassError, format_error
from ingot.ir import metadata
from ingot.ir.dialects import CAPTURED, FUNCTIONAL
from ingot.ir.outlining import graph_modules
from ingot.ir.program import Program
from ingot.ir.signature import InputKind, Output, OutputKind
from ingot.passes.autocast import autocast
from ingot.passes.grad_mode import grad_mode
from ingot.passes.manager import register
from ingot.passes.retracing.retrace import Replay

_MUTATION = {
    InputKind.PARAMETER: OutputKind.PARAMETER_MUTATION,
    InputKind.BUFFER: OutputKind.BUFFER_MUTATION,
    InputKind.CONSTANT: OutputKind.BUFFER_MUTATION,
    InputKind.ARGUMENT: OutputKind.ARGUMENT_MUTATION,
}


@register(takes=CAPTURED, gives=FUNCTIONAL)
def functionalize(program: Program) -> int:
    """Replays the graph with new values in place of writes; mutated state and arguments become outputs."""
    autocast(program)
    grad_mode(program)
    modules = list(graph_modules(program.graph_module))
    private = sum(remove_private_writes(module) for module in modules)
    if not any(_writes(node) for module in modules for node in module.graph.nodes):
        return private
    before = len(program.graph.nodes)
    replay = Replay(program)
    replay.left_out = written_dropouts(program)
    replay.recorder.functional = True
    old = program.signature

    def run() -> None:
        inputs = replay.placeholders()
        results = replay.run(program.graph_module, inputs)
        mutated = []
        for spec, value in zip(old.placeholders, inputs, strict=True):
            if isinstance(value, torch.Tensor) and replay.recorder.aliases.is_view(value):
                raise PassError(
                    format_error(
                        f"The model changes the shape or the memory of {spec.target or spec.name} in place.",
                        fix="assign the new tensor to a name: y = x.unsqueeze(0)",
                    )
                )
            if isinstance(value, torch.Tensor) and replay.recorder.aliases.is_written(value):
                target = spec.name if spec.kind is InputKind.ARGUMENT else spec.target
                mutated.append((Output(_MUTATION[spec.kind], target=target), value))
        replay.finish(
            [*(value for _, value in mutated), *results],
            [*(output for output, _ in mutated), *(o for o in old.graph_outputs)],
        )

    replay.record(run)
    autocast(program)
    grad_mode(program)
    return max(1, abs(len(program.graph.nodes) - before))


def remove_private_writes(module: fx.GraphModule) -> int:
    """Writes to a value that is new and that only the write itself uses need no replay: y = x.add_(1) is x.add(1)."""
    count = 0
    kept: dict[Any, bool] = {}
    for node in module.graph.nodes:
        written = node.args[0] if node.args else None
        if not _writes(node) or not isinstance(written, fx.Node) or len(written.users) != 1:
            continue
        functional = internals.pointwise_form(node.target)
        if functional is None or not internals.computes_new_tensor(written.target):
            continue
        kind = (functional, *map(_kind, node.args), *((name, _kind(value)) for name, value in node.kwargs.items()))
        if kind not in kept:
            kept[kind] = _keeps_type(node, functional)
        if not kept[kind]:
            continue
        node.target = functional
        count += 1
    if count:
        module.recompile()
    return count


def _kind(argument: Any) -> Any:
    """What the type of a result hangs on in an argument of an elementwise operator."""
    value = metadata.value_of(argument) if isinstance(argument, fx.Node) else argument
    return (value.dtype, value.dim() == 0) if isinstance(value, torch.Tensor) else type(value)


def _keeps_type(node: fx.Node, functional: Any) -> bool:
    """Whether the variant computes the type that the write keeps: x.eq_(0) has x's type, x.eq(0) is bool."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), metadata.value_of)
    with internals.below_autograd():
        computed = functional(*args, **kwargs)
    return bool(computed.dtype == metadata.value_of(node).dtype)


def _writes(node: fx.Node) -> bool:
    target: Any = node.target
    hidden = internals.unannotated_mutations(target, node.args)
    return isinstance(target, internals.OpOverload) and (target._schema.is_mutable or bool(hidden))
