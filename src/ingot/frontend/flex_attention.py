"""flex_attention: it and its backward stay one operator each, with the user's functions as subgraphs.

    flex_attention(q, k, v, score_mod, (…, mask_mod), scale, options, score operands, mask operands)
    flex_attention_backward(q, k, v, out, lse, ∂out, ∂lse, score_mod, joint, (…, mask_mod), scale, options, …)

Every function is recorded on scalars: the score as attention computes it, the batch, the head, the query and the key.
What it closes over becomes an operand behind those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode

from ingot import torch_internals as internals
from ingot.errors import CaptureError, format_error
from ingot.frontend.control_flow import Subgraphs, record_call, records, unwrap_single_output
from ingot.frontend.tracer import GraphTracer
from ingot.ir import metadata

hop = torch.ops.higher_order


@records(hop.flex_attention)
def _flex_attention(
    recorder: GraphTracer,
    op: Any,
    query: Any,
    key: Any,
    value: Any,
    score_mod: Any,
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: dict[str, Any],
    score_buffers: tuple[Any, ...] = (),
    mask_buffers: tuple[Any, ...] = (),
) -> Any:
    functions = _Functions(recorder, query)
    score, score_all = functions.score(score_mod, score_buffers)
    mask, mask_all = functions.mask(block_mask[-1], mask_buffers)
    node_args = (
        *recorder.argument((query, key, value)),
        score.node,
        (*recorder.argument(block_mask[:-1]), mask.node),
        scale,
        kernel_options,
        recorder.argument(score_all),
        recorder.argument(mask_all),
    )
    blocks = (*block_mask[:-1], mask.module)
    args = (query, key, value, score.module, blocks, scale, kernel_options, score_all, mask_all)
    return record_call(recorder, op, node_args, args)


@records(hop.flex_attention_backward)
def _flex_attention_backward(
    recorder: GraphTracer,
    op: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    lse: Any,
    grad_out: Any,
    grad_lse: Any,
    score_mod: Any,
    joint: Any,
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: dict[str, Any],
    score_buffers: tuple[Any, ...] = (),
    mask_buffers: tuple[Any, ...] = (),
) -> Any:
    functions = _Functions(recorder, query)
    score, score_all = functions.score(score_mod, score_buffers)
    both = functions.joint(joint, score_buffers, score_all)
    mask, mask_all = functions.mask(block_mask[-1], mask_buffers)
    tensors = (query, key, value, out, lse, grad_out, grad_lse)
    node_args = (
        *recorder.argument(tensors),
        score.node,
        both.node,
        (*recorder.argument(block_mask[:-1]), mask.node),
        scale,
        kernel_options,
        recorder.argument(score_all),
        recorder.argument(mask_all),
    )
    blocks = (*block_mask[:-1], mask.module)
    args = (*tensors, score.module, both.module, blocks, scale, kernel_options, score_all, mask_all)
    return record_call(recorder, op, node_args, args)


class _Recorded:
    """A function's graph, and the node that names it."""

    def __init__(self, module: fx.GraphModule, node: fx.Node) -> None:
        self.module, self.node = module, node


class _Functions:
    """Records the functions of one call of attention."""

    def __init__(self, recorder: GraphTracer, query: Any) -> None:
        self.recorder = recorder
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        with recorder.pause():
            self.value = query.new_zeros((), dtype=wide)
            self.place = query.new_zeros((), dtype=torch.int32)

    def score(self, function: Callable[..., Any], buffers: Sequence[Any]) -> tuple[_Recorded, tuple[Any, ...]]:
        inputs = (self.value, *[self.place] * 4, *buffers)
        return self._record("score_mod", "score", function, inputs, buffers, self._check_score)

    def mask(self, function: Callable[..., Any], buffers: Sequence[Any]) -> tuple[_Recorded, tuple[Any, ...]]:
        return self._record("mask_mod", "index", function, (*[self.place] * 4, *buffers), buffers, self._check_mask)

    def joint(self, function: Callable[..., Any], buffers: Sequence[Any], agreed: Sequence[Any]) -> _Recorded:
        """The gradient of a score function, as torch's autograd writes it: it takes no operand that the score does not.

        Its results are the score's gradient, four that are None, and one for each operand.
        """
        inputs = (self.value, *[self.place] * 4, self.value, *buffers)
        made, extra = self._record("joint", "score", function, inputs, buffers, lambda *_: None)
        assert len(extra) == len(buffers) <= len(agreed)
        return made

    def _record(
        self,
        name: str,
        names: str,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        buffers: Sequence[Any],
        check: Callable[[str, Sequence[Any], fx.Graph], None],
    ) -> tuple[_Recorded, tuple[Any, ...]]:
        graphs = Subgraphs(self.recorder)
        with internals.read_by(_read), _PlacesStayTensors():
            leaves = graphs.record(name, function, inputs, names=names)
        graph = graphs.frames[0][1].graph
        for node in graph.nodes:
            self._check_pure(name, node)
        check(name, leaves, graph)
        unwrap_single_output(graph)
        (module,), extra = graphs.finish()
        (node,) = graphs.attributes([module])
        return _Recorded(module, node), (*buffers, *extra)

    # ------------------------------------------------------------------ what a function may not do

    def _check_pure(self, name: str, node: fx.Node) -> None:
        target = node.target
        if not isinstance(target, internals.OpOverload):
            return
        if torch.Tag.nondeterministic_seeded in target.tags:
            raise self._function_error(
                name, node, f"{target} draws random numbers", "draw them before, and read them by index"
            )
        if target._schema.is_mutable or internals.unannotated_mutations(target, node.args):
            raise self._function_error(name, node, f"{target} writes to a tensor", "return the values to keep")

    def _check_score(self, name: str, leaves: Sequence[Any], graph: fx.Graph) -> None:
        self._check_one(name, leaves, graph, "the score")
        if not leaves[0].is_floating_point():
            what = f"it returns {_kind(leaves[0])}, and a score is a floating-point number"
            raise self._function_error(name, graph.output_node(), what, "return the score, changed")

    def _check_mask(self, name: str, leaves: Sequence[Any], graph: fx.Graph) -> None:
        self._check_one(name, leaves, graph, "whether the query sees the key")
        if leaves[0].dtype != torch.bool:
            what = f"it returns {_kind(leaves[0])}, and a mask is a bool"
            raise self._function_error(name, graph.output_node(), what, "compare: return q >= k, or x != 0")

    def _check_one(self, name: str, leaves: Sequence[Any], graph: fx.Graph, wanted: str) -> None:
        fix = f"return one tensor of rank 0: {wanted}"
        output = graph.output_node()
        if len(leaves) != 1:
            raise self._function_error(name, output, f"it returns {len(leaves)} values", fix)
        if not isinstance(leaves[0], torch.Tensor):
            raise self._function_error(name, output, f"it returns {leaves[0]!r}, which is not a tensor", fix)
        if leaves[0].dim():
            raise self._function_error(name, output, f"it returns {_kind(leaves[0])}", fix)

    def _function_error(self, name: str, node: fx.Node, why: str, fix: str) -> CaptureError:
        """An error at the user's line that made the node's value, or that calls attention."""
        made = next((n for n in node.all_input_nodes if n.op == "call_function"), node) if node.op == "output" else node
        source = metadata.source_of(made)
        where = str(source) + (f": {source.text}" if source.text else "") if source else self.recorder.user_place()
        return CaptureError(
            format_error(f"The {name} of flex_attention cannot run inside a kernel.", where=where, why=why, fix=fix)
        )


def _kind(value: torch.Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"


class _PlacesStayTensors(TorchFunctionMode):
    """Inside, table[i] with an `i` of rank 0 reads a computed place; elsewhere torch reads the value of i."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__ and _places(args[1]):
            return _read(*args)
        return func(*args, **(kwargs or {}))


def _places(index: Any) -> tuple[Any, ...]:
    """The index as places along the first dims, if that is all it is."""
    places = index if isinstance(index, tuple) else (index,)
    plain = (
        type(p) is int or isinstance(p, torch.Tensor) or (isinstance(p, slice) and p == slice(None)) for p in places
    )
    return places if all(plain) else ()


def _read(table: torch.Tensor, index: Any) -> torch.Tensor:
    """A read at places, numbers among them: the gradient of each is then a value that is added at a place."""
    places = _places(index)
    if not places:
        return torch.Tensor.__getitem__(table, index)
    numbers = [torch.full((), p, dtype=torch.int64) if type(p) is int else p for p in places]
    return torch.ops.aten.index.Tensor(table, [p if isinstance(p, torch.Tensor) else None for p in numbers])  # type: ignore[no-any-return]
