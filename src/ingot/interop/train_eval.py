"""Training and evaluation forms of a captured graph.

What a module does differently in train mode is an argument of the operator that it calls: `training` of batch_norm,
`train` of dropout. A graph is switched by setting that argument, so every other literal stays what it was.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ingot.errors import PassError, TrainModeWarning, format_error
from ingot.ir import metadata
from ingot.ir.clone import copy_graph_module

if TYPE_CHECKING:
    from ingot.ir.program import Program

aten = torch.ops.aten

# Where the flag stands among an operator's arguments.
FLAGS: dict[torch._ops.OpOverload, int] = {
    aten.batch_norm.default: 5,
    aten.dropout.default: 2,
    aten.dropout_.default: 2,
    aten.native_dropout.default: 2,
    aten.feature_dropout.default: 2,
    aten.feature_dropout_.default: 2,
    aten.alpha_dropout.default: 2,
    aten.alpha_dropout_.default: 2,
    aten.feature_alpha_dropout.default: 2,
    aten.feature_alpha_dropout_.default: 2,
    aten.rrelu.default: 3,
    aten.rrelu_.default: 3,
    aten.lstm.input: 6,
    aten.lstm.data: 7,
    aten.gru.input: 6,
    aten.gru.data: 7,
    aten.rnn_tanh.input: 6,
    aten.rnn_tanh.data: 7,
    aten.rnn_relu.input: 6,
    aten.rnn_relu.data: 7,
}

_FIXED = frozenset(
    {
        aten._native_batch_norm_legit_no_training.default,
        aten._transformer_encoder_layer_fwd.default,
        aten._native_multi_head_attention.default,
    }
)
_COUNTER = ".num_batches_tracked"


def warn_of_train_mode(program: Program, stacklevel: int) -> None:
    """Warns if a program that is to run for inference was captured in train mode and has layers that act by it."""
    found = _layers_in_training(program.graph_module) if program.training else []
    if not found:
        return
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    message = format_error(
        "The model is in train mode: some of its layers drop values at random or normalize by the batch.",
        where=f"{metadata.where(found[0])}{more}",
        why="it was captured in that mode, and is now compiled for inference",
        fix="call model.eval() first, or compile with training=True to train it",
    )
    warnings.warn(message, TrainModeWarning, stacklevel=stacklevel)


def _layers_in_training(module: fx.GraphModule) -> list[fx.Node]:
    """The nodes, in all graphs, that do something else than they would in eval mode."""
    graphs = [m.graph for m in module.modules() if isinstance(m, fx.GraphModule)]
    return [node for graph in graphs for node in graph.nodes if _acts_by_training(node)]


def _acts_by_training(node: fx.Node) -> bool:
    target: Any = node.target
    args: tuple[Any, ...] = node.args
    if target is aten.scaled_dot_product_attention.default:
        return bool(args[4] if len(args) > 4 else node.kwargs.get("dropout_p", 0.0))
    if target is aten.batch_norm.default:
        return args[5] is True and args[3] is not None
    if target is aten.instance_norm.default:
        return args[5] is True and args[3] is not None
    index = FLAGS.get(target)
    if index is None or len(args) <= index or args[index] is not True:
        return False
    if target in (aten.rrelu.default, aten.rrelu_.default):
        return True
    return bool(args[1 if index == 2 else index - 1] != 0.0)  # the probability


def switch_mode(module: fx.GraphModule, targets: Mapping[str, str], training: bool) -> fx.GraphModule:
    """A copy of the graph in the other mode. `targets` maps placeholders to the names of the state behind them."""
    out = copy_graph_module(module)
    _switch(out, targets, training)
    return out


def _switch(module: fx.GraphModule, targets: Mapping[str, str], training: bool) -> None:
    for child in module.children():
        if isinstance(child, fx.GraphModule):
            _switch(child, {}, training)
    placeholders = {targets[n.name]: n for n in module.graph.nodes if n.op == "placeholder" and n.name in targets}
    for node in list(module.graph.nodes):
        if training and node.target in _FIXED:
            raise PassError(
                format_error(
                    f"{node.target} has no training form, so this program cannot be switched to train mode.",
                    where=metadata.where(node),
                    fix="capture the model in train mode, and switch that program to eval",
                )
            )
        index = FLAGS.get(node.target)
        if index is not None:
            node.args = (*node.args[:index], training, *node.args[index + 1 :])
            if node.target is aten.batch_norm.default and training:
                _count_batch(node, targets, placeholders)
        elif node.target is aten.instance_norm.default and node.args[3] is not None:
            node.args = (*node.args[:5], training, *node.args[6:])
        elif node.target is aten.scaled_dot_product_attention.default and not training:
            _disable_dropout(node)
        elif node.target is aten.add_.Tensor and not training and _is_counter(node.args[0], targets):
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
    module.recompile()


def _count_batch(norm: fx.Node, targets: Mapping[str, str], placeholders: Mapping[str, fx.Node]) -> None:
    """In train mode a BatchNorm module counts the batches that it has seen."""
    mean = norm.args[3]
    if not isinstance(mean, fx.Node) or mean.name not in targets:
        return
    owner, _, _ = targets[mean.name].rpartition(".")
    counter = placeholders.get(f"{owner}{_COUNTER}" if owner else _COUNTER[1:])
    if counter is None or any(user.target is aten.add_.Tensor for user in counter.users):
        return
    with norm.graph.inserting_before(norm):
        node = norm.graph.create_node("call_function", aten.add_.Tensor, (counter, 1))
    metadata.set_value(node, metadata.value_of(counter))
    metadata.inherit_origin(node, norm)


def _is_counter(argument: object, targets: Mapping[str, str]) -> bool:
    name = targets.get(argument.name, "") if isinstance(argument, fx.Node) else ""
    return f".{name}".endswith(_COUNTER)


def _disable_dropout(node: fx.Node) -> None:
    if len(node.args) > 4:
        node.args = (*node.args[:4], 0.0, *node.args[5:])
    if "dropout_p" in node.kwargs:
        node.kwargs = {**node.kwargs, "dropout_p": 0.0}
