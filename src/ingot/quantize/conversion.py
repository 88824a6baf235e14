"""From a prepared module to a program of whole numbers: quantize and dequantize around operators on floats.

before   conv2d = aten.conv2d(x, p_conv_weight, p_conv_bias)
after    x_quantized = quantize_per_tensor(x, 0.02, 128, 0, 255, uint8)
         x_dequantized = dequantize_per_tensor(x_quantized, 0.02, 128, 0, 255, uint8)
         conv2d_weight = dequantize_per_channel(b_conv_weight_int8, b_conv_weight_scale, …, 0, -127, 127, int8)
         conv2d = aten.conv2d(x_dequantized, conv2d_weight, p_conv_bias)

Weights are stored as whole numbers. Compilers join dequantize, operator and quantize into one integer kernel.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from ingot import collector
from ingot import torch_internals as internals
from ingot.errors import QuantizeError, explain
from ingot.passes.dce import dce
from ingot.passes.fold import Folding, Level
from ingot.program import metadata
from ingot.program.module import tensor_at
from ingot.program.program import Program, Step
from ingot.program.signature import Input, InputKind
from ingot.program.verifier import verify
from ingot.quantize.preparation import Prepared, evaluated, following, levels_by_path, plan_of, quantized_places
from ingot.quantize.quantizers import WeightQuantizer, quantizer_of
from ingot.quantize.scheme import SMALLEST, Parameters, Scheme, parameters_of, quantized, range_of
from ingot.quantize.table import Derived, Group, How, Place, Point, Table, Weight, nodes_by_place

aten = torch.ops.aten


def convert(prepared: Prepared) -> Program:
    """The quantized program: verified, with every literal of the model as it was.

    Raises QuantizeError where a value was never seen: calibrate first.
    """
    began = time.perf_counter()
    with collector.paused():
        program, table = _frozen(prepared)
        count = _Conversion(program, table, prepared).run()
    seconds = time.perf_counter() - began
    before = len(plan_of(prepared).base.graph.nodes)
    program.history = (*program.history, Step("convert", count, seconds, before, len(program.graph.nodes)))
    verify(program, fake_run=False)
    return program


def _frozen(prepared: Prepared) -> tuple[Program, Table]:
    """A program to convert, with batch norm folded, and the table in its words."""
    plan = plan_of(prepared)
    base = plan.base
    if not plan.simulates:
        return base.copy(), plan.table
    trained = base.copy()
    for held in (trained.state_dict, trained.constants):
        held.update({name: tensor_at(prepared, name) for name in held})
    apart = {place.node for place in quantized_places(plan.table)}
    program = evaluated(trained, parameters=False, apart=apart)
    return program, _renamed(plan.table, nodes_by_place(base), nodes_by_place(program))


def _renamed(table: Table, before: Mapping[Place, fx.Node], after: Mapping[Place, fx.Node]) -> Table:
    """A table of a program that trained, for what is left of it: what handed its argument on is that argument."""

    def resolved(place: Place) -> Place:
        while place not in after:
            given = before[place].args[0]
            assert isinstance(given, fx.Node)
            place = Place(place.graph, given.name)
        return place

    groups = []
    for group in table.groups:
        points: dict[Place, Point] = {}
        for point in group.points:
            users = None if point.users is None else [user for user in point.users if user in after]
            found = points.setdefault(resolved(point.source), Point(resolved(point.source)))
            found.users = None if users is None or found.users is None else [*found.users, *users]
        groups.append(replace(group, points=list(points.values())))
    return Table(tuple(groups), table.weights)


class _Conversion:
    """One conversion. The program is changed in place."""

    def __init__(self, program: Program, table: Table, prepared: Prepared) -> None:
        self.program, self.table, self.quantizers = program, table, plan_of(prepared).quantizers
        self.nodes = nodes_by_place(program)
        self.folding = Folding(program, parameters=True, limit_bytes=0)
        self.levels = levels_by_path(program)
        self.families: dict[str, Any] = {}  # what learned the parameters of weights that did not train
        self.weights: dict[tuple[str, fx.Node, Scheme, How | str, bool], fx.Node] = {}

    def run(self) -> int:
        table = self.table
        found = {group.name: self._parameters(group) for group in table.groups}
        current = dict(self.nodes)
        for group, point in table.points():
            self._point(group.scheme, found[group.name], point, current)
        quantizers: dict[str, Any] = dict(self.quantizers)
        ordered = sorted(table.weights, key=lambda w: isinstance(w.how, Derived))
        for weight in ordered:  # all of a family before the first of it is stored
            self._observe(weight, quantizers)
        for weight in ordered:
            self._weight(weight, quantizers)
        dce(self.program)
        self.folding.drop_unused()
        for level in self.levels.values():
            level.module.recompile()
        return len(table.groups) + len(table.weights)

    # ------------------------------------------------------------------ activations

    def _parameters(self, group: Group) -> Parameters | None:
        """The parameters of a group; None where they are computed in each call."""
        if group.scheme.dynamic:
            return None
        quantizer: Any = self.quantizers[group.name]
        found: Parameters | None = quantizer.parameters_found()
        node = self.nodes[group.points[0].source]
        if found is None:
            raise QuantizeError(
                explain(
                    f"Nothing is known of the range of {node.name}: no data has gone through it.",
                    where=metadata.where(node),
                    fix="run the prepared program on some data first: ingot.quantize.calibrate(prepared, data)",
                )
            )
        if found.scale.dim():
            raise QuantizeError(
                explain(
                    f"{node.name} would have a scale for each channel, but only weights may.",
                    where=metadata.where(node),
                    fix="quantize activations per tensor",
                )
            )
        return found

    def _point(
        self, scheme: Scheme, parameters: Parameters | None, point: Point, current: dict[Place, fx.Node]
    ) -> None:
        """Quantize and dequantize after a node, read by some of its users or by all."""
        node, users = current[point.source], point.users
        readers = list(node.users) if users is None else [self.nodes[u] for u in users if self.nodes[u] in node.users]
        if not readers:
            return  # they were folded
        if parameters is None:
            made = _dynamic(node, scheme)
        else:
            made = _static(node, scheme, float(parameters.scale), int(parameters.zero_point))
        for reader in readers:
            reader.replace_input_with(node, made)
        if users is None:
            current[point.source] = made
            self._rename_results(point.source, made)

    def _rename_results(self, source: Place, made: fx.Node) -> None:
        signature = self.program.signature
        if not source.graph and any(user.op == "output" for user in made.users):
            outputs = [replace(o, name=made.name) if o.name == source.node else o for o in signature.outputs]
            self.program.signature = replace(signature, outputs=tuple(outputs))

    # ------------------------------------------------------------------ weights

    def _weight(self, weight: Weight, quantizers: dict[str, Any]) -> None:
        user, level = self.nodes[weight.user], self.levels[weight.user.graph]
        source: Any = user.args[weight.index]
        key = (weight.user.graph, source, weight.scheme, weight.family or weight.how, weight.transposed)
        if key not in self.weights:
            spec = self.folding.state(level, source)
            assert spec is not None
            tensor = self._tensor(weight)
            parameters = self._parameters_of(weight, tensor, quantizers)
            self.weights[key] = self._stored(level, user, source, spec, tensor, weight, parameters)
        if weight.transposed:
            bias = user.args[0] if user.target is aten.addmm.default else None
            x = user.args[weight.index - 1]
            user.target, user.args = aten.linear.default, (x, self.weights[key], *((bias,) if bias is not None else ()))
        else:
            user.args = (*user.args[: weight.index], self.weights[key], *user.args[weight.index + 1 :])

    def _observe(self, weight: Weight, quantizers: dict[str, Any]) -> None:
        """Shows a weight that did not train to what learns its parameters."""
        if weight.how is None or isinstance(quantizers.get(weight.name), WeightQuantizer):
            return
        family = weight.family or weight.name
        if family not in self.families:
            self.families[family] = quantizer_of(weight.scheme, weight.how, quantizers, simulates=False)
        quantizers[weight.name] = self.families[family]
        self.families[family](self._tensor(weight))

    def _tensor(self, weight: Weight) -> torch.Tensor:
        """The weight as floats, as it is stored."""
        source: Any = self.nodes[weight.user].args[weight.index]
        spec = self.folding.state(self.levels[weight.user.graph], source)
        assert spec is not None
        tensor = self.program.state_of(spec).detach().float()
        return tensor.t().contiguous() if weight.transposed else tensor

    def _parameters_of(self, weight: Weight, tensor: torch.Tensor, quantizers: dict[str, Any]) -> Parameters:
        quantizer = quantizers.get(weight.name)
        found = quantizer.parameters_found() if quantizer is not None else None
        return found or parameters_of(*range_of(tensor, weight.scheme), weight.scheme)

    def _stored(
        self,
        level: Level,
        user: fx.Node,
        source: fx.Node,
        spec: Input,
        tensor: torch.Tensor,
        weight: Weight,
        parameters: Parameters,
    ) -> fx.Node:
        """A weight as whole numbers in the program's state, and the node that makes floats of them."""
        scheme = weight.scheme
        bits = "int4" if scheme.steps < 16 else str(scheme.dtype).removeprefix("torch.")
        parts = {f"{spec.target}_{bits}": quantized(tensor, parameters, scheme)}
        if scheme.granularity != "tensor":
            parts[f"{spec.target}_scale"] = parameters.scale
            parts[f"{spec.target}_zero_point"] = parameters.zero_point
        placed = [self.folding.place(level, t, key, InputKind.BUFFER, None) for key, t in parts.items()]
        called = f"{user.name}_weight"
        limits = (scheme.qmin, scheme.qmax, scheme.dtype)
        if scheme.granularity == "channel":
            args = (*placed, scheme.axis, *limits)
            made = _call(user, "dequantize_per_channel", args, called=called, kwargs=_as(source))
        elif scheme.granularity == "group":
            args = (*placed, *limits, scheme.group_size, metadata.value_of(source).dtype)
            made = _call(user, "dequantize_per_channel_group", args, called=called)
        else:
            args = (*placed, float(parameters.scale), int(parameters.zero_point), *limits)
            made = _call(user, "dequantize_per_tensor", args, called=called, kwargs=_as(source))
        metadata.inherit_origin(made, user)
        value = metadata.value_of(source)
        with internals.fake_mode_of(value) or internals.new_fake_mode()[0], torch.no_grad():
            metadata.set_value(made, value if not weight.transposed else value.t())
        return made


def _call(before: fx.Node, name: str, args: tuple[Any, ...], *, called: str, kwargs: Any = None) -> fx.Node:
    """A node for one of torch's quantization operators ("choose_qparams.tensor"), with `called` for its name."""
    operator_name, _, overload = name.partition(".")
    target = internals.quantized_operator(operator_name, overload or "default")
    with before.graph.inserting_before(before):
        return before.graph.create_node("call_function", target, args, kwargs or {}, name=called)


def _computed(node: fx.Node, of: fx.Node) -> fx.Node:
    """Gives a node the value that it computes, and the origin of another."""
    metadata.inherit_origin(node, of)
    args, kwargs = fx.map_arg((node.args, node.kwargs), metadata.value_of)
    with internals.fake_mode_of(metadata.value_of(of)) or internals.new_fake_mode()[0], torch.no_grad():
        metadata.set_value(node, node.target(*args, **kwargs))  # type: ignore[operator]
    return node


def _numbers(node: fx.Node, of: fx.Node, scheme: Scheme) -> fx.Node:
    """Gives a node the value of another as whole numbers; quicker than to compute it."""
    value = metadata.value_of(of)
    with internals.fake_mode_of(value) or internals.new_fake_mode()[0]:
        metadata.set_value(node, torch.empty_like(value, dtype=scheme.dtype, requires_grad=False))
    metadata.inherit_origin(node, of)
    return node


def _as(node: fx.Node) -> dict[str, Any]:
    """What dequantize is told, so that it gives the dtype of a node."""
    dtype = metadata.value_of(node).dtype
    return {} if dtype is torch.float32 else {"out_dtype": dtype}


def _static(node: fx.Node, scheme: Scheme, scale: float, zero: int) -> fx.Node:
    """The node's value after it was quantized and dequantized with fixed parameters."""
    place = following(node)
    tail = (scale, zero, scheme.qmin, scheme.qmax, scheme.dtype)
    if node.target is internals.quantized_operator("dequantize_per_tensor") and node.args[1:] == tail:
        return node  # once is as good as twice
    numbers = _call(place, "quantize_per_tensor", (node, *tail), called=f"{node.name}_quantized")
    _numbers(numbers, node, scheme)
    made = _call(place, "dequantize_per_tensor", (numbers, *tail), called=f"{node.name}_dequantized", kwargs=_as(node))
    metadata.copy_metadata(node, made)
    return made


def _dynamic(node: fx.Node, scheme: Scheme) -> fx.Node:
    """The node's value after it was quantized and dequantized with parameters that each call computes."""
    place = following(node)
    limits = (scheme.qmin, scheme.qmax, scheme.dtype)
    per_token = scheme.granularity == "token"
    if per_token:
        choice = _call(place, "choose_qparams_per_token_asymmetric", (node, scheme.dtype), called=f"{node.name}_range")
    else:
        name = "choose_qparams_symmetric.tensor" if scheme.symmetric else "choose_qparams.tensor"
        asked = (node, scheme.qmin, scheme.qmax, SMALLEST, scheme.dtype)
        choice = _call(place, name, asked, called=f"{node.name}_range")
    _computed(choice, node)
    parts = []
    for index, part in enumerate(("scale", "zero_point")):
        with place.graph.inserting_before(place):
            item = place.graph.create_node(
                "call_function", operator.getitem, (choice, index), name=f"{node.name}_{part}"
            )
        metadata.inherit_origin(item, node)
        metadata.set_value(item, metadata.value_of(choice)[index])
        parts.append(item)
    verb = "per_token" if per_token else "per_tensor.tensor"
    numbers = _call(place, f"quantize_{verb}", (node, *parts, *limits), called=f"{node.name}_quantized")
    _numbers(numbers, node, scheme)
    kind = metadata.value_of(node).dtype
    tail, words = ((*limits, kind), {}) if per_token else (limits, _as(node))
    made = _call(place, f"dequantize_{verb}", (numbers, *parts, *tail), called=f"{node.name}_dequantized", kwargs=words)
    metadata.copy_metadata(node, made)
    return made
