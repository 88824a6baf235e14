"""One fake kernel and arguments of known ranks: what it returns at some sizes, on symbols, and at all sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import sympy
import torch

from ingot import torch_internals as internals
from ingot.analysis.shape_inference.lattice import (
    UNKNOWN,
    Dim,
    LiteralType,
    NumberType,
    TensorType,
    TupleType,
    Type,
    complete,
    type_of,
)
from ingot.analysis.shape_inference.sample_join import agreed_type, forget_dims
from ingot.analysis.shape_inference.sample_sizes import (
    HUGE,
    SMALL,
    Limits,
    Sizes,
    first_sizes,
    holds,
    sizes_near,
    sizes_otherwise,
    value_of,
)

_WAYS = 16
_REFUSED_WAYS = 6
_ANY_SIZE: Limits = (0, None)
_ANY_NUMBER: Limits = (-(2**31), None)


class InfeasibleTypes(Exception):
    """An operator cannot work on values of these types, whatever their sizes; the cause is what it said."""


class UnknownReason(StrEnum):
    """Why a type says less than it might."""

    NOT_GIVEN = "an input is unknown: its dtype, its value, or more than two ranks"
    READS_VALUES = "its kernel reads values"
    NO_KERNEL = "it has no fake kernel for such arguments"
    KERNEL_FAILS = "its fake kernel fails for another reason than invalid arguments"
    NO_SIZES = "no valid sizes were found"
    SYMBOLS_REFUSED = "its kernel rejects symbols where it accepts numbers"
    A_RANK = "a rank was neither accepted nor proven impossible"
    MANY_WAYS = "too many size-dependent paths"
    RUNS_DIFFER = "results differ between sizes or ranks"


@dataclass(frozen=True, slots=True)
class InferredType:
    """A type; where it does not say everything, the main reason."""

    type: Type
    unknown_reason: UnknownReason | None = None


def attach_reason(type_: Type, reason: UnknownReason) -> InferredType:
    """The type, with the reason where it is not complete."""
    return InferredType(type_, None if complete(type_) else reason)


class CannotInfer(Exception):
    """A fake kernel does not say what it returns."""

    def __init__(self, doubt: UnknownReason) -> None:
        super().__init__(doubt)
        self.unknown_reason = doubt


def parts_of(value: Any) -> Sequence[Any] | None:
    if isinstance(value, TupleType):
        return value.items
    return value if isinstance(value, list | tuple) else None


@dataclass(slots=True)
class KernelEvaluation:
    """One call whose ranks are known. Its symbols are the program's, and one for each dim and number unknown."""

    function: Callable[[list[Any]], Any]
    values: list[Any]
    bounds: Mapping[str, Limits]
    on_meta: bool = True
    has_real: bool = False  # the function may be called on real tensors of the CPU
    symbols: dict[str, Limits] = field(default_factory=dict)
    own: dict[str, sympy.Symbol] = field(default_factory=dict)
    numbers: set[int] = field(default_factory=set)
    refusal: Exception | None = None
    _first: Sizes | None = None
    _at_first: Type = UNKNOWN
    _tried_usual: bool = False
    _searched: bool = False
    _tried: dict[tuple[int, ...], Type | None] = field(default_factory=dict)
    never: bool = False  # the kernel rejects sizes on every path
    _open_numbers: bool = False

    def __post_init__(self) -> None:
        self.values = [self._symbolize(value) for value in self.values]
        tensors = any(isinstance(leaf, TensorType) for leaf in leaves_of(self.values))
        devices = any(isinstance(leaf, torch.device) for leaf in leaves_of(self.values))
        # An operator that creates tensors creates real ones, on a device of its own choice.
        self.on_meta = self.on_meta and tensors and not devices

    def _symbolize(self, value: Any) -> Any:
        """A value in which every dim and number that is unknown is a symbol."""
        if isinstance(value, TensorType):
            if value.dtype is None:
                raise CannotInfer(UnknownReason.NOT_GIVEN)
            return TensorType(value.dtype, value.device, tuple(self._dim(d, _ANY_SIZE) for d in value.dims or ()))
        if isinstance(value, NumberType):
            if value.kind is int:
                return NumberType(int, self._dim(value.value, _ANY_NUMBER))
            self._open_numbers |= value.value is None
            return NumberType(value.kind, self._dim(value.value, _ANY_NUMBER) if value.value is not None else None)
        if value is UNKNOWN:
            raise CannotInfer(UnknownReason.NOT_GIVEN)
        parts = parts_of(value)
        if parts is not None:
            return [self._symbolize(part) for part in parts]
        if isinstance(value, int) and not isinstance(value, bool):
            self.numbers.add(abs(value))
        return value.value if isinstance(value, LiteralType) else value

    def _dim(self, value: Dim, unknown: Limits) -> Any:
        if value is None:
            name = f"?{len(self.symbols)}"  # which no other symbol has
            self.symbols[name] = unknown
            return sympy.Symbol(name, integer=True)
        if isinstance(value, sympy.Basic):
            for symbol in sorted(value.free_symbols, key=lambda s: str(s.name)):
                limits = self.bounds.get(symbol.name, unknown)
                self.symbols[symbol.name] = max(limits, self.symbols.get(symbol.name, limits), key=lambda at: at[0])
                self.own[symbol.name] = symbol
        elif isinstance(value, int):
            self.numbers.add(abs(value))
        return value

    # ------------------------------------------------------------------ on numbers

    def is_feasible_at_common_sizes(self) -> bool:
        """Whether there are sizes among the usual ones that the kernel takes."""
        if not self._tried_usual:
            self._tried_usual = True
            usual = first_sizes(self.symbols, sorted(self.numbers))
            self._first = next((sizes for sizes in usual if self._accepts(sizes)), None)
        return self._first is not None

    def is_feasible(self) -> bool:
        """Whether there are sizes that the kernel takes: usual ones, or those that its questions lead to."""
        if not self.is_feasible_at_common_sizes() and not self._searched:
            self._searched = True
            self._first = self._search_feasible_sizes()
        return self._first is not None

    def _accepts(self, sizes: Sizes) -> bool:
        """Whether sizes work. The meta device is not used any more once it accepts what fakes reject."""
        found = self._type_at(sizes)
        if found is None:
            return False
        if self.on_meta:
            try:
                found = self._on_fakes(sizes)
            except InfeasibleTypes:
                self._leave_meta()
                return False
        self._at_first = found
        return True

    def _leave_meta(self) -> None:
        self.on_meta = False
        self._tried.clear()

    def _search_feasible_sizes(self) -> Sizes | None:
        """Searches from rejected sizes to sizes that answer one of the kernel's questions differently, and so on.

        Among several symbols, sizes of 0 do not do: where nothing is computed checks are skipped, so that what is near
        such sizes does not show what others return. Of a single symbol everything is near.
        """
        ahead: list[Sizes] = [next(first_sizes(self.symbols, []))]
        refused: list[list[sympy.Basic]] = []
        every = True
        while ahead and len(refused) < _REFUSED_WAYS:
            sizes = ahead.pop(0)
            if any(holds(way, sizes) for way in refused):
                continue  # it goes the same way, to the same end
            try:
                self._on_symbols(sizes)
                return None  # numbers and symbols do not agree
            except _InfeasiblePath as impossible:
                asked = impossible.asked
            except CannotInfer:
                return None
            refused.append(asked)
            others, all_answers = sizes_otherwise(sizes, self.symbols, asked)
            every = every and all_answers
            for other in others:
                if not self._accepts(other):
                    continue
                if not self._is_empty(other):
                    return other
                every = False
            ahead = [*(other for other in others if self._type_at(other) is None), *ahead]
        self.never = every and all(any(holds(way, sizes) for way in refused) for sizes in ahead)
        return None

    def _is_empty(self, sizes: Sizes) -> bool:
        sizes_of_0 = any(size == 0 and self.symbols[name][0] >= 0 for name, size in sizes.items())
        return len(self.symbols) > 1 and sizes_of_0

    def type_at_first(self) -> Type:
        """The type at the first sizes that work."""
        assert self._first is not None
        return self._at_first

    def _type_at(self, sizes: Sizes) -> Type | None:
        """The type at these sizes, None where they are rejected; its devices may be the meta device."""
        key = tuple(sizes.values())
        if key not in self._tried:
            self._tried[key] = self._run_at(sizes)
        return self._tried[key]

    def _run_at(self, sizes: Sizes) -> Type | None:
        if self.on_meta:
            try:
                given = self._fill_arguments(sizes, _on_meta)
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
        except InfeasibleTypes as refused:
            self.refusal = self.refusal or refused
            return None
        except CannotInfer as cannot:
            if not isinstance(cannot.__cause__, _SLIPS):
                raise
            return self._on_nothing(sizes, cannot)

    def _on_nothing(self, sizes: Sizes, cannot: CannotInfer) -> Type | None:
        """What the operator itself returns for tensors of which one is empty, where its fake kernel fails on that."""
        tensors: list[torch.Tensor] = []

        def real(dims: list[int], dtype: torch.dtype, device: torch.device | None) -> torch.Tensor:
            if math.prod(dims) > HUGE:
                raise cannot
            tensors.append(torch.zeros(dims, dtype=dtype, device=device))
            return tensors[-1]

        given = self._fill_arguments(sizes, real) if self.has_real else None
        if given is None or all(tensor.numel() for tensor in tensors):
            raise cannot
        try:
            with torch.no_grad():
                return type_of(self.function(given))
        except RuntimeError as failure:
            self.refusal = self.refusal or failure
            return None

    def _on_fakes(self, sizes: Sizes) -> Type:
        run = internals.SymbolicRun({})
        return self._call(run, self._fill_arguments(sizes, run.tensor))

    def _fill_arguments(self, sizes: Sizes, tensor: Callable[..., torch.Tensor]) -> list[Any] | None:
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

    def answer(self) -> InferredType:
        """The type for all sizes."""
        if not self.symbols and not self._open_numbers:
            return attach_reason(self._on_fakes({}), UnknownReason.READS_VALUES)
        if not self.is_feasible():
            if not self.never or self.refusal is None:
                return InferredType(UNKNOWN, UnknownReason.NO_SIZES)
            raise InfeasibleTypes(str(self.refusal)) from self.refusal
        assert self._first is not None
        observed: list[Type] = []
        ways: list[list[sympy.Basic]] = []
        sizes: Sizes | None = self._first
        while sizes is not None and len(observed) < _WAYS:
            try:
                result, asked = self._on_symbols(sizes)
                observed.append(result)
                ways.append(asked)
            except _InfeasiblePath:
                if not self.on_meta or not observed or self._on_fakes_too(sizes):
                    raise
                self._leave_meta()
            worked = self._find_feasible_samples(ways)
            sizes = next((s for s, _ in worked if not self._is_path_known(s, ways)), None)
        found = agreed_type(worked, observed, self.own)
        if sizes is not None:
            return attach_reason(forget_dims(found), UnknownReason.MANY_WAYS)
        return attach_reason(
            found, UnknownReason.RUNS_DIFFER if all(map(complete, observed)) else UnknownReason.READS_VALUES
        )

    def _on_fakes_too(self, sizes: Sizes) -> bool:
        """Whether sizes that the meta device takes work on fakes."""
        try:
            self._on_fakes(sizes)
        except InfeasibleTypes:
            return False
        return True

    def _is_path_known(self, sizes: Sizes, ways: list[list[sympy.Basic]]) -> bool:
        """Whether the kernel was followed on the way that it goes at these sizes.

        A small size stands for itself, since all of them are tried: it may answer a question about itself differently.
        """
        small = {name for name, size in sizes.items() if size in SMALL}
        return any(
            all(value_of(asked, sizes) or {s.name for s in asked.free_symbols} <= small for asked in way)
            for way in ways
        )

    def _find_feasible_samples(self, ways: list[list[sympy.Basic]]) -> list[tuple[Sizes, Type]]:
        """Sizes near everything that was asked about, those that work, with what came of them."""
        assert self._first is not None
        asked = list(dict.fromkeys(condition for way in ways for condition in way))
        found: list[tuple[Sizes, Type]] = []
        for sizes in sizes_near(self._first, self.symbols, sorted(self.numbers), asked):
            result = self._type_at(sizes)
            if result is not None:
                found.append((sizes, result))
        return found

    def _on_symbols(self, sizes: Sizes) -> tuple[Type, list[sympy.Basic]]:
        run = internals.SymbolicRun({name: (sizes[name], *limits) for name, limits in self.symbols.items()})

        def real(value: Any) -> Any:
            if isinstance(value, TensorType):
                assert value.dtype is not None
                for dim in value.dims or ():
                    if isinstance(dim, sympy.Basic) and not value_of(dim >= 0, sizes):
                        raise _InfeasiblePath([dim < 0])
                return run.tensor(value.dims or (), value.dtype, value.device)
            if isinstance(value, NumberType):
                if value.value is None:
                    return run.some(value.kind)
                return run.number(value.value) if isinstance(value.value, sympy.Basic) else value.value
            return [real(item) for item in value] if isinstance(value, list) else value

        try:
            found = self._call(run, [real(value) for value in self.values])
        except InfeasibleTypes as refused:
            raise _InfeasiblePath(run.conditions()) from refused.__cause__
        return found, run.conditions()

    def _call(self, run: internals.SymbolicRun, given: list[Any] | None) -> Type:
        if given is None:
            raise InfeasibleTypes("there is no tensor of such sizes")
        try:
            return type_of(run.call(self.function, [given], {}), run.rename_symbols)
        except Exception as failure:
            if not _is_refusal(failure):
                raise CannotInfer(_doubt_about(failure)) from failure
            self.refusal = self.refusal or failure
            raise InfeasibleTypes(str(failure)) from failure


class _NoSuchTensor(Exception):
    """An expression gives no size, or one below 0."""


class _InfeasiblePath(CannotInfer):
    """A kernel rejects symbols; `asked` is what it asked before."""

    def __init__(self, asked: list[sympy.Basic]) -> None:
        super().__init__(UnknownReason.SYMBOLS_REFUSED)
        self.asked = asked


def leaves_of(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from leaves_of(item)
    else:
        yield value


def _on_meta(sizes: list[int], dtype: torch.dtype, device: torch.device | None) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype, device="meta")


# What Python code raises that does not expect a size of 0: a bug of a fake kernel, not a rejection.
_SLIPS = (TypeError, ZeroDivisionError)

# What only a tensor without values says.
_VALUELESS = ("data pointer", "not allocated", "storage", "fake", "meta")


def _is_refusal(failure: Exception) -> bool:
    """Whether an operator rejected its arguments, rather than failed to infer."""
    if isinstance(failure, internals.CANNOT_TELL) or not isinstance(failure, RuntimeError | IndexError | ValueError):
        return False
    said = str(failure).lower()
    return "overflow" in said or not any(word in said for word in _VALUELESS)


def _doubt_about(failure: Exception) -> UnknownReason:
    """What a failure means that does not reject the arguments."""
    if isinstance(failure, internals.NO_KERNEL):
        return UnknownReason.NO_KERNEL
    valueless = any(word in str(failure).lower() for word in _VALUELESS)
    return (
        UnknownReason.READS_VALUES
        if isinstance(failure, internals.READS_VALUES) or valueless
        else UnknownReason.KERNEL_FAILS
    )
