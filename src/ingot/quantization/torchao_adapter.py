"""From the annotations of a torchao Quantizer to a table.

A quantizer is shown the program as torch.export's users know it: parameters are attributes. What it writes about nodes
is read back by their names. Nothing of torchao is imported: a spec is known by its class's name, and the observers and
fake-quantizers that it requests are created by its own constructor, so that they learn what they learn in torchao.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import torch
from torch import fx, nn

from ingot import torch_internals as internals
from ingot.errors import QuantizeError, format_error
from ingot.interop.module import attach_state
from ingot.ir import metadata
from ingot.ir.program import Program
from ingot.ir.signature import STATE_KINDS
from ingot.passes.constant_fold import Folding, Level
from ingot.quantization.qscheme import Parameters, Scheme
from ingot.quantization.quantization_plan import (
    Derived,
    Edge,
    Fixed,
    Group,
    How,
    ObserverSpec,
    QuantizationPlan,
    QuantizationPoint,
    QuantizedWeight,
    levels_by_path,
    name_in,
)


class Annotator(Protocol):
    """What we ask of a Quantizer."""

    def annotate(self, model: fx.GraphModule) -> Any: ...


# A value that is quantized: what a node gives, or what one node takes from another.
Slot: TypeAlias = fx.Node | tuple[fx.Node, fx.Node]
_CHANNELS = (torch.per_channel_affine, torch.per_channel_symmetric, torch.per_channel_affine_float_qparams)
_SYMMETRIC = (torch.per_tensor_symmetric, torch.per_channel_symmetric)
# Two specs of one value with the same of these are one.
_TELLING = ("dtype", "is_dynamic", "quant_min", "quant_max", "qscheme", "ch_axis", "scale", "zero_point")


def plan_annotations(program: Program, quantizer: Annotator, *, training: bool = False) -> QuantizationPlan:
    """What a quantizer wants of a program."""
    if not callable(getattr(quantizer, "annotate", None)):
        raise QuantizeError(
            format_error(
                f"A {type(quantizer).__name__} is neither a recipe nor a Quantizer.",
                fix="give a recipe, ingot.quantize.int8_static() for one, or an object with annotate(graph_module)",
            )
        )
    groups: list[Group] = []
    weights: list[QuantizedWeight] = []
    taken: set[str] = set()
    folding = Folding(program, parameters=True, limit_bytes=0)
    for path, level in levels_by_path(program, training=training).items():
        view = unlift_state(program, level)
        view = getattr(quantizer, "transform_for_annotation", lambda model: model)(view)
        view = quantizer.annotate(view) or view
        getattr(quantizer, "validate", lambda model: None)(view)
        found = _Reading(folding, level, path, view).table(taken)
        groups += found.groups
        weights += found.weights
    return QuantizationPlan(tuple(groups), tuple(weights))


def unlift_state(program: Program, level: Level) -> fx.GraphModule:
    """A copy of a graph in which state is an attribute; nodes keep their names and values."""
    targets = _state_targets(program, level)
    root = nn.Module()
    attach_state(root, program)
    for name, child in level.module.named_children():
        root.add_module(name, child)
    graph = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    for node in level.module.graph.nodes:
        if node.name in targets:
            made = graph.create_node("get_attr", targets[node.name], name=node.name)
        else:
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: nodes[n])
            made = graph.create_node(node.op, node.target, args, kwargs, name=node.name)
        metadata.copy_metadata(node, made)
        made.name = node.name
        if isinstance(node.target, internals.OpOverload):
            metadata.set_function(made, str(node.target).split(".")[1])
        nodes[node] = made
    return fx.GraphModule(root, graph)


def _state_targets(program: Program, level: Level) -> dict[str, str]:
    """The placeholders of a graph that stand for state, with the state's names."""
    if level.parent is None:
        return {i.name: str(i.target) for i in program.signature.inputs if i.kind in STATE_KINDS}
    outside = _state_targets(program, level.parent)
    given = {inside.name: operand.name for inside, operand in level.inputs().items() if isinstance(operand, fx.Node)}
    return {name: outside[operand] for name, operand in given.items() if operand in outside}


class _Reading:
    """One reading of the annotations in a graph, whose path in the program is `path`."""

    def __init__(self, folding: Folding, level: Level, path: str, view: fx.GraphModule) -> None:
        self.path = path
        self.nodes: dict[str, fx.Node] = {node.name: node for node in level.module.graph.nodes}
        self.state = {name for name, node in self.nodes.items() if folding.state(level, node) is not None}
        self.specs: dict[Slot, Any] = {}
        self.apart: set[fx.Node] = set()  # nodes that share nothing unless asked to
        for node in view.graph.nodes:
            annotation = metadata.annotation_of(node)
            if annotation is None or node.name not in self.nodes:
                continue
            if not annotation.allow_implicit_sharing:
                self.apart.add(node)
            for source, spec in annotation.input_qspec_map.items():
                if spec is not None and source.name in self.nodes:
                    self.specs[source, node] = spec
            if annotation.output_qspec is not None:
                self.specs[node] = annotation.output_qspec
        self.parents: dict[Slot, Slot] = {slot: slot for slot in self.specs}

    def table(self, taken: set[str]) -> QuantizationPlan:
        """What the annotations say; `taken` holds the names that quantizers have by now."""
        self._join()
        members: dict[Slot, list[Slot]] = {}
        for slot in self.specs:
            members.setdefault(self._root(slot), []).append(slot)
        weights: dict[Slot, tuple[Edge, int]] = {}
        names: dict[Slot, str] = {}
        for slots in members.values():
            where = [self._as_weight(slot) for slot in slots]
            if all(place is not None for place in where):
                for slot, place in zip(slots, where, strict=True):
                    assert place is not None
                    weights[slot] = place
                    names[slot] = name_in(taken, place[0], "_weight" if place[1] == 1 else f"_argument_{place[1]}")
            else:
                names.update(dict.fromkeys(slots, name_in(taken, self._place(_source(slots[0])))))
        groups = [
            _group(names[root], self._points(slots), *self._read(slots, names))
            for root, slots in members.items()
            if root not in weights
        ]
        made = []
        for slot, place in weights.items():
            scheme, how = self._read([slot], names)
            made.append(QuantizedWeight(names[slot], *place, scheme, how, family=names[self._root(slot)]))
        order = {name: index for index, name in enumerate(self.nodes)}
        made.sort(key=lambda w: (order[w.user.node], w.index))
        return QuantizationPlan(tuple(groups), tuple(made))

    # ------------------------------------------------------------------ who shares with whom

    def _join(self) -> None:
        by_source: dict[fx.Node, list[Slot]] = {}
        for slot in self.specs:
            by_source.setdefault(_source(slot), []).append(slot)
        for slot, spec in self.specs.items():
            if _kind(spec) == "SharedQuantizationSpec":
                self._share(slot, spec.edge_or_node)
            if isinstance(slot, tuple) and slot[1] not in self.apart:
                for other in by_source[slot[0]]:
                    if other != slot and self._alike(slot, other):
                        self._share(slot, other)

    def _alike(self, one: Slot, other: Slot) -> bool:
        a, b = self._own(one), self._own(other)
        missing = object()
        return all(getattr(a, name, missing) == getattr(b, name, missing) for name in _TELLING)

    def _own(self, slot: Slot) -> Any:
        """The spec of a slot, or of the one that it shares with."""
        seen: set[Slot] = set()
        while _kind(self.specs[slot]) == "SharedQuantizationSpec":
            if slot in seen or self.specs[slot].edge_or_node not in self.specs:
                raise QuantizeError(
                    format_error(
                        f"{_format(slot)} shares the parameters of something that has none.",
                        where=metadata.where(_source(slot)),
                        fix="let a SharedQuantizationSpec point at an edge or node with a spec of its own",
                    )
                )
            seen.add(slot)
            slot = self.specs[slot].edge_or_node
        return self.specs[slot]

    def _share(self, one: Slot, other: Slot) -> None:
        if other in self.parents:
            self.parents[self._root(one)] = self._root(other)

    def _root(self, slot: Slot) -> Slot:
        while self.parents[slot] != slot:
            slot = self.parents[slot]
        return slot

    # ------------------------------------------------------------------ what becomes of it

    def _as_weight(self, slot: Slot) -> tuple[Edge, int] | None:
        """The user and the argument of it that a slot is, if that is state."""
        if not isinstance(slot, tuple) or slot[0].name not in self.state:
            return None
        user = self.nodes[slot[1].name]
        index = next((i for i, a in enumerate(user.args) if a is self.nodes[slot[0].name]), None)
        return None if index is None else (self._place(user), index)

    def _place(self, node: fx.Node) -> Edge:
        return Edge(self.path, node.name)

    def _points(self, slots: list[Slot]) -> list[QuantizationPoint]:
        points: dict[str, QuantizationPoint] = {}
        for slot in slots:
            source = _source(slot)
            point = points.setdefault(source.name, QuantizationPoint(self._place(source)))
            if not isinstance(slot, tuple):
                point.users = None
            elif point.users is not None:
                point.users.append(self._place(slot[1]))
        return list(points.values())

    def _read(self, slots: list[Slot], names: dict[Slot, str]) -> tuple[Scheme, How]:
        spec = self._own(slots[0])
        reader = _READERS.get(_kind(spec))
        if reader is None:
            raise QuantizeError(
                format_error(
                    f"{_format(slots[0])} has a {_kind(spec)}, which is not known here.",
                    where=metadata.where(_source(slots[0])),
                    fix=f"use one of {', '.join(_READERS)}",
                )
            )
        return _scheme(spec, slots[0]), reader(spec, names)


def _source(slot: Slot) -> fx.Node:
    return slot[0] if isinstance(slot, tuple) else slot


def _format(slot: Slot) -> str:
    return f"{slot[0].name} as {slot[1].name} reads it" if isinstance(slot, tuple) else slot.name


def _kind(spec: Any) -> str:
    return type(spec).__name__


def _scheme(spec: Any, slot: Slot) -> Scheme:
    if spec.dtype not in (torch.int8, torch.uint8, torch.int16, torch.int32):
        raise QuantizeError(
            format_error(
                f"{_format(slot)} has quantized dtype {spec.dtype}; expected an integer dtype.",
                where=metadata.where(_source(slot)),
            )
        )
    limits = torch.iinfo(spec.dtype)
    channel = spec.qscheme in _CHANNELS
    return Scheme(
        spec.dtype,
        limits.min if spec.quant_min is None else spec.quant_min,
        limits.max if spec.quant_max is None else spec.quant_max,
        symmetric=spec.qscheme in _SYMMETRIC,
        granularity="channel" if channel else "tensor",
        axis=(getattr(spec, "ch_axis", None) or 0) if channel else 0,
        dynamic=bool(spec.is_dynamic),
    )


def _make_fixed(spec: Any, names: dict[Slot, str]) -> How:
    return Fixed(Parameters(torch.tensor(float(spec.scale)), torch.tensor(int(spec.zero_point))))


def _derive_spec(spec: Any, names: dict[Slot, str]) -> How:
    return Derived(tuple(names[slot] for slot in spec.derived_from), spec.derive_qparams_fn)


def _make_spec(spec: Any, names: dict[Slot, str]) -> How:
    if spec.is_dynamic:
        return None
    words = {key: getattr(spec, key) for key in ("dtype", "quant_min", "quant_max", "qscheme") if _is_given(spec, key)}
    constructor = spec.observer_or_fake_quant_ctr
    wrapped = getattr(constructor, "p", None)  # a constructor with some of its arguments given
    if "PerChannel" in getattr(getattr(wrapped, "func", constructor), "__name__", "") and _is_given(spec, "ch_axis"):
        words["ch_axis"] = spec.ch_axis
    return ObserverSpec(constructor.with_args(**words))


def _is_given(spec: Any, key: str) -> bool:
    return getattr(spec, key) is not None


_READERS: dict[str, Callable[[Any, dict[Slot, str]], How]] = {
    "QuantizationSpec": _make_spec,
    "FixedQParamsQuantizationSpec": _make_fixed,
    "DerivedQuantizationSpec": _derive_spec,
}


def _group(name: str, points: list[QuantizationPoint], scheme: Scheme, how: How) -> Group:
    return Group(name, scheme, points, how)
