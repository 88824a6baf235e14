"""Takes writes and aliases out of the graph: what the model wrote to becomes an output.

before                                      after
add_ = aten.add_(b_count, 1)                add = aten.add(b_count, 1)
slice = aten.slice(x, 0, 0, 2)              mul = aten.mul(aten.slice(x, 0, 0, 2), 2)
mul_ = aten.mul_(slice, 2)                  slice_scatter = aten.slice_scatter(x, mul, 0, 0, 2)
return (x + b_count,)                       return (add, slice_scatter, slice_scatter + add)

`remove_private_writes` does the part that needs no retrace.
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
from ingot.ir.regions import wrap_switches
from ingot.ir.signature import InputKind, Output, OutputKind
from ingot.passes.manager import register
from ingot.passes.retracing.retrace import Replay

_MUTATION = {
    InputKind.PARAMETER: OutputKind.PARAMETER_MUTATION,
    InputKind.BUFFER: OutputKind.BUFFER_MUTATION,
    InputKind.CONSTANT: OutputKind.BUFFER_MUTATION,
    InputKind.ARGUMENT: OutputKind.ARGUMENT_MUTATION,
}


@register(takes=CAPTURED, gives=FUNCTIONAL, retraces=True)
def functionalize(program: Program) -> int:
    """Replays the graph with new values in place of writes; mutated state and arguments become outputs.

    Mode switches become regions, as `autocast` and `grad_mode` make them. Returns the number of writes, and that of
    autocast pairs and grad-mode switches.
    """
    return wrap_switches(program.graph_module) + replace_writes(program)


def replace_writes(program: Program) -> int:
    """Replaces every write of a program without mode switches, and says how many there were."""
    modules = list(graph_modules(program.graph_module))
    private = sum(map(replace_private_writes, modules))
    writes = sum(is_write(node) for module in modules for node in module.graph.nodes)
    if not writes:
        return private
    replay = Replay(program)
    replay.left_out = written_dropouts(program)
    replay.recorder.functional = True
    # as_strided addresses memory, which must be that of its argument alone.
    targets = {node.target for module in modules for node in module.graph.nodes}
    replay.recorder.keeps_layouts = torch.ops.aten.as_strided.default not in targets
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
    wrap_switches(program.graph_module)  # a replay opens regions
    return private + writes


# ---------------------------------------------------------------------- private writes


@register(takes=CAPTURED)
def remove_private_writes(program: Program) -> int:
    """In every graph, a write to a value that is new and that only the write itself uses needs no memory of its own."""
    return sum(map(replace_private_writes, graph_modules(program.graph_module)))


def replace_private_writes(module: fx.GraphModule) -> int:
    """Replaces the private writes of one graph: y = x.add_(1) is x.add(1)."""
    count = 0
    kept: dict[Any, bool] = {}
    for node in module.graph.nodes:
        written = node.args[0] if node.args else None
        if not is_write(node) or not isinstance(written, fx.Node) or len(written.users) != 1:
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


def is_write(node: fx.Node) -> bool:
    """Whether a node calls an operator that writes to an argument, whether its schema says so or not."""
    target: Any = node.target
    hidden = internals.unannotated_mutations(target, node.args)
    return isinstance(target, internals.OpOverload) and (target._schema.is_mutable or bool(hidden))


def _kind(argument: Any) -> Any:
    """What the type of a result depends on in an argument of an elementwise operator."""
    value = metadata.value_of(argument) if isinstance(argument, fx.Node) else argument
    return (value.dtype, value.dim() == 0) if isinstance(value, torch.Tensor) else type(value)


def _keeps_type(node: fx.Node, functional: Any) -> bool:
    """Whether the variant computes the type that the write keeps: x.eq_(0) has x's type, x.eq(0) is bool."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), metadata.value_of)
    with internals.below_autograd():
        computed = functional(*args, **kwargs)
    return bool(computed.dtype == metadata.value_of(node).dtype)
