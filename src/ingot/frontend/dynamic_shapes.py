"""Dynamic shapes: what the user declared, and the symbols that stand for it.

    declare(...)    dynamic_shapes, in any of its spellings → for each tensor a size for each dim: a number or a symbol

`sizes.fake_arguments` puts the symbols into fakes; what the trace then asks of the symbols is the work of `guards`.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sympy
import torch

from ingot.errors import CaptureError, DynamicShapeError, format_error
from ingot.ir.pytree import LEAF, Path, Tree, format_path, leaf_paths

if TYPE_CHECKING:
    pass

_EXPRESSION = re.compile(r"^\s*(?:(\d+)\s*\*\s*)?([A-Za-z_]\w*)\s*(?:([+-])\s*(\d+))?\s*$")
_AUTO = "auto"
_ENLARGED = 5


@dataclass(frozen=True, slots=True)
class DimSpec:
    """One dim as declared: `scale * name + offset`; bounds are None where the user gave none.

    An automatic dim is whatever the trace makes of it: free, tied to another dim, or static unless it must vary.
    """

    name: str
    scale: int = 1
    offset: int = 0
    low: int | None = None
    high: int | None = None
    auto: bool = False
    must_vary: bool = False
    tied: bool = False  # declared automatic; the trace made it this function of another dim


class AutomaticDimsResolved(DynamicShapeError):
    """The trace does not hold for automatic dims as they were declared.

    `resolved` says what they are instead: another dim's function, or static (None). The message is for users, where
    nothing is resolved.
    """

    def __init__(self, message: str, resolved: Mapping[str, DimSpec | None]) -> None:
        super().__init__(message)
        self.resolved = dict(resolved)


@dataclass(slots=True)
class RootDim:
    """One independent symbol, gathered from everywhere its name appears."""

    name: str
    hint: int
    example: int
    where: str
    low: int | None = None
    high: int | None = None
    auto: bool = False
    must_vary: bool = False
    symbol: sympy.Symbol | None = None

    @property
    def range(self) -> tuple[int, int | None]:
        default = 0 if self.auto and self.example == 0 else 1
        return (default if self.low is None else self.low), self.high


@dataclass(slots=True)
class DynamicShapeSpec:
    """For each tensor leaf that has dynamic dims, its dims' specs; and the roots by name."""

    specs: dict[int, dict[int, DimSpec]] = field(default_factory=dict)
    roots: dict[str, RootDim] = field(default_factory=dict)


# ---------------------------------------------------------------------- reading what the user wrote


def declare(
    dynamic_shapes: Any,
    leaves: Sequence[Any],
    tree: Tree,
    parameters: Sequence[inspect.Parameter],
    resolved: Mapping[str, DimSpec | None] = types.MappingProxyType({}),
    enlarged: bool = False,
) -> DynamicShapeSpec:
    """Reads `dynamic_shapes` against the captured arguments, whose tree is that of `(args, kwargs)`.

    `resolved` says what automatic dims are, where an earlier trace found out. `enlarged` traces with sizes that are a
    multiple of the example's.
    """
    declared = DynamicShapeSpec()
    if dynamic_shapes is None:
        return declared
    by_leaf = _match(dynamic_shapes, tree, parameters)
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    paths = [_name_path(path, names) for path in leaf_paths(tree)]
    for index, raw in by_leaf.items():
        leaf, place = leaves[index], format_path(paths[index])
        if raw is None or (raw == _AUTO and not isinstance(leaf, torch.Tensor)):
            continue
        if not isinstance(leaf, torch.Tensor):
            raise DynamicShapeError(
                format_error(
                    f"dynamic_shapes gives dims for {place}, which is {leaf!r}, not a tensor.",
                    fix="use None for arguments that are not tensors",
                )
            )
        found = {dim: _resolve(spec, resolved) for dim, spec in _leaf_specs(raw, leaf, place).items()}
        specs = {dim: spec for dim, spec in found.items() if spec is not None}
        if specs:
            declared.specs[index] = specs
    _gather_roots(declared, leaves, paths)
    if enlarged:
        _enlarge(declared.roots.values())
    return declared


def _resolve(spec: DimSpec, resolved: Mapping[str, DimSpec | None]) -> DimSpec | None:
    """A dim as declared, or what is known of it by now."""
    while spec.name in resolved:
        found = resolved[spec.name]
        if found is None:
            return None
        spec = DimSpec(
            found.name, spec.scale * found.scale, spec.scale * found.offset + spec.offset,
            None if spec.low is None else -((found.offset - spec.low) // found.scale),
            None if spec.high is None else (spec.high - found.offset) // found.scale,
            must_vary=spec.must_vary, tied=True,
        )  # fmt: skip
    return spec


def _name_path(path: Path, names: Sequence[str]) -> Path:
    """A leaf's path with a positional argument under its name."""
    side, key, *rest = path
    if side == 0 and isinstance(key, int):
        key = names[key] if key < len(names) else f"args[{key}]"
    return (key, *rest)


def _match(spec: Any, tree: Tree, parameters: Sequence[inspect.Parameter]) -> dict[int, Any]:
    """Pairs the nested spec with the leaves; a part left out is static."""
    out: dict[int, Any] = {}
    args_tree, kwargs_tree = tree.children
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
    start = 0
    named: dict[str, tuple[Tree, int]] = {}
    extra: list[tuple[Tree, int]] = []
    for position, child in enumerate(args_tree.children):
        if position < len(positional):
            named[positional[position]] = (child, start)
        else:
            extra.append((child, start))
        start += child.leaf_count
    for key, child in zip(kwargs_tree.keys, kwargs_tree.children, strict=True):
        named[str(key)] = (child, start)
        start += child.leaf_count
    if isinstance(spec, list | tuple):
        # In the order of the signature, whatever the order of the keyword arguments in the call.
        front = [name for name in positional if name in named]
        keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name in named]
        others = [name for name in named if name not in front and name not in keywords]
        places = [
            *(named[name] for name in front),
            *extra,
            *(named[name] for name in (*keywords, *others)),
        ]
        if extra and len(spec) > len(front) and _is_of_arguments(spec[len(front)], len(extra)):
            spec = [*spec[: len(front)], *spec[len(front)], *spec[len(front) + 1 :]]  # torch's form: one part for *args
        if len(spec) > len(places):
            raise DynamicShapeError(
                format_error(
                    f"dynamic_shapes has {len(spec)} parts, and the call has {len(places)} arguments.",
                    fix='give a dict from argument name to its dims, e.g. {"x": {0: "batch"}}',
                )
            )
        for part, (child, begin) in zip(spec, places, strict=False):
            _match_part(part, child, begin, (), out)
        return out
    if spec == _AUTO:
        return {begin + i: _AUTO for child, begin in [*named.values(), *extra] for i in range(child.leaf_count)}
    if not isinstance(spec, Mapping):
        raise DynamicShapeError(
            format_error(
                f"dynamic_shapes is a {type(spec).__name__}.",
                fix='give a dict from argument name to its dims, e.g. {"x": {0: "batch"}}',
            )
        )
    for name, part in spec.items():
        if name in named:
            child, begin = named[name]
            _match_part(part, child, begin, (name,), out)
        elif rest is not None and name == rest:
            for item, (child, begin) in zip(part or (), extra, strict=False):
                _match_part(item, child, begin, (name,), out)
        elif name == next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None) and part is not None:
            for key, item in part.items():
                if key in named:
                    _match_part(item, *named[key], (key,), out)
        else:
            raise DynamicShapeError(
                format_error(
                    f"dynamic_shapes names {name!r}, which is not an argument of this call.",
                    why=f"the arguments are {', '.join(named) or 'none'}",
                )
            )
    return out


def _is_of_arguments(part: Any, count: int) -> bool:
    """Whether a part of dynamic_shapes is one part for each of so many arguments, and not the dims of one."""
    if not isinstance(part, list | tuple) or len(part) != count:
        return False
    return any(isinstance(item, Mapping | list | tuple) for item in part)


def _match_part(part: Any, tree: Tree, start: int, at: Path, out: dict[int, Any]) -> None:
    if part is None:
        return
    if tree == LEAF:
        out[start] = part
        return
    if part == _AUTO:
        out.update({start + i: _AUTO for i in range(tree.leaf_count)})
        return
    if isinstance(part, Mapping):
        pairs = {str(k): v for k, v in part.items()}
        unknown = [k for k in pairs if k not in [str(key) for key in tree.keys]]
    elif isinstance(part, list | tuple):
        pairs = {str(k): v for k, v in zip(tree.keys, part, strict=False)}
        unknown = ["…"] if len(part) > len(tree.keys) else []
    else:
        pairs, unknown = {}, [repr(part)]
    if unknown:
        raise DynamicShapeError(
            format_error(
                f"dynamic_shapes for {format_path(at)} has a part {unknown[0]} that the argument does not have.",
                why=f"the argument is {tree}",
            )
        )
    for key, child in zip(tree.keys, tree.children, strict=True):
        _match_part(pairs.get(str(key)), child, start, (*at, key), out)
        start += child.leaf_count


def _leaf_specs(raw: Any, tensor: torch.Tensor, place: str) -> dict[int, DimSpec]:
    if raw == _AUTO:
        raw = dict.fromkeys(range(tensor.dim()), _AUTO)
    if isinstance(raw, list | tuple):
        if len(raw) != tensor.dim():
            raise DynamicShapeError(
                format_error(f"dynamic_shapes gives {len(raw)} dims for {place}, which has {tensor.dim()}.")
            )
        raw = dict(enumerate(raw))
    if not isinstance(raw, Mapping):
        raise DynamicShapeError(
            format_error(f"dynamic_shapes for {place} is {raw!r}.", fix='give {dim: name}, e.g. {0: "batch"}')
        )
    specs: dict[int, DimSpec] = {}
    for dim, value in raw.items():
        if not isinstance(dim, int) or isinstance(dim, bool) or not -tensor.dim() <= dim < tensor.dim():
            raise DynamicShapeError(format_error(f"{place} has {tensor.dim()} dims, so it has no dim {dim!r}."))
        dim %= tensor.dim()
        spec = _read(value, f"{place}_{dim}", f"dim {dim} of {place}", int(tensor.shape[dim]))
        if isinstance(spec, int) and spec != tensor.shape[dim]:
            raise DynamicShapeError(
                format_error(f"dim {dim} of {place} is declared {spec}, but the example has {tensor.shape[dim]}.")
            )
        if isinstance(spec, DimSpec):
            specs[dim] = spec
    return specs


def _read(value: Any, default_name: str, place: str = "", example: int | None = None) -> DimSpec | int | None:
    """One dim's declaration in any spelling; None and an int are static. `place` and `example` are for errors."""
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, str):
        return _read_text(value, default_name)
    hint = getattr(getattr(value, "type", None), "name", None)
    if hint is not None:  # torch.export.Dim.AUTO, DYNAMIC, STATIC
        if hint == "STATIC":
            if example is not None and not (
                (value.min or 0) <= example and (value.max is None or example <= value.max)
            ):
                raise DynamicShapeError(
                    format_error(
                        f"{place} is declared static in [{value.min}, {value.max}], but the example has {example}."
                    )
                )
            return None
        return DimSpec(_slug(default_name), 1, 0, value.min, value.max, auto=True, must_vary=hint == "DYNAMIC")
    root = getattr(value, "root", None)
    if root is not None:  # a derived torch.export dim, e.g. 2*seq + 1
        probe = [int(value.fn(x)) for x in (1, 2)]
        return DimSpec(root.__name__, probe[1] - probe[0], 2 * probe[0] - probe[1], *_bounds(root))
    if hasattr(value, "__name__") and hasattr(value, "min"):
        return DimSpec(value.__name__, 1, 0, *_bounds(value))
    raise DynamicShapeError(
        format_error(
            f"A dynamic dim is declared as {value!r}.",
            fix='use a name ("batch"), an expression of one ("2*seq"), "auto", or torch.export.Dim',
        )
    )


def _read_text(text: str, default_name: str) -> DimSpec:
    if text == _AUTO:
        return DimSpec(_slug(default_name), auto=True)
    match = _EXPRESSION.match(text)
    if match is None or match.group(1) == "0":
        raise DynamicShapeError(
            format_error(f"The dim {text!r} cannot be read.", fix='write "name", "2*name" or "name + 1"')
        )
    scale, name, sign, offset = match.groups()
    return DimSpec(name, int(scale or 1), int(offset or 0) * (-1 if sign == "-" else 1))


def _bounds(dim: Any) -> tuple[int | None, int | None]:
    """The bounds of a torch.export.Dim. One without a max has a huge number there, which the user did not set."""
    high = dim.max
    unbounded = not isinstance(high, int) or high >= 2**62
    return int(dim.min), (None if unbounded else int(high))


def _slug(text: str) -> str:
    return re.sub(r"\W+", "_", text).strip("_")


def _gather_roots(declared: DynamicShapeSpec, leaves: Sequence[Any], paths: Sequence[Path]) -> None:
    dims = [(index, dim, spec) for index, specs in declared.specs.items() for dim, spec in specs.items()]
    for index, dim, spec in sorted(dims, key=lambda item: item[2].tied):
        size = int(leaves[index].shape[dim])
        place = f"dim {dim} of {format_path(paths[index])}"
        example, left = divmod(size - spec.offset, spec.scale)
        if left or example < 0:
            raise DynamicShapeError(
                format_error(f"{place} is declared {_format_spec(spec)}, but the example's {size} does not match it.")
            )
        root = declared.roots.get(spec.name)
        if root is None:
            declared.roots[spec.name] = RootDim(
                spec.name, example, example, place, spec.low, spec.high, spec.auto, spec.must_vary
            )
        elif root.example != example:
            raise DynamicShapeError(
                format_error(
                    f"The dim {spec.name} has two sizes in the example: {root.example} at {root.where}, "
                    f"{example} at {place}.",
                    fix="give them two names, or an example in which they agree",
                )
            )
        else:
            _merge_range(root, spec, place)
    for root in declared.roots.values():
        low, high = root.range
        if root.example < low or (high is not None and root.example > high):
            raise DynamicShapeError(
                format_error(f"The dim {root.name} is declared in [{low}, {high}], but the example has {root.example}.")
            )
        # Sizes 0 and 1 behave unlike any other (they broadcast), so a dynamic dim is traced with a larger one.
        if root.hint < 2 and (high is None or high >= 2):
            root.hint = 3 if high is None or high >= 3 else 2


def _merge_range(root: RootDim, spec: DimSpec, place: str) -> None:
    """Gives a root the range of another dim that bears its name, or that turned out to depend on it."""
    root.must_vary |= spec.must_vary
    if (spec.low, spec.high) in ((None, None), (root.low, root.high)):
        return
    if spec.tied:
        root.low = max((low for low in (root.low, spec.low) if low is not None), default=None)
        root.high = min((high for high in (root.high, spec.high) if high is not None), default=None)
        if root.high is not None and (root.low or 0) > root.high:
            raise DynamicShapeError(
                format_error(f"{place} depends on {root.name} ({root.where}), but no size is in both of their ranges.")
            )
    elif (root.low, root.high) == (None, None):
        root.low, root.high = spec.low, spec.high
    else:
        raise DynamicShapeError(
            format_error(
                f"The dim {spec.name} has two ranges: {_spell_range(root)} at {root.where}, "
                f"{_spell_range(spec)} at {place}.",
                fix="declare one Dim and use it for both, or give them two names",
            )
        )


def _enlarge(roots: Collection[RootDim]) -> None:
    """Sizes for a trace in which what is 0 or 1 in the example, such as x[3:] of four, is so no longer.

    One factor for all of them, so that sizes that are equal, or multiples of each other, stay so.
    """
    for root in roots:
        size = root.hint * _ENLARGED
        root.hint = size if root.high is None else min(size, root.high)


def _spell_range(bounds: DimSpec | RootDim) -> str:
    return f"[{1 if bounds.low is None else bounds.low}, {'∞' if bounds.high is None else bounds.high}]"


def _format_spec(spec: DimSpec) -> str:
    text = spec.name if spec.scale == 1 else f"{spec.scale}*{spec.name}"
    return text if not spec.offset else f"{text} {'+' if spec.offset > 0 else '-'} {abs(spec.offset)}"


def blame_traced_sizes(declared: DynamicShapeSpec, error: CaptureError) -> DynamicShapeError | None:
    """What to say where a model runs on its example and fails on the larger sizes that it is traced with."""
    raised = [root for root in declared.roots.values() if root.hint != root.example]
    if not raised:
        return None
    automatic = [root.name for root in raised if root.auto and not root.must_vary]
    names = ", ".join(f"{root.name} ({root.where}, {root.example})" for root in raised)
    what, *rest = str(error).splitlines()
    return AutomaticDimsResolved(
        "\n".join(
            [
                f"The model runs with the example's sizes of {names}, and fails with {raised[0].hint}: {what}",
                *(line for line in rest if line.startswith("  where: ")),
                "  why: a size of 1 or 0 broadcasts, so a dynamic dim is traced with a larger one",
                f"  what to do: give an example of two or more, or leave {raised[0].name} out of dynamic_shapes",
            ]
        ),
        dict.fromkeys(automatic),
    )
