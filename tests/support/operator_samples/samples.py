"""torch's own operator samples as programs: what they are called with, what is right, and how a result is judged.

    for case in cases(["add"], [torch.float32]):
        expected = expectation(case)                 # eager in its own dtype, and in float64
        complaint = judge(expected, results)         # None, or what is wrong

A case is one sample of one operator in one of four kinds: plain, strided (inputs that are not contiguous), empty (dim 0
of every input cut to nothing) and scalar (one element of every input, as rank 0). Kinds that eager itself refuses are
no cases, nor are those for which torch's own shape functions say something else than eager gives.
"""

from __future__ import annotations

import faulthandler
import functools
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
# What reports are made of: every dtype that models come in. Complex numbers are refused as a whole.
EVERY = (*DTYPES, torch.float16, torch.float64, torch.int32, torch.int16, torch.int8, torch.uint8)
KINDS = ("plain", "strided", "empty", "scalar")
# Samples of an operator that are also tried in the kinds other than plain.
OTHERS = 4
# How far a result may be from float64 where eager happens to be nearer: units in the last place of the largest value.
FLOOR = 6.0
# How often the noise of a sum is drawn.
DRAWS = 4
# The same at every element by itself, of operators that work element by element: ours and torch's promise.
ULPS = 4.0
SPECIAL_ULPS = 8.0
SPECIAL = ("lgamma", "digamma", "erfinv", "i0", "sinc", "igamma", "igammac", "mvlgamma", "polygamma")
# Operators whose mean over no rows eager leaves unwritten.
UNWRITTEN = ("nn.functional.multi_margin_loss", "nn.functional.multilabel_margin_loss")
# Operators whose digits eager loses even in float64, by a formula that does not.
MORE_EXACT = {"special.ndtr": lambda x: (torch.erfc(-x * math.sqrt(0.5)) / 2,)}
# Operators whose result is compared after torch's own output_process_fn_grad.
PROCESSED = ("svd", "linalg.svd")


class Call(torch.nn.Module):
    """An operator on tensors given by position; everything else it takes is fixed."""

    def __init__(
        self, function: Callable[..., Any], spec: pytree.TreeSpec, leaves: Sequence[Any], process: Callable[..., Any]
    ) -> None:
        super().__init__()
        self.function = function
        self.process = process
        self.spec = spec
        self.leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return _tensors(self.process(self.function(*args, **kwargs)))


def _tensors(result: Any) -> tuple[Any, ...]:
    """A program's outputs: the tensors of a result, whatever holds them."""
    return tuple(leaf for leaf in pytree.tree_leaves(_plain(result)) if isinstance(leaf, torch.Tensor))


def _plain(result: Any) -> Any:
    return tuple(_plain(part) for part in result) if isinstance(result, (tuple, list)) else result


@dataclass(frozen=True)
class Case:
    """One program to compile. `name` is stable: it says operator, sample number, dtype and kind."""

    op: str
    number: int
    dtype: torch.dtype
    kind: str
    module: Call
    args: tuple[torch.Tensor, ...]

    @property
    def name(self) -> str:
        return f"{self.op}#{self.number} {str(self.dtype).removeprefix('torch.')} {self.kind}"

    def __str__(self) -> str:
        shapes = ", ".join(f"{str(a.dtype).removeprefix('torch.')}{list(a.shape)}" for a in self.args)
        leaves = [leaf for leaf in self.module.leaves if leaf is not None]
        return f"{self.name} ({shapes}; {leaves})"


def fresh(case: Case) -> tuple[torch.Tensor, ...]:
    """The inputs, to be written to at will; strides are kept."""
    return tuple(_copy(arg) for arg in case.args)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        return tensor.clone()
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return made.copy_(tensor) if not _overlaps(tensor) else tensor.clone()


def _overlaps(tensor: torch.Tensor) -> bool:
    return any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True))


@functools.cache
def operators() -> dict[str, Any]:
    """torch's table of operators, by name; the variant, where there is one, after a dot."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return {op.name + (f".{op.variant_test_name}" if op.variant_test_name else ""): op for op in op_db}


def cases(
    ops: Iterable[str] | None = None,
    dtypes: Sequence[torch.dtype] = DTYPES,
    kinds: Sequence[str] = KINDS,
    most: int | None = None,
) -> Iterator[Case]:
    """Every case of these operators (default: all), in a fixed order and with the same numbers in every run.

    `most`: at most about so many samples of an operator, spread over all of them.
    """
    for name in ops if ops is not None else operators():
        for dtype in dtypes:
            if dtype in operators()[name].supported_dtypes("cpu"):
                yield from _cases_of(name, dtype, kinds, most)


def _cases_of(name: str, dtype: torch.dtype, kinds: Sequence[str], most: int | None) -> Iterator[Case]:
    op = operators()[name]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # All at once: what a sample is must not depend on what was run between it and the one before.
        samples = list(op.sample_inputs("cpu", dtype, requires_grad=False))
    step = max(1, len(samples) // OTHERS)
    chosen = range(len(samples)) if most is None else _spread(len(samples), most)
    made = []
    for number in chosen:
        for kind in kinds:
            if kind == "plain" or most is not None or number % step == 0:
                case = _case(name, op.op, number, dtype, kind, samples[number])
                if case is not None:
                    made.append(case)
    changed = [case for case in made if case.kind != "plain"]
    refused = {case.name for case, runs in zip(changed, run_by_eager(changed), strict=True) if not runs}
    yield from (case for case in made if case.name not in refused)


def run_by_eager(cases: Sequence[Case]) -> list[bool]:
    """Which of them eager takes. They run in a child: torch may crash on inputs its authors did not think of."""
    taken: list[bool] = []
    while len(taken) < len(cases):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)  # torch's own threads did not come along into the child
            faulthandler.disable()
            warnings.simplefilter("ignore")
            try:
                for case in cases[len(taken) :]:
                    os.write(writer, b"y" if _runs(case) else b"n")
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as said:
            taken += [answer == b"y"[0] for answer in said.read()]
        _, status = os.waitpid(child, 0)
        if len(taken) < len(cases):
            assert status, "a child that did not crash says something of every case"
            taken.append(False)
    return taken


def _runs(case: Case) -> bool:
    """Whether eager takes it, and gives what torch itself says: with sizes that make no sense the two may differ."""
    try:
        made = case.module(*fresh(case))
    except Exception:
        return False
    try:
        mode = FakeTensorMode()
        args = [mode.from_tensor(arg) for arg in fresh(case)]
        with mode:
            said = case.module(*args)
        sizes = [tuple(part.shape) for part in said]
    except Exception:
        return True  # that it cannot be captured is for capture to say
    known = all(isinstance(size, int) for shape in sizes for size in shape)
    return not known or sizes == [tuple(part.shape) for part in made]


def _unchanged(result: Any) -> Any:
    return result


def _spread(count: int, most: int) -> list[int]:
    return sorted({(2 * k + 1) * count // (2 * most) for k in range(most)} if count else ())


def _case(name: str, function: Any, number: int, dtype: torch.dtype, kind: str, sample: Any) -> Case | None:
    leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
    changed = [_as_kind(leaf, kind) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    given = [leaf for leaf in changed if isinstance(leaf, torch.Tensor)]
    if kind != "plain" and all(new is old for new, old in zip(changed, leaves, strict=True)):
        return None
    # Singular vectors have no sign of their own: torch's tests say which part of a result is determined.
    process = sample.output_process_fn_grad if name in PROCESSED else _unchanged
    return Case(name, number, dtype, kind, Call(function, spec, changed, process), tuple(given))


def _as_kind(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    tensor = tensor.detach()
    if kind == "plain" or tensor.layout is not torch.strided:
        return tensor
    if kind == "empty":
        return tensor[:0] if tensor.dim() else tensor
    if kind == "scalar":
        return tensor.reshape(-1)[0].clone() if tensor.numel() and tensor.dim() else tensor
    # Every second element of a tensor twice as wide, in reversed order of dims where there are several.
    if tensor.dim() == 0:
        return tensor
    wide = torch.empty((*reversed(tensor.shape[:-1]), tensor.shape[-1] * 2), dtype=tensor.dtype)
    order = (*reversed(range(tensor.dim() - 1)), tensor.dim() - 1)
    made = wide.permute(order)[..., ::2]
    return made.copy_(tensor)


# ---------------------------------------------------------------------- what is right


@dataclass(frozen=True)
class Expectation:
    """What eager gives (`own`), the same in float64 (`exact`), and whether it draws random numbers or leaves holes."""

    own: tuple[torch.Tensor, ...]
    exact: tuple[torch.Tensor, ...]
    free: bool


def expectation(case: Case) -> Expectation | None:
    """None where eager itself refuses the sample, or gives no tensor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.manual_seed(1)
            own = _results(case.module(*fresh(case)))
            torch.manual_seed(2)
            again = _results(case.module(*fresh(case)))
        except Exception:
            return None
        if not own:
            return None
        unwritten = "empty" in case.op or (case.kind == "empty" and case.op in UNWRITTEN)
        free = unwritten or not all(_equal(a, b) for a, b in zip(own, again, strict=True))
        return Expectation(own, _exactly(case, own), free)


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.layout is not torch.strided or a.is_quantized or a.is_complex():
        return True
    return torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) if a.is_floating_point() else torch.equal(a, b)


def _results(result: Any) -> tuple[torch.Tensor, ...]:
    return tuple(part.detach().clone() for part in result)


def _exactly(case: Case, own: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Eager with every float as float64; where that cannot be run or gives something else, eager itself."""
    args = tuple(a.double() if a.is_floating_point() else a for a in fresh(case))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(1)
        exact = _results(MORE_EXACT.get(case.op, case.module)(*args))
    except Exception:
        return own
    finally:
        torch.set_default_dtype(before)
    if [e.shape for e in exact] != [o.shape for o in own]:
        return own
    return exact


# Among equal elements torch promises no particular one to these.
TIES = ("topk", "kthvalue", "median", "nanmedian", "mode", "sort", "argsort", "max_pool", "masked.median")


def judge(case: Case, expected: Expectation, found: Sequence[torch.Tensor]) -> str | None:
    """What is wrong with these results, or None."""
    if len(found) != len(expected.own):
        return f"{len(found)} results, not {len(expected.own)}"
    for place, (own, exact, ours) in enumerate(zip(expected.own, expected.exact, found, strict=True)):
        complaint = _compare(own, exact, ours, expected.free, _scale(case, own), _ulps(case.op))
        if complaint is not None and (noise := _noise(case, expected, place)) is not None:
            complaint = _compare(own, exact, ours, expected.free, _scale(case, own), _ulps(case.op), noise)
        if complaint is not None and case.op in TIES and _same_elements(case, expected, found, place):
            complaint = None
        if complaint is not None:
            return f"result {place}: {complaint}"
    return None


def _same_elements(case: Case, expected: Expectation, found: Sequence[torch.Tensor], place: int) -> bool:
    """Whether a result that is places names the elements it should, along one dim or another."""
    x, places = case.args[0], found[place]
    if places.dtype is not torch.int64 or not places.numel():
        return False
    for dim in range(x.dim()):
        index, own = (t if places.dim() == x.dim() else t.unsqueeze(dim) for t in (places, expected.own[place]))
        fits = all(a <= b for d, (a, b) in enumerate(zip(index.shape, x.shape, strict=True)) if d != dim)
        if fits and int(index.min()) >= 0 and int(index.max()) < x.shape[dim] and int(own.max()) < x.shape[dim]:
            there = x.gather(dim, index)
            named = found[0].reshape(there.shape) if place else x.gather(dim, own)  # argsort gives places alone
            if torch.equal(there, named):
                return True
    return False


def _scale(case: Case, result: torch.Tensor) -> float:
    """The largest number that goes into a result that is smaller than what it is made of: terms may cancel."""
    floats = [
        a for a in case.args if a.is_floating_point() and a.layout is torch.strided and a.numel() > result.numel()
    ]
    finite = [a.double()[a.isfinite()].abs() for a in floats]
    return max((float(f.max()) for f in finite if f.numel()), default=0.0)


def _noise(case: Case, expected: Expectation, place: int) -> torch.Tensor | None:
    """How far one rounding of each number that goes into a sum may move it, terms that cancel included.

    A result with fewer elements than an argument is made of many terms, which may be far larger than it is and than
    the argument: exp(x) - t·log(x) in a mean, say. Each of them is rounded at least once, so no float32 code is nearer
    to the truth than float64 is to itself when every argument moves by half a unit in its last place. Eager may be
    nearer by luck, since its error is one draw; luck does not bound others.

    In float64 there is nothing more exact to hold eager against: there this, and the error that eager makes of the same
    numbers in float32, in units of float64, stand for its error.
    """
    exact = expected.exact[place]
    alone = expected.own[place].dtype is torch.float64
    if not any(a.is_floating_point() and (alone or a.numel() > exact.numel()) for a in case.args):
        return None
    moved: list[torch.Tensor] = []
    for seed in range(DRAWS):
        draws = torch.Generator().manual_seed(seed)

        def nudged(a: torch.Tensor, draws: torch.Generator = draws) -> torch.Tensor:
            if not a.is_floating_point() or a.layout is not torch.strided:
                return a
            signs = torch.randint(0, 2, a.shape, generator=draws).double() * 2 - 1
            return a.double() * (1 + signs * torch.finfo(a.dtype).eps / 2)

        again = _exactly(replace(case, args=tuple(nudged(a) for a in case.args)), expected.exact)
        moved.append(torch.nan_to_num((again[place].double() - exact.double()).abs(), 0.0, 0.0, 0.0))
    if alone and (error := _error_in_float32(case, place)) is not None and error.shape == exact.shape:
        moved.append(error * (torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps))
    return torch.stack(moved).amax(0)


def _error_in_float32(case: Case, place: int) -> torch.Tensor | None:
    """How far eager is off on the same numbers in float32; None where it does not take them."""
    narrow = replace(case, args=tuple(a.float() if a.dtype is torch.float64 else a for a in case.args))
    expected = expectation(narrow)
    if expected is None or expected.free:
        return None
    return torch.nan_to_num((expected.own[place].double() - expected.exact[place].double()).abs(), 0.0, 0.0, 0.0)


def _ulps(name: str) -> float | None:
    """How many units in its own last place an element may be off; None where elements are made of many numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo
    if not isinstance(operators()[name], UnaryUfuncInfo | BinaryUfuncInfo):
        return None
    return SPECIAL_ULPS if name.startswith("special.") or name in SPECIAL else ULPS


def _spacing(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The distance to the next number of that dtype, at each of these float64 numbers."""
    limits = torch.finfo(dtype)
    _, exponent = torch.frexp(values.abs().clamp(min=limits.tiny))
    return torch.ldexp(torch.full_like(values, limits.eps / 2), exponent)


def _compare(
    own: torch.Tensor,
    exact: torch.Tensor,
    ours: torch.Tensor,
    free: bool,
    scale: float,
    ulps: float | None,
    noise: torch.Tensor | None = None,
) -> str | None:
    if ours.dtype is not own.dtype or ours.shape != own.shape:
        return f"{ours.dtype}{list(ours.shape)}, not {own.dtype}{list(own.shape)}"
    if free or not own.numel():
        return None
    if not own.is_floating_point():
        different = ours != own
        if not different.any():
            return None
        at = tuple(different.nonzero()[0].tolist())
        return f"at {list(at)}: {ours[at].item()}, not {own[at].item()} ({int(different.sum())} differ)"
    dtype, unit = own.dtype, torch.finfo(own.dtype).eps
    own, exact, ours = own.double(), exact.double(), ours.double()
    # Where eager runs over on its way to a number that its dtype has, that number is right as well.
    missed = ~own.isfinite() & (exact.abs() <= torch.finfo(dtype).max) & ours.isfinite()
    own = torch.where(missed, exact, own)
    special = ~own.isfinite()
    same = (ours == own) | (ours.isnan() & own.isnan())
    wrong = torch.where(special, ~same, ~ours.isfinite())
    target = torch.where(exact.isfinite(), exact, own)
    drawn = () if noise is None else (noise,)
    limit = 4 * max(float(part.max()) for part in (torch.where(special, 0.0, (own - target).abs()), *drawn))
    largest = torch.where(special, 0.0, torch.maximum(own.abs(), target.abs())).max()
    wrong |= ~special & ~((ours - target).abs() <= max(limit, FLOOR * unit * max(float(largest), scale / 4)))
    if ulps is not None:
        near = torch.maximum((own - target).abs() * 4, _spacing(target, dtype) * ulps)
        if noise is not None and dtype is torch.float64:
            near = torch.maximum(near, noise * 4)
        wrong |= ~special & ~((ours - target).abs() <= near)
    if not wrong.any():
        return None
    at = tuple(wrong.nonzero()[0].tolist())
    return (
        f"at {list(at)}: {ours[at].item()!r}, eager {own[at].item()!r}, float64 {target[at].item()!r} "
        f"({int(wrong.sum())} of {wrong.numel()} differ)"
    )
