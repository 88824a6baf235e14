"""torch's own operator samples: the inferred type against real results.

A sample asks about several kinds of arguments: all dims known, each dim of each tensor unknown, the rank of each
unknown. An answer must contain the sample's own result, and also what the operator really gives for other tensors of
those kinds: other values, other sizes of the unknown dim, other ranks. What those runs do not have in common cannot be
known, so an answer that leaves just that open is as good as any.
"""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ingot.analysis.shape_inference.lattice import UNKNOWN, NumberType, TensorType, TupleType, Type, contains, type_of
from ingot.analysis.shape_inference.operator_types import InfeasibleTypes, answer
from ingot.ir import pytree
from tests.analysis.shape_inference import torchscript

KINDS = ("all dims known", "one dim unknown", "rank unknown")
GRADES = ("known", "as far as can be", "some dims unknown", "rank unknown", "unknown")

# What becomes of a sample that is not judged.
SAME = "asks nothing that an earlier sample of its operator did not ask"
NO_TENSORS = "no tensor goes in, so that there is nothing to ask"
NOT_STRIDED = "a sparse or otherwise not strided tensor goes in, which types do not tell from a strided one"
DOES_NOT_RUN = "the operator itself raises"
CRASHES = "torch ends the process when the operator is run on symbols"
NOT_MADE = "torch fails to make the operator's samples here"


@dataclass
class Tally:
    """What became of one kind of question: "known" is a result whose dtype, rank and every dim were known."""

    ours: Counter[str] = field(default_factory=Counter)
    theirs: Counter[str] = field(default_factory=Counter)
    doubts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    disputed: list[str] = field(default_factory=list)  # what torch's kernels give and its fake kernels deny
    runs: int = 0  # real results that answers were held against


@dataclass
class Judged:
    """What became of an operator's samples."""

    kinds: dict[str, Tally] = field(default_factory=lambda: {kind: Tally() for kind in KINDS})
    samples: int = 0
    judged: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def wrong(self) -> list[str]:
        return [line for tally in self.kinds.values() for line in tally.wrong]


def operators() -> list[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if torch.float32 in op.supported_dtypes("cpu")]


def judge(
    op: Any,
    most: int | None = None,
    scripts: bool = False,
    variants: str | None = None,
    skipped: Collection[int] = (),
    on_sample: Callable[[int], object] = lambda place: None,
) -> Judged:
    """Judges an operator's float32 samples, `most` of them; each question is asked once.

    `scripts`: beside TorchScript's pass. `variants`: also against results for other tensors of the same types, on this
    device; those of the meta device are not real, but show what differs. `skipped`: the places of samples over which
    torch is known to crash. `on_sample` is called before each one.
    """
    found = Judged()
    seen: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for place, sample in enumerate(itertools.islice(_samples(op), most)):
            on_sample(place)
            found.samples += 1
            if place in skipped:
                why_not: str | None = CRASHES
            else:
                why_not = NOT_MADE if sample is FAILED else _judge_sample(op, sample, seen, found, scripts, variants)
            if why_not is None:
                found.judged += 1
            else:
                found.left_out[why_not] += 1
    return found


FAILED = object()


def _samples(op: Any) -> Iterator[Any]:
    """An operator's samples, and FAILED where torch fails to make the next one."""
    torch.manual_seed(0)
    try:
        yield from op.sample_inputs("cpu", torch.float32)
    except Exception:
        yield FAILED


def _judge_sample(
    op: Any, sample: Any, seen: set[str], found: Judged, scripts: bool, variants: str | None
) -> str | None:
    """Judges one sample, or says why not."""
    call = _call_of(op, sample)
    if isinstance(call, str):
        return call
    run, real = call.run, call.real
    questions = [question for question in _questions(real) if f"{question}{call.others}" not in seen]
    if not questions:
        return SAME
    seen.update(f"{question}{call.others}" for question in questions)
    wanted = _run(run, real)
    if wanted is FAILED:
        return DOES_NOT_RUN
    for question in questions:
        results, shadows = [(_types(real), wanted)], []
        for given in question.variants(real) if variants else ():
            got = _run(run, [t.to(variants) for t in given])
            if got is not FAILED and variants == "meta":
                shadows.append(got)
            elif got is not FAILED:
                results.append((_types(given), got))
        _judge_one(f"{op.name}{op.variant_test_name}", run, results, shadows, question, found.kinds[question.kind])
    if scripts and questions[0].kind == KINDS[0]:
        found.kinds[KINDS[0]].theirs[torchscript.grade(run, real, wanted)] += 1
    return None


@dataclass(frozen=True)
class _Call:
    """A sample as a function of its tensors."""

    run: Callable[..., Any]
    real: list[torch.Tensor]
    others: list[Any]


def _call_of(op: Any, sample: Any) -> _Call | str:
    """A sample's call, or why there is nothing to ask."""
    leaves, shape = pytree.flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    if not places:
        return NO_TENSORS
    if not all(leaves[i].layout is torch.strided and not leaves[i].is_quantized for i in places):
        return NOT_STRIDED

    def run(*values: Any) -> Any:
        filled = list(leaves)
        for place, value in zip(places, values, strict=True):
            filled[place] = value
        first, args, kwargs = pytree.unflatten(filled, shape)
        return op.op(first, *args, **kwargs)

    others = [leaf for i, leaf in enumerate(leaves) if i not in places]
    return _Call(run, [leaves[i].detach() for i in places], others)


def _run(run: Callable[..., Any], given: list[torch.Tensor]) -> Any:
    try:
        return run(*(t.clone() for t in given))
    except Exception:
        return FAILED


# ---------------------------------------------------------------------- questions


@dataclass(frozen=True)
class Question:
    """The types of the tensors that go in; `place` and `dim` say what of them is unknown."""

    kind: str
    types: tuple[TensorType, ...]
    place: int | None = None
    dim: int | None = None

    def __str__(self) -> str:
        return f"{self.kind} {', '.join(map(str, self.types))}"

    def variants(self, real: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
        """Other tensors of these types."""
        if self.place is None:
            yield [torch.zeros_like(t) for t in real]
            yield [t.flip(0) if t.dim() else t for t in real]
            return
        changed = real[self.place]
        others = _resized(changed, self.dim) if self.dim is not None else _reranked(changed)
        for other in others:
            yield [*real[: self.place], other, *real[self.place + 1 :]]


def _questions(real: list[torch.Tensor]) -> Iterator[Question]:
    """The types to ask about: as they are; each dim of each tensor unknown; the rank of each unknown."""
    exact = _types(real)
    yield Question(KINDS[0], exact)
    for place, known in enumerate(exact):
        dims = known.dims or ()
        for dim in range(len(dims)):
            opened = TensorType(known.dtype, known.device, (*dims[:dim], None, *dims[dim + 1 :]))
            yield Question(KINDS[1], (*exact[:place], opened, *exact[place + 1 :]), place, dim)
    for place, known in enumerate(exact):
        opened = TensorType(known.dtype, known.device, None)
        yield Question(KINDS[2], (*exact[:place], opened, *exact[place + 1 :]), place)


def _types(tensors: list[torch.Tensor]) -> tuple[TensorType, ...]:
    return tuple(TensorType(t.dtype, t.device, tuple(t.shape)) for t in tensors)


def _resized(tensor: torch.Tensor, dim: int) -> Iterator[torch.Tensor]:
    """A tensor with other sizes of one dim, its own values repeated, for operators that care for them."""
    size = tensor.shape[dim]
    for other in sorted({1, 2, size + 1, 2 * size} - {size}):
        if size == 0:
            yield tensor.new_zeros([other if d == dim else s for d, s in enumerate(tensor.shape)])
        else:
            yield tensor.index_select(dim, torch.arange(other) % size)


def _reranked(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """A tensor with other ranks, its own values where there are such."""
    if tensor.dim() < 5:
        yield tensor.unsqueeze(0)
    if tensor.dim() > 1:
        yield tensor.flatten()
    if tensor.numel() and tensor.dim():
        yield tensor[0]
        yield tensor.flatten()[0]


# ---------------------------------------------------------------------- answers


def _judge_one(
    name: str,
    run: Callable[..., Any],
    results: list[tuple[tuple[TensorType, ...], Any]],
    shadows: list[Any],
    question: Question,
    tally: Tally,
) -> None:
    listed = _listed(question.types)
    tally.runs += len(results)
    fitting: list[Any] = []
    try:
        said = answer(run, question.types, {})
    except InfeasibleTypes as refused:
        tally.ours["wrong"] += 1
        tally.wrong.append(f"{name}({listed}) refused: {str(refused).splitlines()[0]}")
        return
    for place, (given, result) in enumerate(results):
        if _fits(said.type, result):
            fitting.append(result)
        elif place > 0 and _is_disputed(run, given, result):  # the first one is the sample's own
            tally.disputed.append(f"{name}({_listed(given)}) is {type_of(_plain(result))}")
        else:
            tally.ours["wrong"] += 1
            tally.wrong.append(f"{name}({listed}) is {type_of(_plain(result))}, not {said.type}")
            return
    grade = _grade(said.type)
    if grade != "known" and _differ(said.type, list(map(_plain, [*fitting, *shadows]))):
        grade = "as far as can be"
    tally.ours[grade] += 1
    if grade not in GRADES[:2]:
        tally.doubts[str(said.unknown_reason)] += 1


def _listed(types: tuple[TensorType, ...]) -> str:
    return ", ".join(map(str, types))


def _is_disputed(run: Callable[..., Any], given: tuple[TensorType, ...], result: Any) -> bool:
    """Whether torch's own fake kernel, asked about exactly this call, denies what the real one gave."""
    try:
        return not _fits(answer(run, given, {}).type, result)
    except InfeasibleTypes:
        return True


def _plain(value: Any) -> Any:
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


def _fits(found: Type, wanted: Any) -> bool:
    if isinstance(wanted, list | tuple) and isinstance(found, TupleType):
        return len(wanted) == len(found.items) and all(map(_fits, found.items, wanted))
    return contains(found, wanted)


def _grade(found: Type) -> str:
    if isinstance(found, TupleType):
        grades = [_grade(item) for item in found.items]
        return max(grades, key=GRADES.index) if grades else "known"
    if found is UNKNOWN:
        return "unknown"
    if isinstance(found, NumberType):
        return "known" if found.value is not None else "some dims unknown"
    if not isinstance(found, TensorType):
        return "known"
    if found.dims is None:
        return "rank unknown"
    return "known" if None not in found.dims and found.dtype is not None else "some dims unknown"


def _differ(found: Type, results: list[Any]) -> bool:
    """Whether real results differ in all that a type leaves open, so that nobody can say more."""
    if isinstance(found, TupleType):
        return all(_differ(item, [result[i] for result in results]) for i, item in enumerate(found.items))
    if isinstance(found, TensorType):
        if found.dtype is None and len({result.dtype for result in results}) == 1:
            return False
        if found.dims is None:
            return len({result.dim() for result in results}) > 1
        return all(dim is not None or len({r.shape[i] for r in results}) > 1 for i, dim in enumerate(found.dims))
    if isinstance(found, NumberType):
        return found.value is not None or len(set(results)) > 1
    # Several values, and not always as many; or a value now of one kind, now of another.
    return found is not UNKNOWN or len({_kind_of(result) for result in results}) > 1


def _kind_of(result: Any) -> Any:
    return len(result) if isinstance(result, tuple) else type(result)
