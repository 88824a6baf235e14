"""`ingot.attention`: attention with the user's functions inside, called like a function and compiled behind the call.

    out = ingot.attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h, i - j + n], mask_mod=causal)

It is compiled once for each function and each set of sizes; tensors that the functions close over are read at each
call, and take part in autograd. Functions are compared by what they do and close over, not by identity: a lambda that
is written inside forward is compiled once.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from ingot import compiler
from ingot.errors import InputError, format_error
from ingot.ops.closure_key import ClosureSpec, decompose_closure

# Compiled functions that are kept, the latest used last.
KEPT = 256
_LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
_NO_BLOCKS = 1 << 30

Score = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
Mask = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Score | None = None,
    mask_mod: Mask | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
) -> Any:
    """Σ_j softmax_j(score_mod(scale · q[i] · k[j]) where mask_mod) · v[j], for tensors [batch, heads, length, depth].

    `score_mod(score, batch, head, query, key)` returns a score, `mask_mod(batch, head, query, key)` whether the query
    sees the key; both are functions of scalars that may read tensors they close over at computed places. Tiles that the
    mask hides whole are skipped. A `block_mask` hides the blocks that it does not list, besides; with both, a pair must
    pass both. A query that sees no key returns zeros. With `enable_gqa` the keys' heads may be fewer, each for a group
    of the queries'. `return_lse` also returns log Σ_j exp(score) of each query. Gradients reach the three tensors and
    what `score_mod` closes over.

    Raises CaptureError or UnsupportedOperator, at the line of the function, for one that cannot run inside a kernel,
    and InputError for tensors that do not fit.
    """
    _check(query, key, value, enable_gqa)
    score, mask = decompose_closure(score_mod), decompose_closure(_both(mask_mod, block_mask))
    lists = [getattr(block_mask, name) for name in _LISTS] if block_mask is not None else [None] * 4
    tensors = [query, key, value, *score.tensors, *mask.tensors, *(t for t in lists if t is not None)]
    training = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    call = _AttentionCall(score, mask, block_mask, scale, enable_gqa, return_lse, training)
    return _CACHE.function(call, tensors)(*tensors)


def _both(mask_mod: Mask | None, block_mask: BlockMask | None) -> Any:
    listed = block_mask.mask_mod if block_mask is not None else None
    if mask_mod is None or listed is None:
        return mask_mod or listed

    def both(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return listed(b, h, i, j) & mask_mod(b, h, i, j)

    return both


@dataclass(frozen=True)
class _AttentionCall:
    """One way of calling attention, but for its tensors."""

    score: ClosureSpec
    mask: ClosureSpec
    block_mask: BlockMask | None
    scale: float | None
    grouped: bool
    lse: bool
    training: bool

    def key(self, tensors: Sequence[torch.Tensor]) -> Hashable:
        types = tuple((tuple(t.shape), t.dtype, t.device, self.training and t.requires_grad) for t in tensors)
        blocks = tuple(self.block_mask.BLOCK_SIZE) if self.block_mask is not None else ()
        listed = [getattr(self.block_mask, name, None) is None for name in _LISTS]
        options = (self.scale, self.grouped, self.lse, self.training, torch.get_num_threads())
        return self.score.key, self.mask.key, types, blocks, tuple(listed), options


class _Attention(nn.Module):
    """The call as a model of its tensors."""

    def __init__(self, call: _AttentionCall, query: torch.Tensor, key: torch.Tensor) -> None:
        super().__init__()
        self.call = call
        self.blocks = call.block_mask
        if self.blocks is None:
            # Given none, torch makes one that says nothing, and its making would be traced. It takes one image of keys
            # for all queries beside blocks of each image only.
            images = 1 if query.shape[0] == key.shape[0] else query.shape[0]
            one = torch.ones(images, 1, 1, dtype=torch.int32, device=query.device)
            lengths = (query.shape[-2], key.shape[-2])
            self.blocks = BlockMask.from_kv_blocks(one, one[..., None] - 1, BLOCK_SIZE=_NO_BLOCKS, seq_lengths=lengths)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *closed: torch.Tensor) -> Any:
        call, count = self.call, len(self.call.score.tensors)
        score = call.score.rebuilt(closed[:count])
        mask = call.mask.rebuilt(closed[count : count + len(call.mask.tensors)])
        blocks = self._blocks(mask, closed[count + len(call.mask.tensors) :])
        options: dict[str, Any] = {"enable_gqa": call.grouped, "return_lse": call.lse}
        return flex_attention(q, k, v, score, blocks, call.scale, **options)

    def _blocks(self, mask: Any, lists: Sequence[torch.Tensor]) -> BlockMask | None:
        """The blocks with the mask and the lists of this call."""
        if self.blocks is None:
            return None
        made = copy.copy(self.blocks)
        made.mask_mod = mask or made.mask_mod
        if self.call.block_mask is not None:
            named = [name for name in _LISTS if getattr(self.blocks, name) is not None]
            for name, tensor in zip(named, lists, strict=True):
                setattr(made, name, tensor)
        return made


class _Cache:
    """Compiled functions by what they were compiled for. Any number of callers at once; each is compiled once."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, tuple[_AttentionCall, Callable[..., Any]]] = OrderedDict()
        self._lock = threading.Lock()

    def function(self, call: _AttentionCall, tensors: Sequence[torch.Tensor]) -> Callable[..., Any]:
        key = call.key(tensors)
        with self._lock:
            found = self._known.get(key)
            if found is None:
                # The entry keeps the call, and with it the objects that the key names by identity.
                found = self._known[key] = (call, _compile(call, tensors))
            self._known.move_to_end(key)
            if len(self._known) > KEPT:
                self._known.popitem(last=False)
            return found[1]


def _compile(call: _AttentionCall, tensors: Sequence[torch.Tensor]) -> Callable[..., Any]:
    model, threads = _Attention(call, *tensors[:2]), torch.get_num_threads()
    target = compiler.choose_target(tensors)
    if call.training:
        return compiler.compile(model, tensors, target=target, threads=threads, training=True)
    with torch.no_grad():
        made = compiler.compile(model, [t.detach() for t in tensors], target=target, threads=threads)
    made.program.example_inputs = None  # the first call's tensors
    return made


_CACHE = _Cache()


# ---------------------------------------------------------------------- tensors that do not fit


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grouped: bool) -> None:
    problem = _problem(q, k, v, grouped)
    if problem:
        shapes = ", ".join(f"{n} {_type(t)}" for n, t in (("query", q), ("key", k), ("value", v)))
        raise InputError(
            format_error(
                f"Attention cannot take {shapes}.",
                why=problem[0],
                fix=problem[1],
            )
        )


def _problem(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grouped: bool) -> tuple[str, str] | None:
    if any(t.dim() != 4 for t in (q, k, v)):
        return "each is [batch, heads, length, depth]", "add the dims that are missing: x.unsqueeze(0)"
    if len({t.dtype for t in (q, k, v)}) != 1 or not q.is_floating_point():
        return "they have one floating-point dtype", "cast them: key.to(query.dtype)"
    if k.shape[:3] != v.shape[:3]:
        return "keys and values go in pairs", "give them the same batch, heads and length"
    if q.shape[3] != k.shape[3]:
        return "a query is multiplied with a key", "give them the same depth"
    if q.shape[0] != k.shape[0] and k.shape[0] != 1:
        return "each query has its keys", "give them the same batch, or keys of batch 1"
    if q.shape[1] != k.shape[1] and (not grouped or not k.shape[1] or q.shape[1] % k.shape[1]):
        fix = (
            "pass enable_gqa=True" if k.shape[1] and not q.shape[1] % k.shape[1] else "make one a multiple of the other"
        )
        return "the heads differ", fix
    if len({t.device for t in (q, k, v)}) != 1 or q.device.type not in ("cpu", "cuda"):
        return "native code runs on the CPU or on one CUDA device", "move them: x.cpu()"
    return None


def _type(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}[{', '.join(map(str, tensor.shape))}]"
