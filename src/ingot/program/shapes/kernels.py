"""The type of what an operator returns, from its own fake kernel.

There is no table of shape rules here. Where sizes are unknown or symbols, the kernel is asked twice over:

- on symbols, once for each way that sizes make it go: it says what it returns as expressions of them, and every
  condition on sizes that it asks about on its way;
- on numbers, many of them: at and beside every place where one of those conditions changes its answer (sizes.py).

What is said of a dim is an expression that gives the right number in every run that worked. A run in which the kernel
refuses the sizes counts for nothing, since no real call gets past it. Where there are more ways than are followed, dims
are unknown; where a kernel cannot run on symbols, so is everything.

    add(f32[?], f32[3])     1 and 3 work, and give 3                        so f32[3]
    add(f32[?], f32[n])     1 and n work and give n; so does 5 if n is 1    so f32[?]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import sympy
import torch

from ingot import torch_internals as internals
from ingot.program.shapes.lattice import (
    UNKNOWN,
    Dim,
    Literal,
    NumberType,
    TensorType,
    TupleType,
    Type,
    join,
    sizeless,
    type_of,
)
from ingot.program.shapes.sizes import SMALL, Limits, Sizes, first_sizes, holds, sizes_near, sizes_otherwise, value_of

# A tensor whose rank is unknown is tried with each of these; where two ranks are, with each pair.
RANKS = range(6)
_MOST_OPEN = 2
_WAYS = 6
_ANY_SIZE: Limits = (0, None)
_ANY_NUMBER: Limits = (-(2**31), None)

T = TypeVar("T")
Bounds = Mapping[sympy.Symbol, tuple[int, int | None]]


class Refused(Exception):
    """An operator cannot work on values of these types, whatever their sizes; the cause is what it said."""


class _CannotTell(Exception):
    """A fake kernel does not say what it returns."""


def result_type(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    bounds: Bounds | None = None,
    on_meta: bool = True,
) -> Type:
    """The type of what `function` returns; arguments that are values of the run are given by their types.

    `bounds` are the ranges of symbols; one without is 0 or more. `on_meta` False: the function behaves differently on
    torch's meta device, which is the quick way to run on numbers. Raises Refused where no sizes at all are possible.
    """
    limits = {symbol.name: range_ for symbol, range_ in (bounds or {}).items()}
    values = [*args, *kwargs.values()]

    def call(given: list[Any]) -> Any:
        return function(*given[: len(args)], **dict(zip(kwargs, given[len(args) :], strict=True)))

    try:
        kernels = [_Kernel(call, ranked, limits, on_meta) for ranked in _ranked(values)]
        if len(kernels) == 1:
            return kernels[0].type()
        kernels = [kernel for kernel in kernels if kernel.works() or not kernel.never]
        if not kernels or not all(kernel.works() for kernel in kernels):
            return UNKNOWN
        quick = _joined(kernel.type_at_first() for kernel in kernels)
        return quick if sizeless(quick) else _joined(kernel.type() for kernel in kernels)
    except _CannotTell:
        return UNKNOWN


def _joined(types: Iterator[Type]) -> Type:
    found = next(types)
    for other in types:
        found = join(found, other)
    return found


def _ranked(values: list[Any]) -> list[list[Any]]:
    """The values with each unknown rank replaced by each possible one."""
    count = sum(_open_ranks(value) for value in values)
    if count > _MOST_OPEN:
        raise _CannotTell
    return [_with_ranks(values, iter(ranks)) for ranks in itertools.product(RANKS, repeat=count)]


def _open_ranks(value: Any) -> int:
    if isinstance(value, TensorType):
        return value.dims is None
    return sum(map(_open_ranks, _parts(value) or ()))


def _with_ranks(value: Any, ranks: Iterator[int]) -> Any:
    if isinstance(value, TensorType):
        return value if value.dims is not None else TensorType(value.dtype, value.device, (None,) * next(ranks))
    parts = _parts(value)
    return value if parts is None else [_with_ranks(part, ranks) for part in parts]


def _parts(value: Any) -> Sequence[Any] | None:
    if isinstance(value, TupleType):
        return value.items
    return value if isinstance(value, list | tuple) else None


# ---------------------------------------------------------------------- one kernel, all ranks known


@dataclass(slots=True)
class _Kernel:
    """One call whose ranks are known. Its symbols are the program's, and one for each dim and number unknown."""

    function: Callable[[list[Any]], Any]
    values: list[Any]
    bounds: Mapping[str, Limits]
    on_meta: bool = True
    symbols: dict[str, Limits] = field(default_factory=dict)
    own: dict[str, sympy.Symbol] = field(default_factory=dict)
    numbers: set[int] = field(default_factory=set)
    refusal: Exception | None = None
    _first: Sizes | None = None
    _searched: bool = False
    _tried: dict[tuple[int, ...], Type | None] = field(default_factory=dict)
    never: bool = False  # whatever the kernel asks about sizes, it refuses them
    _open_numbers: bool = False

    def __post_init__(self) -> None:
        self.values = [self._posed(value) for value in self.values]
        tensors = any(isinstance(leaf, TensorType) for leaf in _leaves(self.values))
        devices = any(isinstance(leaf, torch.device) for leaf in _leaves(self.values))
        # What makes tensors of its own makes them on a device of its own, and real ones at that.
        self.on_meta = self.on_meta and tensors and not devices

    def _posed(self, value: Any) -> Any:
        """A value in which every dim and number that is unknown is a symbol."""
        if isinstance(value, TensorType):
            if value.dtype is None:
                raise _CannotTell
            return TensorType(value.dtype, value.device, tuple(self._dim(d, _ANY_SIZE) for d in value.dims or ()))
        if isinstance(value, NumberType):
            if value.kind is int:
                return NumberType(int, self._dim(value.value, _ANY_NUMBER))
            self._open_numbers |= value.value is None
            return NumberType(value.kind, self._dim(value.value, _ANY_NUMBER) if value.value is not None else None)
        if value is UNKNOWN:
            raise _CannotTell
        parts = _parts(value)
        if parts is not None:
            return [self._posed(part) for part in parts]
        if isinstance(value, int) and not isinstance(value, bool):
            self.numbers.add(abs(value))
        return value.value if isinstance(value, Literal) else value

    def _dim(self, value: Dim, unknown: Limits) -> Any:
        if value is None:
            name = f"unknown{len(self.symbols)}"
            self.symbols[name] = unknown
            return sympy.Symbol(name, integer=True)
        if isinstance(value, sympy.Basic):
            for symbol in sorted(value.free_symbols, key=lambda s: str(s.name)):
                self.symbols[symbol.name] = self.bounds.get(symbol.name, _ANY_SIZE)
                self.own[symbol.name] = symbol
        elif isinstance(value, int):
            self.numbers.add(abs(value))
        return value

    # ------------------------------------------------------------------ on numbers

    def works(self) -> bool:
        """Whether there are sizes that the kernel takes: usual ones, or those that its questions lead to."""
        if self._first is None and not self._searched:
            self._searched = True
            usual = first_sizes(self.symbols, sorted(self.numbers))
            self._first = next((sizes for sizes in usual if self._takes(sizes)), None)
            if self._first is None:
                self._first = self._led_to()
        return self._first is not None

    def _takes(self, sizes: Sizes) -> bool:
        """Whether sizes work. The meta device is believed no more where it takes what fakes refuse."""
        if self._at(sizes) is None:
            return False
        if self.on_meta:
            try:
                self._on_fakes(sizes)
            except Refused:
                self.on_meta = False
                self._tried.clear()
                return False
        return True

    def _led_to(self) -> Sizes | None:
        """From sizes that are refused to such as answer one of the kernel's questions differently, and so on."""
        ahead: list[Sizes] = [next(first_sizes(self.symbols, []))]
        refused: list[list[sympy.Basic]] = []
        every = True
        while ahead and len(refused) < _WAYS:
            sizes = ahead.pop(0)
            if any(holds(way, sizes) for way in refused):
                continue  # it goes the same way, to the same end
            try:
                self._on_symbols(sizes)
                return None  # numbers and symbols do not agree
            except _Impossible as impossible:
                asked = impossible.asked
            except _CannotTell:
                return None
            refused.append(asked)
            others, all_answers = sizes_otherwise(sizes, self.symbols, asked)
            every = every and all_answers
            for other in others:
                if self._takes(other):
                    return other
            ahead = [*others, *ahead]
        self.never = every and all(any(holds(way, sizes) for way in refused) for sizes in ahead)
        return None

    def type_at_first(self) -> Type:
        """The type at the first sizes that work."""
        assert self._first is not None
        return self._on_fakes(self._first)

    def _at(self, sizes: Sizes) -> Type | None:
        """What comes of these sizes, None where they are refused; its devices may be the meta device."""
        key = tuple(sizes.values())
        if key not in self._tried:
            self._tried[key] = self._run_at(sizes)
        return self._tried[key]

    def _run_at(self, sizes: Sizes) -> Type | None:
        if self.on_meta:
            try:
                given = self._filled(sizes, _on_meta)
                if given is None:
                    return None
                with torch.no_grad():
                    return type_of(self.function(given))
            except Exception as failure:
                if _is_refusal(failure):
                    self.refusal = self.refusal or failure
                    return None
                self.on_meta = False
        try:
            return self._on_fakes(sizes)
        except Refused as refused:
            self.refusal = self.refusal or refused
            return None

    def _on_fakes(self, sizes: Sizes) -> Type:
        run = internals.SymbolicRun({})
        return self._called(run, self._filled(sizes, run.tensor))

    def _filled(self, sizes: Sizes, tensor: Callable[..., torch.Tensor]) -> list[Any] | None:
        """The arguments at these sizes; None where there is no such tensor."""

        def real(value: Any) -> Any:
            if isinstance(value, TensorType):
                dims = [value_of(dim, sizes) for dim in value.dims or ()]
                if not all(dim is not None and dim >= 0 for dim in dims):
                    raise _NoSuchTensor
                return tensor(dims, value.dtype, value.device)
            if isinstance(value, NumberType):
                return value_of(value.value, sizes) if value.value is not None else value.kind(0.7)
            return [real(item) for item in value] if isinstance(value, list) else value

        try:
            return [real(value) for value in self.values]
        except _NoSuchTensor:
            return None

    # ------------------------------------------------------------------ on symbols

    def type(self) -> Type:
        """The type for all sizes."""
        if not self.symbols and not self._open_numbers:
            return self._on_fakes({})
        if not self.works():
            if not self.never or self.refusal is None:
                return UNKNOWN
            raise Refused(str(self.refusal)) from self.refusal
        assert self._first is not None
        told: list[Type] = []
        ways: list[list[sympy.Basic]] = []
        sizes: Sizes | None = self._first
        while sizes is not None and len(told) < _WAYS:
            result, asked = self._on_symbols(sizes)
            told.append(result)
            ways.append(asked)
            worked = self._worked(ways)
            sizes = next((s for s, _ in worked if not self._known(s, ways)), None)
        found = _agreed(worked, told, self.own)
        return found if sizes is None else _dims_forgotten(found)

    def _known(self, sizes: Sizes, ways: list[list[sympy.Basic]]) -> bool:
        """Whether the kernel was followed on the way that it goes at these sizes.

        A small size stands for itself, since all of them are tried: it may answer a question about itself differently.
        """
        small = {name for name, size in sizes.items() if size in SMALL}
        return any(
            all(value_of(asked, sizes) or {s.name for s in asked.free_symbols} <= small for asked in way)
            for way in ways
        )

    def _worked(self, ways: list[list[sympy.Basic]]) -> list[tuple[Sizes, Type]]:
        """Sizes near everything that was asked about, those that work, with what came of them."""
        assert self._first is not None
        asked = list(dict.fromkeys(condition for way in ways for condition in way))
        found: list[tuple[Sizes, Type]] = []
        for sizes in sizes_near(self._first, self.symbols, sorted(self.numbers), asked):
            result = self._at(sizes)
            if result is not None:
                found.append((sizes, result))
        return found

    def _on_symbols(self, sizes: Sizes) -> tuple[Type, list[sympy.Basic]]:
        run = internals.SymbolicRun({name: (sizes[name], *limits) for name, limits in self.symbols.items()})

        def real(value: Any) -> Any:
            if isinstance(value, TensorType):
                assert value.dtype is not None
                return run.tensor(value.dims or (), value.dtype, value.device)
            if isinstance(value, NumberType):
                if value.value is None:
                    return run.some(value.kind)
                return run.number(value.value) if isinstance(value.value, sympy.Basic) else value.value
            return [real(item) for item in value] if isinstance(value, list) else value

        try:
            found = self._called(run, [real(value) for value in self.values])
        except Refused as refused:
            raise _Impossible(run.conditions()) from refused.__cause__
        return found, run.conditions()

    def _called(self, run: internals.SymbolicRun, given: list[Any] | None) -> Type:
        if given is None:
            raise Refused("there is no tensor of such sizes")
        try:
            return type_of(run.call(self.function, [given], {}), run.named)
        except Exception as failure:
            if not _is_refusal(failure):
                raise _CannotTell from failure
            self.refusal = self.refusal or failure
            raise Refused(str(failure)) from failure


class _NoSuchTensor(Exception):
    """An expression gives no size, or one below 0."""


class _Impossible(_CannotTell):
    """A kernel refuses on symbols; `asked` is what it asked before."""

    def __init__(self, asked: list[sympy.Basic]) -> None:
        super().__init__()
        self.asked = asked


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _on_meta(sizes: list[int], dtype: torch.dtype, device: torch.device | None) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype, device="meta")


# What only a tensor without values says.
_VALUELESS = ("data pointer", "not allocated", "storage", "fake", "meta")


def _is_refusal(failure: Exception) -> bool:
    """Whether an operator said that it cannot work on such arguments, and not that it cannot say."""
    if isinstance(failure, internals.CANNOT_TELL) or not isinstance(failure, RuntimeError | IndexError | ValueError):
        return False
    said = str(failure).lower()
    return "overflow" in said or not any(word in said for word in _VALUELESS)


# ---------------------------------------------------------------------- what the runs agree on


def _agreed(worked: list[tuple[Sizes, Type]], told: list[Type], own: Mapping[str, sympy.Symbol]) -> Type:
    """The type that is right at all sizes; what symbols told of dims is believed where numbers bear it out."""
    sizes = [sizes for sizes, _ in worked]

    def one(values: list[Any], candidates: list[Any]) -> Any:
        for candidate in dict.fromkeys([*candidates, *own.values()]):
            symbols = candidate.free_symbols if isinstance(candidate, sympy.Basic) else ()
            if candidate is None or not all(s.name in own for s in symbols):
                continue
            if all(v is not None and value_of(candidate, s) == v for v, s in zip(values, sizes, strict=True)):
                return candidate
        return None

    def agreed(found: list[Type], told: list[Type]) -> Type:
        if (tensors := _all(TensorType, found, told)) is not None:
            return of_tensors(*tensors)
        if (tuples := _all(TupleType, found, told)) is not None:
            (mine, theirs), length = tuples, len(tuples[1][0].items)
            if any(len(t.items) != length for t in (*mine, *theirs)):
                return UNKNOWN
            return TupleType(
                tuple(agreed([f.items[i] for f in mine], [t.items[i] for t in theirs]) for i in range(length))
            )
        if (numbers := _all(NumberType, found, told)) is not None:
            (got, said), kind = numbers, numbers[1][0].kind
            if any(n.kind is not kind for n in (*got, *said)):
                return UNKNOWN
            return NumberType(kind, one([_plain(f.value) for f in got], [t.value for t in said]))
        return told[0] if all(t == told[0] for t in (*found, *told)) else UNKNOWN

    def of_tensors(found: list[TensorType], told: list[TensorType]) -> Type:
        upper = _joined(iter(told))
        assert isinstance(upper, TensorType)
        dtype = upper.dtype if all(f.dtype is upper.dtype for f in found) else None
        if len({t.rank for t in (*found, *told)}) > 1:
            return TensorType(dtype, upper.device, None)
        columns = zip(*(f.dims or () for f in found), strict=True), zip(*(t.dims or () for t in told), strict=True)
        dims = [one([_plain(dim) for dim in mine], list(theirs)) for mine, theirs in zip(*columns, strict=True)]
        return TensorType(dtype, upper.device, tuple(dims))

    return agreed([result for _, result in worked], told)


def _all(kind: type[T], found: list[Type], told: list[Type]) -> tuple[list[T], list[T]] | None:
    """Both lists, if everything in them is of this kind."""
    mine: list[T] = [t for t in found if isinstance(t, kind)]
    theirs: list[T] = [t for t in told if isinstance(t, kind)]
    return (mine, theirs) if len(mine) == len(found) and len(theirs) == len(told) else None


def _plain(value: Any) -> Any:
    """A number; None where only the run finds it out."""
    return None if isinstance(value, sympy.Basic) else value


def _dims_forgotten(type_: Type) -> Type:
    if isinstance(type_, TensorType):
        return TensorType(type_.dtype, type_.device, None if type_.dims is None else (None,) * len(type_.dims))
    if isinstance(type_, TupleType):
        return TupleType(tuple(map(_dims_forgotten, type_.items)))
    return NumberType(type_.kind) if isinstance(type_, NumberType) else type_
