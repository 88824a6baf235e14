"""From a prepared module to a QDQ program: quantize and dequantize around operators on floats.

before   conv2d = aten.conv2d(x, p_conv_weight, p_conv_bias)
after    x_quantized = quantize_per_tensor(x, 0.02, 128, 0, 255, uint8)
         x_dequantized = dequantize_per_tensor(x_quantized, 0.02, 128, 0, 255, uint8)
         conv2d_weight = dequantize_per_channel(b_conv_weight_int8, b_conv_weight_scale, …, 0, -127, 127, int8)
         conv2d = aten.conv2d(x_dequantized, conv2d_weight, p_conv_bias)

QuantizedWeights are stored as integers. Compilers join dequantize, operator and quantize into one integer kernel.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import fx

from ingot import _gc
from ingot import torch_internals as internals
from ingot.errors import QuantizeError, format_error
from ingot.interop.module import tensor_at
from ingot.ir import metadata
from ingot.ir.program import Program
from ingot.ir.signature import Input, InputKind
from ingot.passes.constant_fold import Folding
from ingot.passes.cse import follow
from ingot.passes.dce import remove_unused
from ingot.passes.fold_batch_norm import Folded, Scaled, fold_norm_into_layer, layer_of
from ingot.passes.manager import run_pipeline
from ingot.quantization.fake_quantize import WeightQuantizer, parameters_of_all, quantizer_of
from ingot.quantization.prepare import (
    PreparedProgram,
    base_of,
    following,
    plan_of,
    prepare_for_evaluation,
    quantized_places,
)
from ingot.quantization.qscheme import (
    SMALLEST,
    Parameters,
    Scheme,
    parameters_of,
    quantize,
    quantize_rows,
    range_of,
)
from ingot.quantization.quantization_plan import (
    Derived,
    Edge,
    Group,
    How,
    QuantizationPlan,
    QuantizationPoint,
    QuantizedWeight,
    levels_by_path,
    nodes_by_place,
)

aten = torch.ops.aten


def convert(prepared: PreparedProgram) -> Program:
    """Converts a prepared or trained module to a quantized program, and verifies it. Literals keep their values.

    Raises QuantizeError if a value was never observed: calibrate first.
    """
    with _gc.pause():
        program, table = _freeze(prepared)

        def convert(base: Program) -> int:
            return _Conversion(base, table, prepared).run()

        run_pipeline(program, [convert], "structure")
    return program


def _freeze(prepared: PreparedProgram) -> tuple[Program, QuantizationPlan]:
    """A program to convert, in evaluation mode, and the table in its words."""
    plan, base = plan_of(prepared), base_of(prepared)
    if not plan.simulates:
        return base, plan.table
    for held in (base.state_dict, base.constants):
        held.update({name: tensor_at(prepared, name) for name in held})
    program = prepare_for_evaluation(base, parameters=False, batch_norm=False)
    return program, _rename(plan.table, nodes_by_place(base), nodes_by_place(program))


def _rename(table: QuantizationPlan, before: Mapping[Edge, fx.Node], after: Mapping[Edge, fx.Node]) -> QuantizationPlan:
    """A table of a program that trained, for what is left of it: what handed its argument on is that argument."""

    def resolve(place: Edge) -> Edge:
        while place not in after:
            given = before[place].args[0]
            assert isinstance(given, fx.Node)
            place = Edge(place.graph, given.name)
        return place

    groups = []
    for group in table.groups:
        points: dict[Edge, QuantizationPoint] = {}
        for point in group.points:
            users = None if point.users is None else [user for user in point.users if user in after]
            found = points.setdefault(resolve(point.source), QuantizationPoint(resolve(point.source)))
            found.users = None if users is None or found.users is None else [*found.users, *users]
        groups.append(replace(group, points=list(points.values())))
    return QuantizationPlan(tuple(groups), table.weights)


_Key: TypeAlias = tuple[str, fx.Node, Scheme, How | str, bool]


@dataclass(frozen=True, slots=True)
class _Source:
    """A weight as it is in the program's state, or with the batch norm behind its layer in it."""

    spec: Input
    tensor: torch.Tensor | Scaled
    norm: Folded | None

    def floats(self, weight: QuantizedWeight) -> torch.Tensor:
        """As it is going to be stored."""
        tensor = (self.tensor.tensor() if isinstance(self.tensor, Scaled) else self.tensor).float()
        return tensor.t().contiguous() if weight.transposed else tensor

    def numbers(self, weight: QuantizedWeight, known: Parameters | None) -> tuple[torch.Tensor, Parameters]:
        """Integers and their parameters: those that are known, or the weight's own."""
        scheme = weight.scheme
        by_rows = scheme.granularity == "group" or (scheme.granularity == "channel" and scheme.axis == 0)
        if by_rows and known is None and not weight.transposed:
            if isinstance(self.tensor, Scaled):
                return quantize_rows(self.tensor.weight.float(), scheme, self.tensor.factors)
            return quantize_rows(self.tensor.float(), scheme)
        tensor = self.floats(weight)
        parameters = known or parameters_of(*range_of(tensor, scheme), scheme)
        return quantize(tensor, parameters, scheme), parameters


class _Conversion:
    """One conversion. The program is changed in place."""

    def __init__(self, program: Program, table: QuantizationPlan, prepared: PreparedProgram) -> None:
        self.program, self.table, self.quantizers = program, table, plan_of(prepared).quantizers
        self.nodes = nodes_by_place(program)
        apart = {place.node for place in quantized_places(table)}
        self.folding = Folding(program, parameters=True, limit_bytes=0, apart=apart)
        self.levels = levels_by_path(program)
        self.families: dict[str, Any] = {}  # what learned the parameters of weights that did not train
        self.weights: dict[_Key, fx.Node] = {}

    def run(self) -> int:
        table = self.table
        found = self._parameters()
        quantizers: dict[str, Any] = dict(self.quantizers)
        late = [weight for weight in table.weights if isinstance(weight.how, Derived) or self._is_bias(weight)]
        self._store([weight for weight in table.weights if weight not in late], quantizers)
        for path, level in self.levels.items():
            for node in list(level.module.graph.nodes):
                found_norm = fold_norm_into_layer(self.folding, level, node)  # behind what stays float
                if found_norm is not None:
                    self._settle(path, found_norm).put(self.folding, level)
        self._store(late, quantizers)
        self.folding.write_signature()
        follow(self.program, self.folding.names)
        current = dict(self.nodes)
        for group, point in table.points():
            self._point(group.scheme, found.get(group.name), point, current)
        remove_unused(self.program)
        self.folding.drop_unused()
        for level in self.levels.values():
            level.module.recompile()
        return len(table.groups) + len(table.weights)

    # ------------------------------------------------------------------ activations

    def _parameters(self) -> dict[str, Parameters]:
        """The parameters of each group, by its name; but not of those that each call computes."""
        groups = [group for group in self.table.groups if not group.scheme.dynamic]
        found = parameters_of_all([self.quantizers[group.name] for group in groups])
        return {group.name: self._check(group, parameters) for group, parameters in zip(groups, found, strict=True)}

    def _check(self, group: Group, found: Parameters | None) -> Parameters:
        node = self.nodes[group.points[0].source]
        if found is None:
            raise QuantizeError(
                format_error(
                    f"Nothing is known of the range of {node.name}: no data has gone through it.",
                    where=metadata.where(node),
                    fix="run the prepared program on some data first: ingot.quantize.calibrate(prepared, data)",
                )
            )
        if found.scale.dim():
            raise QuantizeError(
                format_error(
                    f"{node.name} would have a scale for each channel, but only weights may.",
                    where=metadata.where(node),
                    fix="quantize activations per tensor",
                )
            )
        return found

    def _point(
        self, scheme: Scheme, parameters: Parameters | None, point: QuantizationPoint, current: dict[Edge, fx.Node]
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
            if not point.source.graph:
                self._rename_results(node, made)

    def _rename_results(self, node: fx.Node, made: fx.Node) -> None:
        signature = self.program.signature
        if any(user.op == "output" for user in made.users):
            outputs = [replace(o, name=made.name) if o.name == node.name else o for o in signature.outputs]
            self.program.signature = replace(signature, outputs=tuple(outputs))

    # ------------------------------------------------------------------ weights

    def _store(self, weights: Sequence[QuantizedWeight], quantizers: dict[str, Any]) -> None:
        """Quantizes weights: first all tensors, then the graph, which is better for the caches than taking turns."""
        for weight in weights:  # all of a family before the first of it is stored
            self._observe(weight, quantizers)
        found: dict[_Key, tuple[_Source, torch.Tensor, Parameters]] = {}
        for weight in weights:
            key, quantizer = self._key(weight), quantizers.get(weight.name)
            if key not in found and key not in self.weights:
                source = self._source(weight)
                known = quantizer.find_parameters() if quantizer is not None else None
                found[key] = (source, *source.numbers(weight, known))
        for weight in weights:
            key, user = self._key(weight), self.nodes[weight.user]
            if key not in self.weights:
                self.weights[key] = self._store_weight(weight, user, *found[key])
            if weight.transposed:
                bias = (user.args[0],) if user.target is aten.addmm.default else ()
                user.target, user.args = aten.linear.default, (user.args[weight.index - 1], self.weights[key], *bias)
            else:
                user.args = (*user.args[: weight.index], self.weights[key], *user.args[weight.index + 1 :])

    def _is_bias(self, weight: QuantizedWeight) -> bool:
        """Whether folding a batch norm changes it."""
        user = self.nodes[weight.user]
        layer = layer_of(user)
        return layer is not None and layer.bias is user.args[weight.index]

    def _key(self, weight: QuantizedWeight) -> _Key:
        source: Any = self.nodes[weight.user].args[weight.index]
        return weight.user.graph, source, weight.scheme, weight.family or weight.how, weight.transposed

    def _source(self, weight: QuantizedWeight) -> _Source:
        user, level = self.nodes[weight.user], self.levels[weight.user.graph]
        source: Any = user.args[weight.index]
        spec = self.folding.state(level, source)
        assert spec is not None
        norms = [fold_norm_into_layer(self.folding, level, norm) for norm in user.users]
        norm = next((n for n in norms if n is not None and n.layer.weight is source), None)
        return _Source(spec, norm.weight if norm is not None else self.program.state_of(spec).detach(), norm)

    def _observe(self, weight: QuantizedWeight, quantizers: dict[str, Any]) -> None:
        """Shows a weight that did not train to what learns its parameters."""
        if weight.how is None or isinstance(quantizers.get(weight.name), WeightQuantizer):
            return
        family = weight.family or weight.name
        if family not in self.families:
            self.families[family] = quantizer_of(weight.scheme, weight.how, quantizers, simulates=False)
        quantizers[weight.name] = self.families[family]
        self.families[family](self._source(weight).floats(weight))

    def _settle(self, path: str, norm: Folded) -> Folded:
        """Lets the layer of a batch norm stand for the norm from now on."""
        self.nodes[Edge(path, norm.result.name)] = norm.layer.node
        return norm

    def _store_weight(
        self, weight: QuantizedWeight, user: fx.Node, found: _Source, numbers: torch.Tensor, parameters: Parameters
    ) -> fx.Node:
        """A weight as integers in the program's state, and the node that dequantizes them."""
        scheme, target, level = weight.scheme, found.spec.target, self.levels[weight.user.graph]
        if found.norm is not None:
            self._settle(weight.user.graph, found.norm).put_bias(self.folding, level)
        source: Any = user.args[weight.index]
        bits = "int4" if scheme.steps < 16 else str(scheme.dtype).removeprefix("torch.")
        parts = {f"{target}_{bits}": numbers}
        if scheme.granularity != "tensor":
            parts[f"{target}_scale"] = parameters.scale
            if bool(parameters.zero_point.any()):
                parts[f"{target}_zero_point"] = parameters.zero_point
        placed: list[Any] = [self.folding.place(level, t, key, InputKind.BUFFER, None) for key, t in parts.items()]
        placed += [None] * (3 - len(placed))  # no zero point
        called = f"{user.name}_weight"
        limits = (scheme.qmin, scheme.qmax, scheme.dtype)
        if scheme.granularity == "channel":
            args = (*placed, scheme.axis, *limits)
            made = _call(user, "dequantize_per_channel", args, called=called, kwargs=_output_dtype_option(source))
        elif scheme.granularity == "group":
            args = (*placed, *limits, scheme.group_size, metadata.value_of(source).dtype)
            made = _call(user, "dequantize_per_channel_group", args, called=called)
        else:
            args = (placed[0], float(parameters.scale), int(parameters.zero_point), *limits)
            made = _call(user, "dequantize_per_tensor", args, called=called, kwargs=_output_dtype_option(source))
        metadata.inherit_origin(made, user)
        value = metadata.value_of(source)
        if weight.transposed:
            with internals.fake_mode_of(value) or internals.new_fake_mode()[0], torch.no_grad():
                value = value.t()
        metadata.set_value(made, value)
        return made


def _call(before: fx.Node, name: str, args: tuple[Any, ...], *, called: str, kwargs: Any = None) -> fx.Node:
    """A node for one of torch's quantization operators ("choose_qparams.tensor"), with `called` for its name."""
    operator_name, _, overload = name.partition(".")
    target = internals.quantized_operator(operator_name, overload or "default")
    with before.graph.inserting_before(before):
        return before.graph.create_node("call_function", target, args, kwargs or {}, name=called)


def _compute(node: fx.Node, of: fx.Node) -> fx.Node:
    """Sets a node's value to what it computes, and its origin to that of another."""
    metadata.inherit_origin(node, of)
    target: Any = node.target
    args, kwargs = fx.map_arg((node.args, node.kwargs), metadata.value_of)
    with internals.fake_mode_of(metadata.value_of(of)) or internals.new_fake_mode()[0], torch.no_grad():
        metadata.set_value(node, target(*args, **kwargs))
    return node


def _numbers(node: fx.Node, of: fx.Node, scheme: Scheme) -> fx.Node:
    """Sets a node's value to another's as integers; faster than computing it."""
    metadata.set_value(node, internals.fake_like(metadata.value_of(of), scheme.dtype))
    metadata.inherit_origin(node, of)
    return node


def _output_dtype_option(node: fx.Node) -> dict[str, Any]:
    """The arguments of dequantize, so that it returns the dtype of a node."""
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
    made = _call(
        place,
        "dequantize_per_tensor",
        (numbers, *tail),
        called=f"{node.name}_dequantized",
        kwargs=_output_dtype_option(node),
    )
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
    _compute(choice, node)
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
    tail, words = ((*limits, kind), {}) if per_token else (limits, _output_dtype_option(node))
    made = _call(place, f"dequantize_{verb}", (numbers, *parts, *tail), called=f"{node.name}_dequantized", kwargs=words)
    metadata.copy_metadata(node, made)
    return made
