"""From a program to a module that is calibrated, or trained, before it is converted.

    prepared = prepare(program, int8_static())         in evaluation mode, quantizers watch
    module = prepare_qat(program, int8_static())       in the program's mode, quantizers simulate

Both are one table and one inserter; only the quantizers differ. Batch norm stays as it is: `convert` folds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from ingot import _gc, pipelines
from ingot.errors import QuantizeError, format_error
from ingot.interop.module import ProgramModule
from ingot.interop.train_eval import switch_mode
from ingot.ir import metadata
from ingot.ir.names import unique
from ingot.ir.outlining import graph_modules
from ingot.ir.program import Program, check_program
from ingot.passes.constant_fold import Folding
from ingot.passes.fold_batch_norm import layer_of
from ingot.passes.manager import run_pipeline
from ingot.quantization.annotate import annotate
from ingot.quantization.fake_quantize import WeightQuantizer, quantizer_of
from ingot.quantization.quantization_plan import (
    Derived,
    Edge,
    QuantizationPlan,
    QuantizationPoint,
    QuantizedWeight,
    levels_by_path,
    modules_by_path,
    nodes_by_place,
)
from ingot.quantization.recipes import Recipe
from ingot.quantization.torchao_adapter import Annotator, plan_annotations

aten = torch.ops.aten
QUANTIZERS = "quantizers"


@dataclass(frozen=True, slots=True)
class PreparedPlan:
    """What a prepared module was made of: what is quantized in the program without quantizers, and those.

    `simulates` is for training; `home` is the name under which the module holds its quantizers.
    """

    table: QuantizationPlan
    simulates: bool
    quantizers: Mapping[str, nn.Module]
    home: str


class PreparedProgram(ProgramModule):
    """A program with quantizers inserted. Called like the program; `convert` turns it into a quantized program."""

    _plan: PreparedPlan  # and no other name: all others are free for the modules of the model

    def __init__(self, program: Program, table: QuantizationPlan, *, simulates: bool) -> None:
        """The program given is changed, and is the module's from now on."""
        nodes, modules = nodes_by_place(program), modules_by_path(program.graph_module)
        made: dict[str, nn.Module] = {}
        for group in sorted(table.groups, key=lambda g: isinstance(g.how, Derived)):
            made[group.name] = quantizer_of(group.scheme, group.how, made, simulates=simulates)
        if simulates:
            norms, families = fused_norms(program, table), dict[str, Any]()
            for weight in sorted(table.weights, key=lambda w: isinstance(w.how, Derived)):
                user, norm = nodes[weight.user], norms.get(weight.user)
                made[weight.name] = weight_quantizer(weight, user, norm, families, made)
                _insert_weight(modules[weight.user.graph], user, norm, weight)
        current = dict(nodes)
        for group, point in table.points():
            _insert(modules[point.source.graph], current, nodes, point, group.name)
        for module in modules.values():
            _adopt(module, made)
            module.recompile()
        super().__init__(program)
        home = unique(QUANTIZERS, {*self._modules, *self._parameters, *self._buffers})
        self.add_module(home, nn.ModuleDict(made))
        vars(self)["_plan"] = PreparedPlan(table, simulates, made, home)
        self.get_submodule(home).train(program.training)  # all others have the program's mode


def base_of(prepared: PreparedProgram) -> Program:
    """The program that was prepared, without its quantizers; the caller's own."""
    made = prepared.program.copy()
    for module in graph_modules(made.graph_module):
        for node in module.graph.nodes:
            if node.op == "call_module":
                node.replace_all_uses_with(node.args[0])
                module.graph.erase_node(node)
        module._modules.pop(QUANTIZERS, None)
    return made


def plan_of(prepared: PreparedProgram) -> PreparedPlan:
    """What a prepared module was made of. Raises QuantizeError if it is none."""
    if not isinstance(prepared, PreparedProgram):
        raise QuantizeError(
            format_error(
                f"Expected a prepared program, got {type(prepared).__name__}.",
                fix="give what `prepare` or `prepare_qat` returned",
            )
        )
    return prepared._plan


def prepare(program: Program, recipe: Recipe | Annotator) -> PreparedProgram:
    """Inserts observers into a copy of the program. Call it on data, or use `calibrate`; then `convert` it.

    `recipe` is one of `ingot.quantize`, or a Quantizer of torchao. Dropout is removed. Nothing is observed between a
    layer and the batch norm that `convert` folds into it, so that the observed values are those of the final program.
    """
    check_program(program, "prepare")
    with _gc.pause():
        base = prepare_for_evaluation(
            program, batch_norm=not isinstance(recipe, Recipe)
        )  # others want to see it folded
        return PreparedProgram(base, _table(base, recipe, training=False), simulates=False)


def _table(base: Program, recipe: Recipe | Annotator, *, training: bool) -> QuantizationPlan:
    if isinstance(recipe, Recipe):
        return annotate(base, recipe, training=training)
    return plan_annotations(base, recipe, training=training)


def prepare_for_evaluation(program: Program, *, parameters: bool = True, batch_norm: bool = True) -> Program:
    """A functional copy in evaluation mode, with batch norm and what does not depend on the arguments folded.

    With `parameters`, what is computed from parameters alone is folded as well.
    """
    base = _switch_to_evaluation(program)
    run_pipeline(base, pipelines.QUANTIZATION, arguments={"parameters": parameters, "batch_norm": batch_norm})
    return base


def _switch_to_evaluation(program: Program) -> Program:
    made = program.copy()
    if program.training:
        targets = {i.name: str(i.target) for i in program.signature.state_inputs}
        made.graph_module = switch_mode(made.graph_module, targets, False)
        made.training = False
    return made


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
    module: fx.GraphModule,
    current: dict[Edge, fx.Node],
    nodes: dict[Edge, fx.Node],
    point: QuantizationPoint,
    name: str,
) -> None:
    """A quantizer after a node, read by some of its users or by all; `current` is what users read by now."""
    node = current[point.source]
    readers = list(node.users) if point.users is None else [nodes[user] for user in point.users]
    with module.graph.inserting_before(following(node)):
        made = module.graph.create_node("call_module", f"{QUANTIZERS}.{name}", (node,))
    metadata.copy_metadata(node, made)
    for reader in readers:
        reader.replace_input_with(node, made)
    if point.users is None:
        current[point.source] = made


def following(node: fx.Node) -> fx.Node:
    """Where something that uses a node may stand first."""
    after = node.next
    while after.op == "placeholder":
        after = after.next
    return after


def _insert_weight(module: fx.GraphModule, user: fx.Node, norm: fx.Node | None, weight: QuantizedWeight) -> None:
    """A quantizer between a weight and the operator that reads it; it takes the batch norm behind it into account."""
    source: Any = user.args[weight.index]
    has_norm = norm is not None and weight.index == 1 and not weight.transposed
    arguments = (source, norm.args[1], norm.args[4]) if norm is not None and has_norm else (source,)
    with module.graph.inserting_before(user):
        call = module.graph.create_node("call_module", f"{QUANTIZERS}.{weight.name}", arguments)
    metadata.copy_metadata(source, call)
    user.args = (*user.args[: weight.index], call, *user.args[weight.index + 1 :])


def weight_quantizer(
    weight: QuantizedWeight,
    user: fx.Node,
    norm: fx.Node | None,
    families: dict[str, Any],
    others: Mapping[str, nn.Module],
) -> nn.Module:
    """The module that simulates a weight in training; what learns for a family of weights is made once."""
    norm = norm if not weight.transposed else None
    if norm is not None and weight.index != 1:  # a bias that a batch norm is going to change says nothing yet
        return nn.Identity()
    inner = families.get(weight.family)
    if inner is None and weight.how is not None:
        inner = quantizer_of(weight.scheme, weight.how, others, simulates=True)
        families[weight.family or weight.name] = inner
    if norm is None:
        return WeightQuantizer(weight.scheme, inner=inner, transposed=weight.transposed)
    eps: Any = norm.args[7]
    layer = layer_of(user)
    return WeightQuantizer(weight.scheme, eps=float(eps), groups=layer.groups if layer else None, inner=inner)


def fused_norms(program: Program, table: QuantizationPlan) -> dict[Edge, fx.Node]:
    """The batch norms that `convert` will fold, each by the operator that it goes into.

    Such a norm alone reads the operator's result, which is not quantized in between, and nothing else reads the
    operator's weight and bias.
    """
    nodes, folding = nodes_by_place(program), Folding(program, parameters=True, limit_bytes=0)
    found_levels = levels_by_path(program)
    between = quantized_places(table)
    found: dict[Edge, fx.Node] = {}
    for place in dict.fromkeys(weight.user for weight in table.weights):
        node, level = nodes[place], found_levels.get(place.graph)
        norm = next(iter(node.users), None)
        if level is None or norm is None or len(node.users) != 1 or place in between:
            continue
        if {node.name, norm.name} & folding.named:  # a module call that is kept begins or ends here
            continue
        if norm.target is not aten.batch_norm.default or norm.kwargs or norm.args[0] is not node:
            continue
        layer = layer_of(node)
        read = [] if layer is None else [n for n in (layer.weight, layer.bias) if n is not None]
        if norm.args[4] is not None and read and all(folding.used_once(level, n) for n in read):
            found[place] = norm
    return found


def quantized_places(table: QuantizationPlan) -> set[Edge]:
    """The nodes whose results are quantized."""
    return {point.source for _, point in table.points()}


def prepare_qat(program: Program, recipe: Recipe | Annotator) -> PreparedProgram:
    """Returns the program as an nn.Module that trains with simulated quantization; `convert` it after training.

    Its parameters are the program's. train() and eval() are lossless. The weight of a convolution followed by batch
    norm is quantized as it will be after the batch norm is folded into it. Branches and loop bodies stay float.
    """
    check_program(program, "prepare_qat")
    base = program.copy()
    run_pipeline(base, pipelines.QUANTIZATION_AWARE)
    return PreparedProgram(base, _table(base, recipe, training=True), simulates=True)
