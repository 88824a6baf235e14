"""Programs as stages of a view: the nodes of every graph, and the printed text with the node of each line."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.ir import metadata, pytree, symbolic_dims
from ingot.ir.execution import named_path
from ingot.ir.printer import describe_value, operator_name
from ingot.ir.program import Program
from ingot.ir.signature import Input, InputKind, OutputKind
from ingot.viewer.pools import encode_runs
from ingot.viewer.stages.deltas import Listed, compare_stages
from ingot.viewer.stages.program_text import find_lines, link_lines
from ingot.viewer.view_data import NOWHERE, Call, Json, ViewData
from ingot.viewer.weights.stage_weights import number_weights

_STATE = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT: "constant",
    InputKind.TOKEN: "token",
}


@dataclass(frozen=True, slots=True)
class ProgramGraph:
    """A graph of a program: its path, that of the graph around it, and the node that calls it there."""

    path: str
    parent: str | None
    caller: str | None
    module: fx.GraphModule


def regions_of(program: Program) -> list[ProgramGraph]:
    """Every graph of a program, the outermost first."""
    return list(_regions(program.graph_module, "", None, None))


def _regions(module: fx.GraphModule, path: str, parent: str | None, caller: str | None) -> Iterator[ProgramGraph]:
    yield ProgramGraph(path, parent, caller, module)
    for name, child in module.named_children():
        if isinstance(child, fx.GraphModule):
            yield from _regions(child, f"{path}.{name}" if path else name, path, _caller_of(module, name))


def _caller_of(module: fx.GraphModule, name: str) -> str | None:
    for node in module.graph.nodes:
        if node.op == "call_module" and node.target == name:
            return str(node.name)
        if node.op == "get_attr" and node.target == name:
            for user in node.users:
                return str(user.name)
    return None


class ProgramStages:
    """Takes programs as they pass by. Each is compared with the one before."""

    def __init__(self, view: ViewData) -> None:
        self.view = view
        # Of the program that came last: its nodes, and the index of each in the pool by path and name.
        self.listed: list[Listed] = []
        self.indexes: dict[tuple[str, str], int] = {}
        self._types: dict[int, tuple[Any, int]] = {}  # by the identity of a value, which is kept

    def add(self, name: str, group: str, program: Program, **facts: Any) -> Json:
        """The program as a stage."""
        regions = regions_of(program)
        text = str(program).split("\n")
        lines = find_lines(program.graph_module, text)
        state = {spec.name: spec for spec in program.signature.placeholders}
        listed: list[Listed] = []
        graphs: list[Json] = []
        numbers: dict[fx.Node, int] = {}
        for region in regions:
            for node in region.module.graph.nodes:
                line = text[lines[node]].strip() if node in lines else ""
                numbers[node] = self._node(region, node, line, state if region.parent is None else {})
                listed.append((region.path, node.name, numbers[node]))
            runs = encode_runs(numbers[node] for node in region.module.graph.nodes)
            graphs.append({"path": region.path, "parent": region.parent, "caller": region.caller, "nodes": runs})
        delta = None
        if self.view.last_stage("graph") is not None:
            delta = compare_stages(self.listed, listed, self.view.nodes.items)
        self.listed, self.indexes = listed, {(path, name): index for path, name, index in listed}
        weights: list[int] = []
        if self.view.tensors is not None:
            weights = number_weights(self.view.tensors, program, [region.module for region in regions], numbers)
        links = link_lines(text, {lines[node]: number for node, number in numbers.items() if node in lines})
        return self.view.add_stage(
            name,
            "graph",
            group,
            detail=f"{program.dialect.name}, {'training' if program.training else 'evaluation'}",
            counts={"nodes": sum(node.op not in ("placeholder", "output") for node in numbers)},
            delta=delta,
            graphs=graphs,
            texts=[{"name": name, "language": "graph", "lines": self.view.lines.add(text, links)}],
            weights=weights,
            **facts,
        )

    def _node(self, region: ProgramGraph, node: fx.Node, line: str, state: Mapping[str, Input]) -> int:
        spec = state.get(node.name) if node.op == "placeholder" else None
        kind, regions = _kind_of(node, spec), _called_graphs(region, node)
        target = _target_of(node)
        if spec is not None and spec.target is not None:
            target = spec.target
        elif kind == "region":
            target = regions[0]
        shape = self._type(node)
        inputs = [one.name for one in node.all_input_nodes]
        text = line
        if node.op == "placeholder":
            text = node.name if shape == NOWHERE else f"{node.name}: {self.view.types.items[shape]['text']}"
        elif node.op == "output":
            text = f"return {', '.join(inputs)}"
        place = self._place(node)
        item = {
            "name": node.name,
            "kind": kind,
            "target": target,
            "text": text or node.name,
            "inputs": inputs,
            "type": shape,
            "place": place,
            "regions": [] if kind == "region" else regions,
        }
        key = (region.path, node.name, kind, target, item["text"], tuple(inputs), shape, place, tuple(regions))
        return self.view.nodes.add(key, item)

    def _place(self, node: fx.Node) -> int:
        source = metadata.source_of(node)
        stack = (Call(frame.call, frame.path, frame.type) for frame in metadata.module_stack_of(node))
        module = self.view.add_module(stack)
        if source is None:
            return self.view.add_place(module, None, 0)
        return self.view.add_place(module, source.file, source.line)

    def _type(self, node: fx.Node) -> int:
        inferred = metadata.inferred_type_of(node)
        if inferred is not None:
            return self.view.add_type(str(inferred))
        if not metadata.has_value(node) or node.op == "output":
            return NOWHERE
        return self.type_of(metadata.value_of(node))

    def type_of(self, value: Any) -> int:
        """The type of a node's value; -1 of one that gives nothing."""
        if value is None:
            return NOWHERE
        known = self._types.get(id(value))
        if known is not None:
            return known[1]
        if isinstance(value, torch.Tensor):
            dims = [size if isinstance(size, int) else symbolic_dims.format_dim(size) for size in value.shape]
            made = self.view.add_type(describe_value(value), str(value.dtype).removeprefix("torch."), dims)
        elif isinstance(value, list | tuple):
            made = self.view.add_type(describe_value(value), items=[self.type_of(item) for item in value])
        else:
            made = self.view.add_type(describe_value(value))
        self._types[id(value)] = (value, made)
        return made


def _kind_of(node: fx.Node, spec: Input | None) -> str:
    if node.op == "placeholder":
        return _STATE.get(spec.kind, "input") if spec is not None else "input"
    if node.op == "output":
        return "output"
    if node.op == "get_attr":
        owner = node.graph.owning_module
        return "region" if isinstance(getattr(owner, str(node.target), None), fx.GraphModule) else "constant"
    if node.op == "call_module" or isinstance(node.target, internals.HigherOrderOperator):
        return "call"
    if node.target is operator.getitem:
        return "item"
    return "size" if internals.is_symbolic(metadata.value_of(node)) else "operator"


def _target_of(node: fx.Node) -> str:
    return operator_name(node.target) if node.op == "call_function" else str(node.target)


def _called_graphs(region: ProgramGraph, node: fx.Node) -> list[str]:
    """The paths of the graphs that a node names or calls."""
    names = [str(node.target)] if node.op in ("get_attr", "call_module") else []
    names += [str(one.target) for one in node.all_input_nodes if one.op == "get_attr"]
    inner = [name for name in names if isinstance(getattr(region.module, name, None), fx.GraphModule)]
    return [f"{region.path}.{name}" if region.path else name for name in inner]


def describe_program(view: ViewData, stages: ProgramStages, program: Program) -> None:
    """The program's arguments, results, dims and constraints, with the lines that asked for them."""
    nodes = {node.name: node for node in program.graph.nodes}
    signature = program.signature
    for spec, path in zip(signature.user_inputs, pytree.leaf_paths(signature.in_tree), strict=True):
        if spec.kind is InputKind.ARGUMENT:
            shape = stages.type_of(metadata.value_of(nodes[spec.name])) if spec.name in nodes else NOWHERE
            view.inputs.append(
                {"name": spec.name, "path": pytree.format_path(named_path(program, path)), "type": shape}
            )
    for output, path in zip(signature.user_outputs, pytree.leaf_paths(signature.out_tree), strict=True):
        if output.kind is OutputKind.RESULT:
            shape = stages.type_of(metadata.value_of(nodes[output.name])) if output.name in nodes else NOWHERE
            view.outputs.append({"name": output.name, "path": pytree.format_path(path), "type": shape})
    for dim in program.dims:
        item = {"name": dim.name, "low": dim.low, "high": dim.high, "auto": dim.auto, "text": str(dim)}
        view.dims.append(item)
    for constraint in program.constraints:
        text = symbolic_dims.format_dim(constraint.condition)
        view.constraints.append({"text": text, "place": _constraint_place(view, constraint.source)})


def _constraint_place(view: ViewData, source: str) -> int:
    """The place of "file:line" or "file:line: text"."""
    file, _, rest = source.partition(":")
    line = rest.partition(":")[0]
    return view.add_place(NOWHERE, file, int(line)) if file and line.isdigit() else NOWHERE
