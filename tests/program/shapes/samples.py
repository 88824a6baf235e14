"""torch's own operator samples: the inferred type against the real result, beside TorchScript's shape pass."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ingot.program import tree
from ingot.program.shapes.kernels import Refused, result_type
from ingot.program.shapes.lattice import UNKNOWN, NumberType, TensorType, TupleType, Type, contains, type_of


@dataclass
class Tally:
    """What became of one kind of question: "known" is a result whose dtype, rank and every dim were told."""

    ours: Counter[str] = field(default_factory=Counter)
    theirs: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


KINDS = ("all dims known", "one dim unknown", "rank unknown")


def operators() -> list[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if torch.float32 in op.supported_dtypes("cpu")]


def judge(op: Any, tally: dict[str, Tally], most: int | None = None, scripts: bool = True) -> int:
    """Judges an operator's float32 samples, each kind of arguments once; returns how many samples there were."""
    seen: set[str] = set()
    count = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in _samples(op):
            if most is not None and count == most:
                break
            count += 1
            leaves, shape = tree.flatten((sample.input, sample.args, sample.kwargs))
            tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
            plain = all(leaves[i].layout is torch.strided and not leaves[i].is_quantized for i in tensors)
            if not tensors or not plain:
                continue

            def run(*values: Any, shape: Any = shape, leaves: list[Any] = leaves, tensors: list[int] = tensors) -> Any:
                filled = list(leaves)
                for place, value in zip(tensors, values, strict=True):
                    filled[place] = value
                first, args, kwargs = tree.unflatten(filled, shape)
                return op.op(first, *args, **kwargs)

            real = [leaves[i].detach() for i in tensors]
            others = [leaf for i, leaf in enumerate(leaves) if i not in tensors]
            questions = [(kind, types) for kind, types in _questions(real) if f"{kind}{types}{others}" not in seen]
            if not questions:
                continue
            seen.update(f"{kind}{types}{others}" for kind, types in questions)
            try:
                wanted = run(*(t.clone() for t in real))
            except Exception:
                tally[KINDS[0]].ours["does not run"] += 1
                continue
            for kind, types in questions:
                _judge_one(f"{op.name}{op.variant_test_name}", run, wanted, types, tally[kind])
            if scripts and questions[0][0] == KINDS[0]:
                _judge_script(run, real, wanted, tally[KINDS[0]])
    return count


def _samples(op: Any) -> Iterator[Any]:
    torch.manual_seed(0)
    with contextlib.suppress(Exception):
        yield from op.sample_inputs("cpu", torch.float32)


def _questions(real: list[torch.Tensor]) -> Iterator[tuple[str, list[TensorType]]]:
    """The types to ask about: as they are; each dim of each tensor unknown; the rank of each unknown."""
    exact = [TensorType(t.dtype, t.device, tuple(t.shape)) for t in real]
    yield KINDS[0], exact
    for place, known in enumerate(exact):
        dims = known.dims or ()
        for dim in range(len(dims)):
            opened = TensorType(known.dtype, known.device, (*dims[:dim], None, *dims[dim + 1 :]))
            yield KINDS[1], [*exact[:place], opened, *exact[place + 1 :]]
    for place, known in enumerate(exact):
        yield KINDS[2], [*exact[:place], TensorType(known.dtype, known.device, None), *exact[place + 1 :]]


def _judge_one(name: str, run: Callable[..., Any], wanted: Any, types: list[TensorType], tally: Tally) -> None:
    told = ", ".join(map(str, types))
    try:
        found = result_type(run, types, {})
    except Refused as refused:
        tally.ours["wrong"] += 1
        tally.wrong.append(f"{name}({told}) refused: {str(refused).splitlines()[0]}")
        return
    if not _fits(found, wanted):
        tally.ours["wrong"] += 1
        tally.wrong.append(f"{name}({told}) is {type_of(_plain(wanted))}, not {found}")
        return
    tally.ours[_grade(found)] += 1


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


GRADES = ("known", "some dims unknown", "rank unknown", "unknown")


# ---------------------------------------------------------------------- TorchScript's own pass


def _judge_script(run: Callable[..., Any], real: list[torch.Tensor], wanted: Any, tally: Tally) -> None:
    """torch.jit's shape analysis of the traced call, every dim of every argument known."""
    try:
        graph = torch.jit.trace(run, tuple(real), check_trace=False).graph
        torch._C._jit_pass_inline(graph)
        torch._C._jit_pass_erase_shape_information(graph)
        torch._C._jit_pass_complete_shape_analysis(graph, tuple(real), False)
    except Exception:
        tally.theirs["refused"] += 1
        return
    kinds = [out.type() for out in graph.outputs()]
    leaves = [leaf for leaf in tree.flatten(wanted)[0] if isinstance(leaf, torch.Tensor)]
    if len(kinds) == 1 and kinds[0].kind() == "TupleType":
        kinds = kinds[0].elements()
    if len(kinds) != len(leaves) or any(kind.kind() != "TensorType" for kind in kinds):
        tally.theirs["unknown"] += 1
        return
    grades = []
    for kind, leaf in zip(kinds, leaves, strict=True):
        sizes, dtype, rank = kind.sizes(), kind.dtype(), kind.dim()
        if (
            (sizes is not None and list(sizes) != list(leaf.shape))
            or (dtype is not None and dtype is not leaf.dtype)
            or (rank is not None and rank != leaf.dim())
        ):
            grades.append("wrong")
        elif rank is None:
            grades.append("unknown" if dtype is None else "rank unknown")
        else:
            grades.append("known" if sizes is not None and dtype is not None else "some dims unknown")
    tally.theirs[max(grades, key=(*GRADES, "wrong").index) if grades else "known"] += 1
