"""Copies of graphs that share tensors and metadata values and nothing else, and of programs on state of their own."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from torch import fx, nn

from ingot import torch_internals as internals
from ingot.ir import metadata
from ingot.ir.signature import MUTATION_KINDS

if TYPE_CHECKING:
    from ingot.ir.program import Program


def copy_graph_module(module: fx.GraphModule) -> fx.GraphModule:
    """The same nodes under the same names, sub-GraphModules copied too."""
    root = nn.Module()
    for name, child in module.named_children():
        root.add_module(name, copy_graph_module(child) if isinstance(child, fx.GraphModule) else child)
    graph = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        copied = graph.create_node(
            node.op,
            node.target,
            fx.map_arg(node.args, lambda n: nodes[n]),
            fx.map_arg(node.kwargs, lambda n: nodes[n]),
            name=node.name,
        )
        if copied.name != node.name:
            copied.name = node.name
        metadata.copy_metadata(node, copied)
        nodes[node] = copied
    return internals.LazyGraphModule(root, graph)


def copy_written_state(program: Program) -> Program:
    """A functional program's graph on copies of the state that it writes: to call it does not change this one's state.

    Graph and other tensors are shared. A graph that itself writes, as a captured one may, would still write to them.
    """
    written = {o.target for o in program.signature.outputs if o.kind in MUTATION_KINDS}
    tensors = [*program.state_dict.items(), *program.constants.items()]
    copies = {id(tensor): tensor.detach().clone() for name, tensor in tensors if name in written}
    made = copy.copy(program)
    made.state_dict = {name: copies.get(id(tensor), tensor) for name, tensor in program.state_dict.items()}
    made.constants = {name: copies.get(id(tensor), tensor) for name, tensor in program.constants.items()}
    return made
