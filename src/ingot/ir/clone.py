"""Copies of graphs that share tensors and metadata values and nothing else."""

from __future__ import annotations

from torch import fx, nn

from ingot import torch_internals as internals
from ingot.ir import metadata


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
