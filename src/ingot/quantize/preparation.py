"""From a program to a module that is calibrated, or trained, before it is converted.

    prepared = prepare(program, int8_static())         batch norm folded, quantizers watch
    module = prepare_qat(program, int8_static())       batch norm as it is, quantizers simulate

Both are one table and one inserter. Only the quantizers differ, and what happens to batch norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn

from ingot import passes
from ingot.passes.functionalize import without_private_writes
from ingot.program import metadata
from ingot.program.cutting import graph_modules
from ingot.program.modes import switched
from ingot.program.module import ProgramModule
from ingot.program.program import Program
from ingot.quantize.annotate import annotate
from ingot.quantize.quantizers import Quantizer, WeightQuantizer
from ingot.quantize.recipes import Recipe
from ingot.quantize.table import Fixed, Group, Place, Table, Weight, modules_by_path, nodes_by_place

aten = torch.ops.aten
QUANTIZERS = "quantizers"


class Prepared(ProgramModule):
    """A program with quantizers in it. Called like the program; `convert` makes a program of it.

    `base` is the program that the table speaks of, without quantizers.
    """

    base: Program
    table: Table
    quantizers: nn.ModuleDict

    def __init__(self, base: Program, table: Table, *, simulates: bool) -> None:
        quantizers: dict[str, nn.Module] = {
            group.name: Quantizer(group.scheme, simulates=simulates, fixed=_fixed(group)) for group in table.groups
        }
        observed = base.copy()
        nodes = nodes_by_place(observed)
        modules = modules_by_path(observed.graph_module)
        for group in table.groups:
            for point in group.points:
                _insert(modules[point.source.graph], nodes, point.source, point.users, group.name)
        if simulates:
            for weight in table.weights:
                name, made = _insert_weight(modules[weight.user.graph], nodes, weight)
                quantizers[name] = made
        for module in modules.values():
            _adopt(module, quantizers)
            module.recompile()
        super().__init__(observed)
        plain = vars(self)
        plain["base"], plain["table"] = base, table
        self.quantizers = nn.ModuleDict(quantizers)
        self.train(observed.training)

    @property
    def simulates(self) -> bool:
        """Whether this module was made to be trained."""
        return any(not isinstance(q, Quantizer) or q.simulates for q in self.quantizers.values())


def prepare(program: Program, recipe: Recipe) -> Prepared:
    """The program, ready to be calibrated: call it on data, or hand data to `calibrate`, and then `convert` it.

    The program given is not changed. Batch norm is folded, dropout is gone: what is observed is what will run.
    """
    base = evaluated(program)
    return Prepared(base, annotate(base, recipe), simulates=False)


def evaluated(program: Program, *, parameters: bool = True) -> Program:
    """A functional copy in evaluation mode, with batch norm and what does not hang on the arguments folded.

    With `parameters`, what is computed from parameters alone is folded as well.
    """
    base = _in_evaluation(program)
    passes.functionalize(base)
    base.dialect = passes.manager.info_of(passes.functionalize).gives or base.dialect
    passes.fold(base, parameters=parameters)
    passes.remove_noops(base)
    passes.dce(base)
    return base


def _in_evaluation(program: Program) -> Program:
    made = program.copy()
    if program.training:
        targets = {i.name: str(i.target) for i in program.signature.state_inputs}
        made.graph_module = switched(made.graph_module, targets, False)
        made.training = False
    return made


def _fixed(group: Group) -> Any:
    return group.how.parameters if isinstance(group.how, Fixed) else None


def _adopt(module: fx.GraphModule, quantizers: dict[str, nn.Module]) -> None:
    """Lets a graph find the quantizers that it calls."""
    holder = nn.Module()
    for node in module.graph.nodes:
        if node.op == "call_module":
            name = str(node.target).partition(".")[2]
            holder.add_module(name, quantizers[name])
    if holder._modules:
        module.add_module(QUANTIZERS, holder)


def _insert(
    module: fx.GraphModule, nodes: dict[Place, fx.Node], source: Place, users: Sequence[Place] | None, name: str
) -> None:
    """A quantizer after a node, read by some of its users or by all."""
    node = nodes[source]
    readers = list(node.users) if users is None else [nodes[user] for user in users]
    with module.graph.inserting_before(following(node)):
        made = module.graph.create_node("call_module", f"{QUANTIZERS}.{name}", (node,))
    metadata.copy_metadata(node, made)
    for reader in readers:
        reader.replace_input_with(node, made)


def following(node: fx.Node) -> fx.Node:
    """Where something that uses a node may stand first."""
    after = node.next
    while after.op == "placeholder":
        after = after.next
    return after


def _insert_weight(module: fx.GraphModule, nodes: dict[Place, fx.Node], weight: Weight) -> tuple[str, nn.Module]:
    """A quantizer between a weight and the operator that reads it; it knows of a batch norm behind."""
    user = nodes[weight.user]
    source: Any = user.args[weight.index]
    norm = fused_norm(user)
    arguments: tuple[Any, ...] = (source,)
    made = WeightQuantizer(weight.scheme)
    if norm is not None:
        gamma, variance = norm.args[1], norm.args[4]
        arguments = (source, gamma, variance)
        made = WeightQuantizer(weight.scheme, eps=float(norm.args[7]), groups=_transposed_groups(user))  # type: ignore[arg-type]
    name = f"{str(weight.user).replace('.', '_')}_weight" + (f"_{weight.index}" if weight.index != 1 else "")
    with module.graph.inserting_before(user):
        call = module.graph.create_node("call_module", f"{QUANTIZERS}.{name}", arguments)
    metadata.copy_metadata(source, call)
    user.args = (*user.args[: weight.index], call, *user.args[weight.index + 1 :])
    return name, made


def fused_norm(node: fx.Node) -> fx.Node | None:
    """The batch norm that `convert` will fold into an operator: the only reader of its result."""
    if len(node.users) != 1:
        return None
    (norm,) = node.users
    if norm.target is not aten.batch_norm.default or norm.kwargs or norm.args[0] is not node or norm.args[4] is None:
        return None
    return norm


def _transposed_groups(node: fx.Node) -> int | None:
    name = str(node.target)
    if "conv_transpose" in name:
        return int(node.args[6]) if len(node.args) > 6 else 1  # type: ignore[arg-type]
    if name.startswith("aten.convolution") and node.args[6]:
        return int(node.args[8])  # type: ignore[arg-type]
    return None


def prepare_qat(program: Program, recipe: Recipe) -> Prepared:
    """The program as an nn.Module that trains with quantization simulated; `convert` it when it has learned enough.

    Parameters are those of the program. train() and eval() are lossless. A convolution with batch norm behind trains
    as what it will become: its weight is quantized as it will be once the norm is folded into it.
    """
    base = program.copy()
    passes.autocast(base)
    passes.grad_mode(base)
    for module in graph_modules(base.graph_module):
        without_private_writes(module)
    return Prepared(base, annotate(base, recipe), simulates=True)
