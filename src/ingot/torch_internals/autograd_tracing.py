"""torch's autograd as a writer of graphs."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import fx
from torch._functorch import config as functorch_config
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch._subclasses.functional_tensor import disable_functional_mode
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx
from torch.utils.checkpoint import CheckpointPolicy

from ingot.torch_internals.isolation import Patches, Region
from ingot.torch_internals.modes import run_isolated

# Its package has an operator of the same name, which an import statement would give.
_flex = importlib.import_module("torch._higher_order_ops.flex_attention")
_flex_module = importlib.import_module("torch.nn.attention.flex_attention")
_checkpoint = importlib.import_module("torch.utils.checkpoint")

Compiler = Callable[[fx.GraphModule, Sequence[Any]], Any]
# Under which key a node has the number of its checkpoint.
_CHECKPOINT = "ingot.checkpoint"
_checkpoints = itertools.count()
_DISTRIBUTING = ("DistributedDataParallel", "FullyShardedDataParallel")
# How far above a compiled backward torch's function that differentiates it is called.
_FRAMES_OF_BACKWARD = 16
Prepare = Callable[[Region], None]


def compile_with_autograd(
    function: Callable[..., Any],
    forward: Compiler,
    backward: Compiler,
    rules: Mapping[Any, Callable[..., Any]],
    prepare: Prepare,
) -> Callable[..., Any]:
    """The function on tensors, with autograd: at the first call each half becomes a graph, which its compiler takes.

    `rules` decompose operators, besides those that torch decomposes. `prepare` enters what the tracing runs in.
    """
    from functorch.compile import aot_function, default_partition  # type: ignore[import-untyped]

    made: Callable[..., Any] = aot_function(
        function,
        fw_compiler=forward,
        bw_compiler=backward,
        partition_fn=lambda joint, given, **options: default_partition(_mark_recomputed(joint), given, **options),
        decompositions={**_default_rules(), **rules},
    )
    _compile_both_at_once(made)
    written = False

    def run(*inputs: Any) -> Any:
        nonlocal written
        if written:
            return made(*inputs)
        try:
            return run_isolated(lambda region: _write(region, made, inputs, prepare))
        finally:
            written = True

    return run


def _compile_both_at_once(made: Callable[..., Any]) -> None:
    """The backward is compiled with the forward, not at the first gradient, so that what is wrong with it is said."""
    cells = dict(zip(made.__code__.co_freevars, made.__closure__ or (), strict=False))
    config: Any = cells["aot_config"].cell_contents if "aot_config" in cells else None
    if hasattr(config, "force_non_lazy_backward_lowering"):  # not in torch 2.11
        cells["aot_config"].cell_contents = dataclasses.replace(config, force_non_lazy_backward_lowering=True)


@cache
def _default_rules() -> dict[Any, Callable[..., Any]]:
    return dict(torch.export.default_decompositions())


def _write(region: Region, made: Callable[..., Any], inputs: Sequence[Any], prepare: Prepare) -> Any:
    """The first call, which writes the graphs. Nodes of both halves have the traces of those that they come from, and
    no backward overwrites what the forward has saved: else it could not run twice. torch looks at each backward whether
    the list of what may be overwritten is empty, but only where one was requested."""
    # Here, because much of torch's own compiler comes with it, which only models that train need.
    from torch._functorch._aot_autograd import graph_compile

    region.enter(fx.traceback.preserve_node_meta())
    region.enter(functorch_config.patch(donated_buffer=True))
    region.enter(
        Patches(
            (graph_compile, "collect_bw_donated_buffer_idxs", lambda _: lambda *_: []),
            (_flex, "create_fw_bw_graph", lambda original: partial(_score_and_gradient, original)),
            # A recurrent layer is written out: the kernel of its own that it would be has no operators to compile.
            (torch._C, "_get_mkldnn_enabled", lambda _: lambda: False),
            (_checkpoint, "_checkpoint_without_reentrant_generator", lambda _: _trace_checkpoint),
            (_checkpoint.CheckpointFunction, "apply", lambda _: _call_checkpoint),
        )
    )
    prepare(region)
    return made(*inputs)


def _trace_checkpoint(*_: Any, **__: Any) -> Iterator[None]:
    """A checkpoint that is traced once: its operators are marked, and the backward half computes them again."""
    with fx.traceback.annotate({_CHECKPOINT: next(_checkpoints)}):
        yield


def _call_checkpoint(function: Callable[..., Any], _: Any, *args: Any) -> Any:
    with fx.traceback.annotate({_CHECKPOINT: next(_checkpoints)}):
        return function(*args)


def _mark_recomputed(joint: fx.GraphModule) -> fx.GraphModule:
    """Tells torch's partitioner which operators are those of a checkpoint. What draws random numbers is kept: it would
    draw others."""
    forward = [
        n for n in joint.graph.nodes if n.op == "call_function" and n.meta.get("partitioner_tag") == "is_forward"
    ]
    draws = {node for node in forward if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())}
    draws |= {node for node in forward if node.target is operator.getitem and node.args[0] in draws}
    if any(node.is_impure() and node not in draws and "_assert" not in str(node.target) for node in forward):
        return joint  # torch's partitioner recomputes nothing in a graph with effects
    for node in forward:
        number = node.meta.get("custom", {}).get(_CHECKPOINT)
        if number is not None:
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE if node in draws else CheckpointPolicy.MUST_RECOMPUTE
            node.meta["ac_graph_id"] = number
    return joint


def set_trace_of_calls(text: str) -> None:
    """What is written from now on comes from this line, until the next call."""
    fx.traceback.set_stack_trace([text])


def is_real(value: Any) -> bool:
    """Whether a value is a plain tensor with memory, and no stand-in of a tracer or of a transform of torch.func."""
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and not torch._is_functional_tensor(value)
        and not torch._C._functorch.is_functorch_wrapped_tensor(value)
        and value.device.type != "meta"
    )


def intercept_attention_functions(call: Callable[..., Any]) -> Patches:
    """Inside, flex_attention is `call()` before anything else."""
    return Patches((_flex_module, "_validate_device", lambda _: lambda *_: call()))


def intercept_autograd_functions(call: Callable[[type], None]) -> Patches:
    """Inside, `call(cls)` comes before each call of an autograd.Function."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def unwrap(args: Any) -> Any:
            # It is the first thing that apply() calls; which class it is, only its frame knows.
            cls = sys._getframe(2).f_locals.get("cls")
            if isinstance(cls, type):
                call(cls)
            return original(args)

        return unwrap

    return Patches((torch._functorch.utils, "unwrap_dead_wrappers", wrap))


def distributes(module: torch.nn.Module) -> str | None:
    """What has made a module exchange its parameters or gradients with other processes at each call."""
    for name, makes in (("FSDPModule", "fully_shard"), *((name, name) for name in _DISTRIBUTING)):
        if any(cls.__name__ == name and cls.__module__.startswith("torch.") for cls in type(module).__mro__):
            return makes
    return None


def lacks_gradient(tensor: torch.Tensor) -> bool:
    """Whether torch has no gradient of the operator that gave a tensor, and would raise where it is asked for it."""
    return tensor.grad_fn is not None and tensor.grad_fn.name().endswith("NotImplemented")


class TracesOfGradients(fx.Interpreter):
    """Runs a graph so that a tracer that keeps traces gives those of its nodes to what it writes of their gradients."""

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        trace = n.meta.get("stack_trace")
        maker: Any = value.grad_fn if isinstance(value, torch.Tensor) else None
        if trace and maker is not None:
            # torch may set the trace itself when the gradient is written, and takes it from here then.
            maker.metadata["traceback_"] = [trace]
            maker.register_prehook(lambda _: fx.traceback.set_stack_trace([trace]))
        return value


def _score_and_gradient(write: Callable[..., Any], score: Any, *rest: Any) -> tuple[Any, Any]:
    """A score function and the graph of its gradient, with traces. torch calls both, and would trace them again."""
    traced = TracesOfGradients(score).run if isinstance(score, fx.GraphModule) else score
    _, gradient = write(traced, *rest)
    return score, fx.Interpreter(gradient).run


def on_second_derivative(call: Callable[[], None]) -> None:
    """For the backward of a compiled graph: while it computes a gradient that is to have a gradient itself, this has
    `call()` come when that second one is asked for, before torch's own error."""
    # Where a graph is kept only for another backward through it, no such frame is found.
    if not torch._C._autograd._get_current_graph_task_keep_graph():
        return
    frame = sys._getframe(1)
    for _ in range(_FRAMES_OF_BACKWARD):
        maker = frame.f_locals.get("double_ctx")
        if isinstance(maker, torch.autograd.graph.Node):
            maker.register_prehook(lambda *_: call())
            return
        if frame.f_back is None:
            return
        frame = frame.f_back


def graph_of(function: Callable[..., Any], example: Sequence[torch.Tensor]) -> fx.GraphModule:
    """The operators that a function runs on tensors like these, whatever runs around it."""

    def write(region: Region) -> fx.GraphModule:
        for context in (unset_fake_temporarily(), disable_proxy_modes_tracing(), disable_functional_mode()):
            region.enter(context)
        region.enter(torch._guards.tracing(None))
        plain = [torch.zeros(tuple(map(int, t.shape)), dtype=t.dtype) for t in example]
        return make_fx(function)(*plain)

    return run_isolated(write)  # make_fx replaces methods of nn.Module for the process
