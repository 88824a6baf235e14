"""Values as JSON, and a reader that takes nothing on trust.

    plain      := null | bool | int | float | text | [plain, …] | {tag: …}
    tag        := float (inf, nan) | complex | bytes | dtype | device | layout | memory_format | tuple | dict | slice
                | ellipsis
    value      := plain | {"tensor": …} | {"symint": expression} | {"symfloat": …} | {"symbool": …}
    expression := int | float | bool | symbol | [operation, expression, …]

A list is a list and a tuple is a tuple again, 1.0 is not 1, and -0.0 keeps its sign. `Cursor` walks what a file says
and knows where it is, so that whatever is wrong is reported by its place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import sympy
import torch

from ingot import torch_internals as internals
from ingot.ir import symbolic_dims
from ingot.registry import Registry

Json = Any
T = TypeVar("T")

_SHOWN = 60
_INDEX_LIMIT = 2**63
RANK_LIMIT = 64
_DEVICE = re.compile(r"[a-z]+(:[0-9]{1,3})?")
SYMBOL = re.compile(r"(s\w+|u\d+|zuf\d+)", re.ASCII)


class Unwritable(Exception):
    """A file cannot hold this; the message says what it is."""


class Malformed(Exception):
    """What a file says is not what Ingot writes; the message says where."""


# ---------------------------------------------------------------------- reading


class Cursor:
    """A place in a JSON document. Every method checks what is there, and raises Malformed."""

    __slots__ = ("_key", "_parent", "value")

    def __init__(self, value: Json, parent: Cursor | None = None, key: str | int = "") -> None:
        self.value = value
        self._parent = parent
        self._key = key

    @property
    def path(self) -> str:
        if self._parent is None:
            return "the document"
        step = f"[{self._key}]" if isinstance(self._key, int) else f".{self._key}"
        return step.removeprefix(".") if self._parent._parent is None else self._parent.path + step

    def wrong(self, expected: str) -> NoReturn:
        shown = repr(self.value)
        raise Malformed(f"{self.path} is {shown[:_SHOWN]}{'…' if len(shown) > _SHOWN else ''}, not {expected}")

    def text(self) -> str:
        return self.value if isinstance(self.value, str) else self.wrong("a text")

    def matching(self, pattern: re.Pattern[str], expected: str) -> str:
        text = self.text()
        return text if pattern.fullmatch(text) else self.wrong(expected)

    def boolean(self) -> bool:
        return self.value if isinstance(self.value, bool) else self.wrong("true or false")

    def integer(self, low: int = -_INDEX_LIMIT, high: int = _INDEX_LIMIT - 1) -> int:
        value = self.value
        return value if type(value) is int and low <= value <= high else self.wrong(f"a number from {low} to {high}")

    def one_of(self, known: dict[str, T], expected: str) -> T:
        return known[self.value] if isinstance(self.value, str) and self.value in known else self.wrong(expected)

    def optional(self, read: Callable[[Cursor], T]) -> T | None:
        return None if self.value is None else read(self)

    def items(self, count: int | None = None) -> list[Cursor]:
        if not isinstance(self.value, list) or count not in (None, len(self.value)):
            self.wrong("a list" if count is None else f"a list of {count}")
        return [Cursor(item, self, index) for index, item in enumerate(self.value)]

    def fields(self, *names: str) -> list[Cursor]:
        """The fields of an object that has these and no others; a name that ends in "?" may be absent, and is null."""
        known = [name.removesuffix("?") for name in names]
        given = self.value
        if not isinstance(given, dict) or not given.keys() <= set(known):
            self.wrong(f"an object of {', '.join(known)}")
        for name in names:
            if name not in given and not name.endswith("?"):
                self.wrong(f"an object with {name}")
        return [Cursor(given.get(name), self, name) for name in known]

    def read_tag(self) -> tuple[str, Cursor]:
        """The one field of an object that has one."""
        if not isinstance(self.value, dict) or len(self.value) != 1:
            self.wrong("a value")
        ((tag, inner),) = self.value.items()
        return tag, Cursor(inner, self, tag)


def identifiers(cursor: Cursor, what: str) -> str:
    """A name that may stand in generated Python code."""
    text = cursor.text()
    return text if text.isascii() and text.isidentifier() else cursor.wrong(f"the name of {what}")


# ---------------------------------------------------------------------- plain values


def _list_constants(kind: type[T], prefix: str = "torch.") -> dict[str, T]:
    found = {str(value).removeprefix(prefix): value for value in vars(torch).values() if isinstance(value, kind)}
    return dict(sorted(found.items()))


DTYPES = _list_constants(torch.dtype)
_LAYOUTS = _list_constants(torch.layout)
_FORMATS = _list_constants(torch.memory_format)
_KEYS = (type(None), bool, int, float, str)

Write = Callable[[Any], Json]
Read = Callable[[str, Cursor], Any]


def _no_more(value: Any) -> Json:
    raise Unwritable(f"a {type(value).__module__}.{type(value).__qualname__}")


def write_plain(value: Any, other: Write = _no_more) -> Json:
    """A plain value as JSON; what is not plain goes to `other`, which raises Unwritable for what it does not know."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, list):
        return [write_plain(item, other) for item in value]
    if kind is tuple or kind is torch.Size:
        return {"tuple": [write_plain(item, other) for item in value]}
    if isinstance(value, dict):
        if not all(type(key) in _KEYS for key in value):
            raise Unwritable("a dict with keys that are neither text nor numbers")
        return {"dict": [[write_plain(key), write_plain(item, other)] for key, item in value.items()]}
    if kind is slice:
        return {"slice": [write_plain(part, other) for part in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"ellipsis": True}
    if kind is complex:
        return {"complex": [write_plain(value.real), write_plain(value.imag)]}
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind in (torch.dtype, torch.layout, torch.memory_format):
        return {kind.__name__: str(value).removeprefix("torch.")}
    if kind is torch.device:
        return {"device": str(value)}
    return other(value)


def _reject(tag: str, cursor: Cursor) -> NoReturn:
    cursor.wrong("a value of a known kind")


_READERS: Registry[str, Callable[[Cursor], Any]] = Registry("reader")


def read_plain(cursor: Cursor, other: Read = _reject) -> Any:
    """The value that `write_plain` wrote; tags that are not its own go to `other`."""
    value = cursor.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [read_plain(item, other) for item in cursor.items()]
    tag, inner = cursor.read_tag()
    if tag == "tuple":
        return tuple(read_plain(item, other) for item in inner.items())
    if tag == "dict":
        return dict(_read_pair(pair, other) for pair in inner.items())
    if tag == "slice":
        return slice(*(read_plain(part, other) for part in inner.items(3)))
    reader = _READERS.get(tag)
    return other(tag, inner) if reader is None else reader(inner)


def _read_pair(pair: Cursor, other: Read) -> tuple[Any, Any]:
    key, value = pair.items(2)
    found = read_plain(key)
    return (found if type(found) in _KEYS else key.wrong("a key")), read_plain(value, other)


@_READERS.register("float")
def _read_float(cursor: Cursor) -> float:
    if isinstance(cursor.value, float):
        return cursor.value
    return cursor.one_of({text: float(text) for text in ("inf", "-inf", "nan")}, "inf, -inf or nan")


@_READERS.register("complex")
def _read_complex(cursor: Cursor) -> complex:
    real, imaginary = cursor.items(2)
    parts = [read_plain(part) for part in (real, imaginary)]
    return complex(*parts) if all(isinstance(part, float) for part in parts) else cursor.wrong("two floats")


@_READERS.register("bytes")
def _read_bytes(cursor: Cursor) -> bytes:
    return bytes.fromhex(cursor.matching(re.compile("([0-9a-f]{2})*"), "bytes in hexadecimal"))


@_READERS.register("device")
def read_device(cursor: Cursor) -> torch.device:
    text = cursor.matching(_DEVICE, "a device")
    try:
        return torch.device(text)
    except RuntimeError:
        cursor.wrong("a device that this torch knows")


@_READERS.register("dtype")
def read_dtype(cursor: Cursor) -> torch.dtype:
    return cursor.one_of(DTYPES, "a dtype")


_READERS.register("layout")(lambda cursor: cursor.one_of(_LAYOUTS, "a layout"))
_READERS.register("memory_format")(lambda cursor: cursor.one_of(_FORMATS, "a memory format"))
_READERS.register("ellipsis")(lambda cursor: Ellipsis if cursor.boolean() else cursor.wrong("true"))


# ---------------------------------------------------------------------- sizes and the values of nodes


class ValueWriter:
    """Writes the values of nodes, and remembers the symbols that it met."""

    def __init__(self) -> None:
        self._symbols: set[sympy.Symbol] = set()
        self._env: internals.ShapeEnv | None = None

    def write(self, value: Any) -> Json:
        return write_plain(value, self._write_other)

    def expression(self, expr: sympy.Basic) -> Json:
        """An expression as it is, argument for argument: sympy would write an equal one otherwise."""
        if isinstance(expr, sympy.Symbol):
            self.meet(expr)
            return expr.name
        if expr in (sympy.true, sympy.false):
            return bool(expr)
        if isinstance(expr, sympy.Integer):
            return int(expr)
        if isinstance(expr, sympy.Float) and math.isfinite(expr):
            return float(expr)
        parts = expr.as_numer_denom() if isinstance(expr, sympy.Rational) else expr.args
        name = _OPERATION_NAMES.get(sympy.Rational if isinstance(expr, sympy.Rational) else type(expr))
        if name is None:
            raise Unwritable(f"a size computed in a way that has no name, {type(expr).__name__} in {expr}")
        return [name, *(self.expression(part) for part in parts)]

    def meet(self, *symbols: sympy.Symbol) -> None:
        """The file will say what is known of these symbols."""
        self._symbols.update(symbols)

    def symbols(self) -> Json:
        """What must be known of each symbol met so far, in an order that does not depend on hashes."""
        found = sorted(self._symbols, key=lambda s: (s.name.rstrip("0123456789"), len(s.name), s.name))
        return [self._facts(symbol) for symbol in found]

    def _facts(self, symbol: sympy.Symbol) -> Json:
        if self._env is None:
            raise Unwritable(f"a size {symbol.name} that no tensor has")
        facts = internals.symbol_facts(self._env, symbol)
        return {name: getattr(facts, name) for name in _FACTS}

    def _write_other(self, value: Any) -> Json:
        if isinstance(value, torch.Tensor):
            return {"tensor": self._tensor(value)}
        if internals.is_symbolic(value):
            self._env = self._env or value.node.shape_env
            return {type(value).__name__.lower(): self.expression(internals.expr_to_check(value))}
        return _no_more(value)

    def _number(self, value: Any) -> Json:
        if not internals.is_symbolic(value):
            return value
        self._env = self._env or value.node.shape_env
        return self.expression(internals.expr_of(value))

    def _tensor(self, value: torch.Tensor) -> Json:
        if value.layout is not torch.strided or value.is_quantized or value.is_nested:
            raise Unwritable(f"a tensor of layout {str(value.layout).removeprefix('torch.')}")
        described: dict[str, Json] = {
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": [self._number(size) for size in value.shape],
            "stride": [self._number(stride) for stride in value.stride()],
        }
        if value.device.type != "cpu":
            described["device"] = str(value.device)
        offset = value.storage_offset()
        if not isinstance(offset, int) or offset:
            described["offset"] = self._number(offset)
        flags = {"requires_grad": value.requires_grad, "conjugate": value.is_conj(), "negative": value.is_neg()}
        return described | {name: True for name, on in flags.items() if on}


# What dims.OPERATIONS has one name for may be one of two classes in torch or sympy.
_OPERATIONS: dict[str, Callable[..., sympy.Basic]] = {
    **{name: operation.build for name, operation in symbolic_dims.OPERATIONS.items()},
    "power": sympy.Pow,
    "rational": sympy.Rational,
    "exactdiv": internals.sympy_functions.CleanDiv,
    "positivemod": internals.sympy_functions.Mod,
    "piecewise": sympy.Piecewise,
    "case": sympy.functions.elementary.piecewise.ExprCondPair,
}
_OPERATION_NAMES = {build: name for name, build in _OPERATIONS.items()}

_FACTS = ("name", "hint", "low", "high", "positive", "size_like")
_LOGICAL = frozenset({"and", "or", "not", "where", "piecewise", "case"})
# Two numbers in, a number with as many digits as a file likes out: sympy computes these on the spot.
_EXPLOSIVE = frozenset({"pow", "power", "floatpow", "lshift", "rounddecimal"})


class ValueReader:
    """Rebuilds the values of nodes as fakes of one mode, over symbols of one shape environment."""

    def __init__(self, symbols: Cursor) -> None:
        self.env = internals.RestoredShapeEnv()
        self.mode = internals.fake_mode(self.env)
        self.symbols: dict[str, sympy.Symbol] = {}
        self._sizes: dict[str, Any] = {}
        for cursor in symbols.items():
            self._restore(cursor)

    def _restore(self, cursor: Cursor) -> None:
        name, hint, low, high, positive, size_like = cursor.fields(*_FACTS)
        facts = internals.SymbolFacts(
            name.matching(SYMBOL, "the name of a size"),
            hint.optional(lambda c: c.integer(0)),
            low.optional(lambda c: c.integer()),
            high.optional(lambda c: c.integer()),
            positive.boolean(),
            size_like.boolean(),
        )
        if facts.name in self.symbols:
            name.wrong("a name that is used once")
        if facts.low is not None and facts.high is not None and facts.low > facts.high:
            low.wrong("below the upper bound")
        self.symbols[facts.name] = build_guarded(cursor, lambda: internals.restore_symbol(self.env, facts))

    def read(self, cursor: Cursor) -> Any:
        return read_plain(cursor, self._read_other)

    def _read_other(self, tag: str, cursor: Cursor) -> Any:
        if tag == "tensor":
            return self._tensor(cursor)
        kind = {"symint": int, "symfloat": float, "symbool": bool}.get(tag) or cursor.wrong("a value of a known kind")
        expr = self.expression(cursor)
        if isinstance(expr, sympy.Expr) == (kind is bool):
            cursor.wrong("a condition" if kind is bool else "a number")
        return build_guarded(cursor, lambda: internals.symbolic_of_kind(self.env, expr, kind))

    def expression(self, cursor: Cursor) -> sympy.Basic:
        value = cursor.value
        if isinstance(value, bool):
            return sympy.true if value else sympy.false
        if isinstance(value, int | float):
            return sympy.sympify(value)
        if isinstance(value, str):
            return cursor.one_of(self.symbols, "a size of this program")
        operation, *parts = cursor.items() or cursor.wrong("an expression")
        build = operation.one_of(_OPERATIONS, "an operation on sizes")
        built = [self.expression(part) for part in parts]
        if operation.value not in _LOGICAL and not all(isinstance(part, sympy.Expr) for part in built):
            cursor.wrong("an operation on numbers")
        if operation.value in _EXPLOSIVE and all(part.is_number for part in built):
            cursor.wrong("an expression in its simplest form")
        return build_guarded(cursor, lambda: build(*built))

    def _size(self, cursor: Cursor) -> Any:
        """A size, a stride or an offset."""
        if isinstance(cursor.value, int):
            return cursor.integer(0)
        key = repr(cursor.value)  # a few sizes make up most shapes, and sympy is slow
        if key not in self._sizes:
            self._sizes[key] = self._read_other("symint", cursor)
        return self._sizes[key]

    def _tensor(self, cursor: Cursor) -> torch.Tensor:
        dtype_at, shape_at, stride_at, device_at, offset_at, *flags_at = cursor.fields(
            "dtype", "shape", "stride", "device?", "offset?", "requires_grad?", "conjugate?", "negative?"
        )
        dtype = read_dtype(dtype_at)
        shape = [self._size(size) for size in shape_at.items()]
        stride = [self._size(step) for step in stride_at.items(len(shape))]
        device = device_at.optional(read_device) or torch.device("cpu")
        offset = 0 if offset_at.value is None else self._size(offset_at)
        requires_grad, conjugate, negative = (bool(flag.optional(Cursor.boolean)) for flag in flags_at)
        if len(shape) > RANK_LIMIT:
            shape_at.wrong(f"a shape of at most {RANK_LIMIT} dims")
        if (requires_grad or conjugate) and not (dtype.is_floating_point or dtype.is_complex):
            dtype_at.wrong("a dtype that this tensor can be of")

        def build() -> torch.Tensor:
            fake = self._fake(shape, stride, offset, dtype, device)
            with self.mode:
                fake = torch.conj(fake) if conjugate else fake
                fake = torch._neg_view(fake) if negative else fake
            return fake.requires_grad_(True) if requires_grad else fake

        return build_guarded(cursor, build)

    def _fake(
        self, shape: list[Any], stride: list[Any], offset: Any, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        # What torch asks of sizes while it builds a tensor must not narrow them.
        with self.env.suppress_guards(), internals.without_dispatch():
            if type(offset) is int and offset == 0:
                meta = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
            else:
                extent = offset + 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
                meta = torch.empty([extent], dtype=dtype, device="meta").as_strided(shape, stride, offset)
        return internals.FakeTensor(self.mode, meta, device)


def build_guarded(cursor: Cursor, build: Callable[[], T]) -> T:
    """Builds from data of the right form; torch and sympy still reject some of it, with exceptions of any kind."""
    try:
        return build()
    except RecursionError:
        raise
    except Exception as failure:
        cursor.wrong(f"something that can be built ({type(failure).__name__}: {str(failure)[:200]})")
