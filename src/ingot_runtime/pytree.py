"""How a call's arguments and result are nested, as the manifest writes it.

    tree    := {"input": 2} | {"output": 0} | {"literal": plain} | branch
    branch  := {"kind": "dict", "name": "dict", "keys": ["mask", …], "children": [tree, …]}
    kind    := tuple | list | dict | namedtuple | dataclass | registered | object
    plain   := null | bool | int | float | text | [plain, …] | {tag: …}         as in Ingot's own program files

The arguments are a tuple of two, the positional ones and a dict of the others. Results of classes come back as plain
things that read alike: a `Record` by key and attribute, a `FieldTuple` by place and attribute. Which ones does not
depend on what else the process has imported, and nothing is ever imported because a file says so.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from .errors import LiteralError, StructureError, format_error

Json = Any

KINDS = frozenset({"tuple", "list", "dict", "namedtuple", "dataclass", "registered", "object"})
_SEQUENCES = frozenset({"tuple", "list"})
_TORCH_TAGS = frozenset({"dtype", "device", "layout", "memory_format"})
_DEPTH_LIMIT = 200
_AS_COMPILED = "call the model as it was called when it was captured, or capture and compile it again with this call"


class Leaf(NamedTuple):
    """The place of an input or of an output, by number."""

    side: str
    number: int


class Literal(NamedTuple):
    """A constant of the model: an argument that has to be repeated, or a part of the result."""

    value: Any


class Branch(NamedTuple):
    kind: str
    name: str
    keys: tuple[str | int, ...]
    children: tuple["Tree", ...]


Tree: TypeAlias = Leaf | Literal | Branch


class TorchValue:
    """A dtype, device, layout or memory format of torch's, which this process need not have: by its name."""

    __slots__ = ("kind", "text")

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TorchValue) and (self.kind, self.text) == (other.kind, other.text)

    def __hash__(self) -> int:
        return hash((self.kind, self.text))

    def __str__(self) -> str:
        return self.text if self.kind == "device" else f"torch.{self.text}"

    __repr__ = __str__


class Record(dict[str, Any]):
    """The fields of a result's class, by key and by attribute."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class FieldTuple(tuple[Any, ...]):
    """A tuple whose items have names as well: result[0] and result.values are the same."""

    names: tuple[str, ...]

    def __new__(cls, names: Sequence[str], values: Sequence[Any]) -> "FieldTuple":
        made = super().__new__(cls, values)
        made.names = tuple(names)
        return made

    def __getattr__(self, name: str) -> Any:
        names = self.__dict__.get("names", ())
        if name in names:
            return self[names.index(name)]
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return FieldTuple, (self.names, tuple(self))

    def __repr__(self) -> str:
        return f"({', '.join(f'{name}={value!r}' for name, value in zip(self.names, self, strict=True))})"


# ---------------------------------------------------------------------- reading


def read(value: Json, sides: Mapping[str, int], depth: int = 0) -> Tree:
    """The tree that JSON describes; `sides` says how many inputs and outputs there are. Raises ValueError."""
    if depth > _DEPTH_LIMIT:
        raise ValueError("it is nested too deeply")
    match value:
        case {"literal": literal, **rest} if not rest:
            return Literal(_read_plain(literal))
        case {"kind": str(kind), "name": str(name), "keys": list(keys), "children": list(children)}:
            if kind not in KINDS or not all(type(key) in (str, int, bool) for key in keys):
                raise ValueError(f"a {kind!r} with keys {keys!r} is not known")
            if len(keys) != len(children) or len(set(keys)) != len(keys):
                raise ValueError(f"a {name} has {len(keys)} keys for {len(children)} parts, or a key twice")
            return Branch(kind, name, tuple(keys), tuple(read(child, sides, depth + 1) for child in children))
        case {"input": int(number), **rest} | {"output": int(number), **rest} if not rest:
            side = next(iter(value))
            if type(number) is int and 0 <= number < sides.get(side, 0):
                return Leaf(side, number)
    raise ValueError(f"{str(value)[:60]!r} is not a place in a call")


def _read_plain(value: Json) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_read_plain(item) for item in value]
    match value:
        case {"float": "inf" | "-inf" | "nan" as text, **rest} if not rest:
            return float(text)
        case {"tuple": list(items), **rest} if not rest:
            return tuple(_read_plain(item) for item in items)
        case {"dict": list(pairs), **rest} if not rest and all(isinstance(p, list) and len(p) == 2 for p in pairs):
            return {_read_plain(key): _read_plain(item) for key, item in pairs}
        case {"slice": [start, stop, step], **rest} if not rest:
            return slice(_read_plain(start), _read_plain(stop), _read_plain(step))
        case {"complex": [real, imaginary], **rest} if not rest:
            return complex(_read_plain(real), _read_plain(imaginary))
        case {"bytes": str(text), **rest} if not rest:
            return bytes.fromhex(text)
        case {"ellipsis": True, **rest} if not rest:
            return Ellipsis
        case dict() if len(value) == 1:
            ((tag, named),) = value.items()
            if tag in _TORCH_TAGS and isinstance(named, str):
                return TorchValue(tag, named)
    raise ValueError(f"{str(value)[:60]!r} is not a value of a known kind")


def leaves(tree: Tree) -> Iterator[Leaf]:
    """The leaves, in order."""
    if isinstance(tree, Leaf):
        yield tree
    elif isinstance(tree, Branch):
        for child in tree.children:
            yield from leaves(child)


def places(tree: Tree, at: str = "") -> Iterator[tuple[Leaf, str]]:
    """Every leaf with its place as the user would write it: past[0].keys"""
    if isinstance(tree, Leaf):
        yield tree, at or "the value"
    elif isinstance(tree, Branch):
        for key, child in zip(tree.keys, tree.children, strict=True):
            yield from places(child, step(at, key))


def step(at: str, key: str | int) -> str:
    """The place of a part."""
    return f"{at}[{key}]" if isinstance(key, int) else f"{at}.{key}" if at else key


# ---------------------------------------------------------------------- taking apart


def flatten(tree: Tree, value: Any, at: str, found: list[Any]) -> None:
    """Puts every leaf of `value` into `found` under its number. Raises StructureError and LiteralError, naming `at`."""
    if isinstance(tree, Leaf):
        found[tree.number] = value
    elif isinstance(tree, Literal):
        _check_literal(tree.value, value, at)
    else:
        for key, child, part in zip(tree.keys, tree.children, parts(tree, value, at), strict=True):
            flatten(child, part, step(at, key), found)


def parts(tree: Branch, value: Any, at: str) -> Sequence[Any]:
    """The parts of a value, one per child of the tree. Raises StructureError where it has others, naming `at`."""
    if tree.kind in _SEQUENCES or (tree.kind == "namedtuple" and isinstance(value, list | tuple)):
        if not isinstance(value, list | tuple):
            raise _wrong(at, value, f"a {tree.kind} of {len(tree.keys)}")
        if len(value) != len(tree.keys):
            raise StructureError(
                format_error(
                    f"{at} has {len(value)} parts, but the model was compiled for {len(tree.keys)}.", fix=_AS_COMPILED
                )
            )
        return value
    if isinstance(value, Mapping):
        given: Sequence[Any] = list(value)
        get: Callable[[Any], Any] = value.__getitem__
    elif tree.kind != "dict":  # a class, known by the names of its fields only
        given = [key for key in tree.keys if isinstance(key, str) and hasattr(value, key)]
        get = lambda key: getattr(value, key)  # noqa: E731
        if tree.keys and not given:
            raise _wrong(at, value, f"a {_short(tree.name)} or a dict with {_format_names(tree.keys)}")
    else:
        raise _wrong(at, value, f"a dict with {_format_names(tree.keys)}")
    missing = [key for key in tree.keys if key not in given]
    extra = [key for key in given if key not in tree.keys]
    if missing or extra:
        labels = (("missing", missing), ("unexpected", extra))
        problem = "; ".join(f"{label} {_format_names(keys)}" for label, keys in labels if keys)
        raise StructureError(
            format_error(f"{at} has other parts than the model was compiled for: {problem}.", fix=_AS_COMPILED)
        )
    return [get(key) for key in tree.keys]


def arrange(
    tree: Branch, parameters: Sequence[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Moves arguments between position and keyword to where they were when the model was captured.

    Raises StructureError for missing and unexpected ones, by the names that the user knows.
    """
    positional, named = tree.children
    assert isinstance(positional, Branch) and isinstance(named, Branch)
    count = len(positional.keys)
    keyed = dict(kwargs)
    while len(args) < count and len(args) < len(parameters) and parameters[len(args)] in keyed:
        args = (*args, keyed.pop(parameters[len(args)]))
    while len(args) > count and len(args) <= len(parameters) and parameters[len(args) - 1] not in keyed:
        *rest, last = args
        keyed[parameters[len(rest)]] = last
        args = tuple(rest)
    missing = [*parameters[len(args) : count], *(str(key) for key in named.keys if key not in keyed)]
    extra = [key for key in keyed if key not in named.keys]
    if len(args) < count and not missing:
        missing = [f"{count - len(args)} more by position"]
    if len(args) > count:
        extra.insert(0, f"{len(args) - count} more by position")
    if missing or extra:
        labels = (("missing", missing), ("unexpected", extra))
        problem = "; ".join(f"{label} {_format_names(names)}" for label, names in labels if names)
        taken = [*(parameters[:count] or [f"{count} by position"] * bool(count)), *map(str, named.keys)]
        raise StructureError(
            format_error(
                f"The model was called with other arguments than it was compiled for: {problem}.",
                why=f"it takes {_format_names(taken) or 'none'}",
                fix=_AS_COMPILED,
            )
        )
    return args, keyed


def _check_literal(expected: Any, value: Any, at: str) -> None:
    if not _same(expected, value):
        raise LiteralError(
            format_error(
                f"{at} is {str(value)[:60]!r}, but the model was compiled with {expected!r} there.",
                why="values that are not tensors are constants of a compiled model",
                fix=f"pass {at}={expected!r}, or capture and compile the model again with another value",
            )
        )


def _same(expected: Any, value: Any) -> bool:
    if isinstance(expected, TorchValue):
        return str(value).removeprefix("torch.") == expected.text
    if isinstance(expected, list | tuple):
        if not isinstance(value, list | tuple) or len(value) != len(expected):
            return False
        return all(_same(mine, theirs) for mine, theirs in zip(expected, value, strict=True))
    if type(value) is not type(expected):
        return False
    if isinstance(expected, float):
        # 0.0 and -0.0 are equal, and not the same; a NaN is the same as another.
        return repr(value) == repr(expected) or (math.isnan(value) and math.isnan(expected))
    return bool(value == expected)


def _wrong(at: str, value: Any, expected: str) -> StructureError:
    return StructureError(
        format_error(
            f"{at} is a {type(value).__name__}, but the model was compiled for {expected} there.", fix=_AS_COMPILED
        )
    )


def _format_names(names: Sequence[Any]) -> str:
    return ", ".join(map(str, names))


def _short(name: str) -> str:
    return name.rpartition(":")[2].rpartition(".")[2]


# ---------------------------------------------------------------------- putting together


def unflatten(tree: Tree, sides: Mapping[str, Sequence[Any]]) -> Any:
    """The nested value; `sides` has what the leaves of each side stand for."""
    if isinstance(tree, Leaf):
        return sides[tree.side][tree.number]
    if isinstance(tree, Literal):
        return tree.value
    values = [unflatten(child, sides) for child in tree.children]
    if tree.kind == "tuple":
        return tuple(values)
    if tree.kind == "list":
        return values
    if tree.kind == "namedtuple":
        return FieldTuple([str(key) for key in tree.keys], values)
    if tree.kind == "dict":
        return dict(zip(tree.keys, values, strict=True))
    return Record({str(key): value for key, value in zip(tree.keys, values, strict=True)})
