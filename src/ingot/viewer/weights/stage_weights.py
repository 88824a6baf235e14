"""Which nodes of a program are weights, by stage: a pass may give a parameter other values under the same name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx

from ingot.ir.program import Program
from ingot.viewer.view_data import NOWHERE
from ingot.viewer.weights.tensor_pool import TensorPool


def number_weights(
    pool: TensorPool, program: Program, graphs: Sequence[fx.GraphModule], numbers: Mapping[fx.Node, int]
) -> list[int]:
    """Node, weight, node, weight, … of parameters, buffers and constants that have values."""
    state = {spec.name: spec for spec in program.signature.placeholders if spec.target is not None}
    found: list[int] = []
    for place, module in enumerate(graphs):
        for node in module.graph.nodes:
            tensor: Any = None
            if node.op == "placeholder" and place == 0 and node.name in state:
                spec = state[node.name]
                known = spec.target in program.state_dict or spec.target in program.constants
                tensor = program.state_of(spec) if known else None
            elif node.op == "get_attr":
                tensor = _attribute(module, str(node.target))
            weight = NOWHERE if tensor is None else pool.add(tensor)
            if weight != NOWHERE:
                found += (numbers[node], weight)
    return found


def _attribute(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name, None)
    return module
