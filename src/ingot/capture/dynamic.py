"""Dynamic shapes: what the user declared, the symbols that stand for it, and what the trace made of them.

    declare(...)    dynamic_shapes, in any of its spellings → for each tensor a size for each dim: a number or a symbol
    Watch           notes every question about a symbol's value that the model's code, or an operator, asked
    conclude(...)   those questions → errors (a dim was frozen or tied), narrower ranges, constraints for later calls

A question that an operator asks itself (is this dim 1, so that it broadcasts?) does not change the graph: at run time
the operator asks again. It only counts where it excludes sizes of two and more, since the shapes that we wrote down may
hang on those. A question that Python code asks decides which graph we record, so it counts in full.
"""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from ingot import torch_internals as internals
from ingot.errors import CaptureError, DynamicShapeError, explain
from ingot.program import dims as dims_
from ingot.program.dims import Constraint, Dim
from ingot.program.metadata import Source
from ingot.program.tree import LEAF, Path, Tree, leaf_paths, spell

_EXPRESSION = re.compile(r"^\s*(?:(\d+)\s*\*\s*)?([A-Za-z_]\w*)\s*(?:([+-])\s*(\d+))?\s*$")
_AUTO = "auto"


@dataclass(frozen=True, slots=True)
class DimSpec:
    """One dim as declared: `scale * name + offset`; bounds are None where the user gave none."""

    name: str
    scale: int = 1
    offset: int = 0
    low: int | None = None
    high: int | None = None
    auto: bool = False


@dataclass(slots=True)
class Root:
    """One independent symbol, gathered from everywhere its name appears."""

    name: str
    hint: int
    example: int
    where: str
    low: int | None = None
    high: int | None = None
    auto: bool = False
    symbol: sympy.Symbol | None = None

    @property
    def range(self) -> tuple[int, int | None]:
        return (1 if self.low is None else self.low), self.high


@dataclass(slots=True)
class Declared:
    """For each tensor leaf that has dynamic dims, its dims' specs; and the roots by name."""

    specs: dict[int, dict[int, DimSpec]] = field(default_factory=dict)
    roots: dict[str, Root] = field(default_factory=dict)


# ---------------------------------------------------------------------- reading what the user wrote


def declare(
    dynamic_shapes: Any, leaves: Sequence[Any], tree: Tree, parameters: Sequence[inspect.Parameter]
) -> Declared:
    """Reads `dynamic_shapes` against the captured arguments, whose tree is that of `(args, kwargs)`."""
    declared = Declared()
    if dynamic_shapes is None:
        return declared
    by_leaf = _match(dynamic_shapes, tree, parameters)
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    paths = [_named(path, names) for path in leaf_paths(tree)]
    for index, raw in by_leaf.items():
        leaf, place = leaves[index], spell(paths[index])
        if raw is None:
            continue
        if not isinstance(leaf, torch.Tensor):
            raise DynamicShapeError(
                explain(
                    f"dynamic_shapes gives dims for {place}, which is {leaf!r}, not a tensor.",
                    fix="use None for arguments that are not tensors",
                )
            )
        specs = _leaf_specs(raw, leaf, place)
        if specs:
            declared.specs[index] = specs
    _gather_roots(declared, leaves, paths)
    return declared


def _named(path: Path, names: Sequence[str]) -> Path:
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
        places = [*named.values(), *extra]
        if len(spec) > len(places):
            raise DynamicShapeError(
                explain(
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
            explain(
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
                explain(
                    f"dynamic_shapes names {name!r}, which is no argument of this call.",
                    why=f"the arguments are {', '.join(named) or 'none'}",
                )
            )
    return out


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
            explain(
                f"dynamic_shapes for {spell(at)} has a part {unknown[0]} that the argument has not.",
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
                explain(f"dynamic_shapes gives {len(raw)} dims for {place}, which has {tensor.dim()}.")
            )
        raw = dict(enumerate(raw))
    if not isinstance(raw, Mapping):
        raise DynamicShapeError(
            explain(f"dynamic_shapes for {place} is {raw!r}.", fix='give {dim: name}, e.g. {0: "batch"}')
        )
    specs: dict[int, DimSpec] = {}
    for dim, value in raw.items():
        if not isinstance(dim, int) or isinstance(dim, bool) or not -tensor.dim() <= dim < tensor.dim():
            raise DynamicShapeError(explain(f"{place} has {tensor.dim()} dims, so it has no dim {dim!r}."))
        dim %= tensor.dim()
        spec = _read(value, f"{place}_{dim}")
        if isinstance(spec, int) and spec != tensor.shape[dim]:
            raise DynamicShapeError(
                explain(f"dim {dim} of {place} is declared {spec}, but the example has {tensor.shape[dim]}.")
            )
        if isinstance(spec, DimSpec):
            specs[dim] = spec
    return specs


def _read(value: Any, default_name: str) -> DimSpec | int | None:
    """One dim's declaration in any spelling; None and an int are static."""
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, str):
        return _read_text(value, default_name)
    hint = getattr(getattr(value, "type", None), "name", None)
    if hint is not None:  # torch.export.Dim.AUTO, DYNAMIC, STATIC
        if hint == "STATIC":
            return None
        return DimSpec(_slug(default_name), low=value.min, high=value.max, auto=True)
    root = getattr(value, "root", None)
    if root is not None:  # a derived torch.export dim, e.g. 2*seq + 1
        probe = [int(value.fn(x)) for x in (1, 2)]
        return DimSpec(root.__name__, probe[1] - probe[0], 2 * probe[0] - probe[1], *_bounds(root))
    if hasattr(value, "__name__") and hasattr(value, "min"):
        return DimSpec(value.__name__, 1, 0, *_bounds(value))
    raise DynamicShapeError(
        explain(
            f"A dynamic dim is declared as {value!r}.",
            fix='use a name ("batch"), an expression of one ("2*seq"), "auto", or torch.export.Dim',
        )
    )


def _read_text(text: str, default_name: str) -> DimSpec:
    if text == _AUTO:
        return DimSpec(_slug(default_name), auto=True)
    match = _EXPRESSION.match(text)
    if match is None or match.group(1) == "0":
        raise DynamicShapeError(explain(f"The dim {text!r} cannot be read.", fix='write "name", "2*name" or "name + 1"'))
    scale, name, sign, offset = match.groups()
    return DimSpec(name, int(scale or 1), int(offset or 0) * (-1 if sign == "-" else 1))


def _bounds(dim: Any) -> tuple[int | None, int | None]:
    """torch.export.Dim without min and max has 0 and a huge number there; neither was asked for."""
    low, high = dim.min, dim.max
    unbounded = not isinstance(high, int) or high >= 2**62
    return (None if low == 0 and unbounded else int(low)), (None if unbounded else int(high))


def _slug(text: str) -> str:
    return re.sub(r"\W+", "_", text).strip("_")


def _gather_roots(declared: Declared, leaves: Sequence[Any], paths: Sequence[Path]) -> None:
    for index, specs in declared.specs.items():
        for dim, spec in specs.items():
            size = int(leaves[index].shape[dim])
            place = f"dim {dim} of {spell(paths[index])}"
            example, left = divmod(size - spec.offset, spec.scale)
            if left or example < 0:
                raise DynamicShapeError(
                    explain(f"{place} is declared {_spell_spec(spec)}, but the example's {size} is no such number.")
                )
            root = declared.roots.get(spec.name)
            if root is None:
                declared.roots[spec.name] = Root(
                    spec.name, example, example, place, spec.low, spec.high, spec.auto
                )
            elif root.example != example:
                raise DynamicShapeError(
                    explain(
                        f"The dim {spec.name} has two sizes in the example: {root.example} at {root.where}, "
                        f"{example} at {place}.",
                        fix="give them two names, or an example in which they agree",
                    )
                )
    for root in declared.roots.values():
        low, high = root.range
        if root.example < low or (high is not None and root.example > high):
            raise DynamicShapeError(
                explain(f"The dim {root.name} is declared in [{low}, {high}], but the example has {root.example}.")
            )
        # Sizes 0 and 1 behave unlike any other (they broadcast), so a dynamic dim is traced with a larger one.
        if root.hint < 2 and (high is None or high >= 2):
            root.hint = 3 if high is None or high >= 3 else 2


def _spell_spec(spec: DimSpec) -> str:
    text = spec.name if spec.scale == 1 else f"{spec.scale}*{spec.name}"
    return text if not spec.offset else f"{text} {'+' if spec.offset > 0 else '-'} {abs(spec.offset)}"


def make_fake(
    tensor: torch.Tensor,
    specs: Mapping[int, DimSpec],
    declared: Declared,
    mode: internals.FakeTensorMode,
    watch: Watch,
) -> torch.Tensor:
    """A fake like the example, with symbols where its dims are dynamic, and strides that follow."""
    env = mode.shape_env
    sizes: list[sympy.Expr] = []
    for dim, size in enumerate(tensor.shape):
        spec = specs.get(dim)
        if spec is None:
            sizes.append(sympy.Integer(size))
            continue
        root = declared.roots[spec.name]
        if root.symbol is None:
            low, high = root.range
            root.symbol = internals.new_symbol(env, root.name, root.hint, low, high)
        sizes.append(spec.scale * root.symbol + spec.offset)
    strides = _follow_strides(tensor, sizes)
    watch.paused = True  # what torch asks while it makes the fake says nothing about the model
    try:
        return internals.fake_sized(
            mode, tensor, [internals.symint(env, s) for s in sizes], [internals.symint(env, s) for s in strides]
        )
    finally:
        watch.paused = False


def _follow_strides(tensor: torch.Tensor, sizes: Sequence[sympy.Expr]) -> list[sympy.Expr]:
    """The strides of a dense tensor of these sizes in the example's order of dims; a stride of 0 stays."""
    strides: list[sympy.Expr] = [sympy.S.Zero] * tensor.dim()
    if tensor.numel() == 0 or tensor.is_contiguous():
        order = list(reversed(range(tensor.dim())))
    else:
        order = sorted(range(tensor.dim()), key=lambda d: (tensor.stride(d), tensor.shape[d], -d))
    step: sympy.Expr = sympy.S.One
    for dim in order:
        if tensor.stride(dim) == 0 and tensor.shape[dim] > 1:
            continue
        strides[dim] = step
        step = step * sizes[dim]
    return strides


# ---------------------------------------------------------------------- watching the trace


@dataclass(frozen=True, slots=True)
class Question:
    """A condition that held in the trace. `by_operator`: an operator asked it of itself."""

    condition: sympy.Basic
    by_operator: bool
    source: Source | None


class Watch:
    """Collects the questions that the trace asked of symbols."""

    def __init__(self, asked_by_operator: Callable[[], bool], place: Callable[[], Source | None]) -> None:
        self.questions: dict[tuple[sympy.Basic, bool], Question] = {}
        self.env = internals.WatchedShapeEnv(self._evaluated, self._is_idle)
        self.paused = False
        self._idle: dict[tuple[sympy.Basic, sympy.Basic], bool] = {}
        self._asked_by_operator = asked_by_operator
        self._place = place
        self._guards_seen = 0

    def _is_idle(self, expr: sympy.Basic, value: sympy.Basic) -> bool:
        """Whether the trace does not hang on the answer: an operator asks, and all it excludes is sizes 0 and 1."""
        if self.paused:
            return True
        if not self._asked_by_operator():
            return False
        known = self._idle.get((expr, value))
        if known is None:
            known = self._idle[expr, value] = _spares_sizes_from_two(_condition(expr, value))
        return known

    def _evaluated(self, expr: sympy.Basic, value: sympy.Basic) -> None:
        by_operator = self._asked_by_operator()
        fresh = len(self.env.guards) > self._guards_seen
        if by_operator and not fresh:
            return
        source = self._place()
        for guard in self.env.guards[self._guards_seen :]:
            self._note(guard.expr, by_operator, source)
        self._guards_seen = len(self.env.guards)
        if not by_operator:
            self._note(_condition(expr, value), False, source)

    def finish(self) -> Iterable[Question]:
        for guard in self.env.guards[self._guards_seen :]:
            self._note(guard.expr, False, None)
        self._guards_seen = len(self.env.guards)
        return self.questions.values()

    def _note(self, condition: sympy.Basic, by_operator: bool, source: Source | None) -> None:
        if condition not in (sympy.true, sympy.false):
            self.questions.setdefault((condition, by_operator), Question(condition, by_operator, source))


def _condition(expr: sympy.Basic, value: sympy.Basic) -> sympy.Basic:
    """What the answer `value` to the question `expr` says about the sizes."""
    if value == sympy.true:
        return expr
    return sympy.Not(expr) if value == sympy.false else sympy.Eq(expr, value)


def _spares_sizes_from_two(condition: sympy.Basic) -> bool:
    """Whether a condition holds wherever the sizes that it speaks of, the factors of each side, are two or more.

    A condition that two things differ counts as such too: it excludes single sizes, at which an operator may do
    something special but gives the same shape.
    """
    if isinstance(condition, sympy.Ne):
        return True
    if isinstance(condition, sympy.And | sympy.Or):
        return all(_spares_sizes_from_two(part) for part in condition.args)
    if not isinstance(condition, sympy.core.relational.Relational) or isinstance(condition, sympy.Eq):
        return False
    stand_ins: dict[sympy.Basic, sympy.Symbol] = {}

    def stand_in(side: sympy.Basic) -> sympy.Basic:
        if not side.free_symbols:
            return side
        if isinstance(side, sympy.Mul):
            return sympy.Mul(*(stand_in(factor) for factor in side.args))
        if isinstance(side, sympy.Pow) and side.exp.is_Integer:
            return sympy.Pow(stand_in(side.base), side.exp)
        if len(side.free_symbols) > 1 and isinstance(side, sympy.Add):
            return side  # a difference of two dims is no size
        return stand_ins.setdefault(side, sympy.Symbol(f"t{len(stand_ins)}", integer=True, positive=True))

    left, right = (stand_in(side) for side in condition.args)
    if (left.free_symbols | right.free_symbols) - set(stand_ins.values()):
        return False
    if not right.free_symbols or not left.free_symbols:
        bound = internals.bound_sympy(
            condition.func(left, right),
            {symbol: internals.ValueRanges(2, internals.int_oo) for symbol in stand_ins.values()},
        )
        return bool(bound.is_singleton() and bound.lower == sympy.true)
    return _compares_products(condition.func, left, right)


def _compares_products(relation: Callable[..., Any], left: sympy.Basic, right: sympy.Basic) -> bool:
    """Whether a relation between two products of sizes (strides, as a rule) holds for all sizes from two on."""
    ratio = (left / right).as_powers_dict()  # type: ignore[operator]
    sizes = {base: power for base, power in ratio.items() if base.free_symbols}
    if not all(base.is_Symbol and power.is_Integer for base, power in sizes.items()):
        return False
    edge = (left / right).xreplace(dict.fromkeys(sizes, sympy.Integer(2)))  # type: ignore[operator]
    growing = all(power > 0 for power in sizes.values()) and relation in (sympy.Gt, sympy.Ge)
    shrinking = all(power < 0 for power in sizes.values()) and relation in (sympy.Lt, sympy.Le)
    return (growing or shrinking) and bool(relation(edge, 1))


# ---------------------------------------------------------------------- what follows from it


def conclude(declared: Declared, watch: Watch) -> tuple[tuple[Dim, ...], tuple[Constraint, ...]]:
    """The dims with the ranges that the trace supports, and the constraints that calls must satisfy."""
    roots = {root.symbol: root for root in declared.roots.values() if root.symbol is not None}
    if not roots:
        return (), ()
    found = _Conclusion(roots, watch.env)
    for question in watch.finish():
        if question.condition.free_symbols <= roots.keys():
            found.consider(question)
    if found.problems:
        raise DynamicShapeError("\n".join(found.problems.values()))
    dims = tuple(Dim(r.name, *found.ranges[s], r.auto) for s, r in roots.items() if not found.tied(s))
    return dims, tuple(found.constraints.values())


class _Conclusion:
    def __init__(self, roots: Mapping[sympy.Symbol, Root], env: internals.ShapeEnv) -> None:
        self.roots = roots
        self.ranges: dict[sympy.Symbol, tuple[int, int | None]] = {s: root.range for s, root in roots.items()}
        self.problems: dict[str, str] = {}
        self.constraints: dict[sympy.Basic, Constraint] = {}
        self._env = env
        self._random = random.Random(0)

    def tied(self, symbol: sympy.Symbol) -> bool:
        return self._env.replace(symbol) != symbol

    def consider(self, question: Question) -> None:
        condition = question.condition
        if self._proved(condition, 2 if question.by_operator else 0):
            return
        symbols = sorted(condition.free_symbols, key=lambda s: s.name)
        if isinstance(condition, sympy.Eq) and not self._holds_everywhere(condition):
            self._equality(condition, symbols, question)
        elif len(symbols) == 1:
            self._narrow(condition, symbols[0], question)
        else:
            self._constrain(condition, question)

    def _equality(self, condition: sympy.Basic, symbols: list[sympy.Symbol], question: Question) -> None:
        place = _place(question.source)
        for symbol in symbols:
            fixed = self._env.replace(symbol)
            if fixed.is_number:
                self._frozen(symbol, int(fixed), place)
                return
        if all(self.roots[s].auto for s in symbols):
            # Automatic dims may be tied to each other; a tie that torch resolved is in the sizes already.
            if self._env.replace(condition) != sympy.true and not self._env.simplify(condition) == sympy.true:
                self._constrain(condition, question)
            return
        names = " and ".join(dims_.name_of(s) for s in symbols)
        tie = next((s for s in symbols if self.tied(s)), None)
        if tie is not None:
            other = dims_.spell(self._env.replace(tie))
            fix = f'declare that dim as "{other}" instead of "{dims_.name_of(tie)}"'
        elif multiple := next(((s, step) for s in symbols if (step := _divisor(condition, s))), None):
            name, step = dims_.name_of(multiple[0]), multiple[1]
            fix = f'declare {name} as a multiple: "{step}*{name}_{step}"'
        elif len(symbols) == 1:
            fix = f"make the line independent of the size, or leave {names} out of dynamic_shapes"
        else:
            fix = "declare one of them through the other, or leave it out of dynamic_shapes"
        self.problems.setdefault(
            names,
            explain(
                f"The dynamic dims are not free: {names} must satisfy {dims_.spell(condition)}.",
                where=place,
                fix=fix,
            ),
        )

    def _frozen(self, symbol: sympy.Symbol, value: int, place: str) -> None:
        root = self.roots[symbol]
        self.problems.setdefault(
            root.name,
            explain(
                f"The dim {root.name} ({root.where}) is declared dynamic, but this model works for size {value} only.",
                where=place,
                why="that line needs the size as a plain number, or compares it with one",
                fix=f"make the line independent of the size, or leave {root.name} out of dynamic_shapes",
            ),
        )

    def _narrow(self, condition: sympy.Basic, symbol: sympy.Symbol, question: Question) -> None:
        root = self.roots[symbol]
        low, high = self._supported(condition, symbol, root.hint)
        old_low, old_high = self.ranges[symbol]
        scattered = self._holds_beyond(condition, symbol, low, high)
        if low == high and (old_low, old_high) != (low, high) and not scattered:
            self._frozen(symbol, low, _place(question.source))
            return
        low, high = max(low, old_low), old_high if high is None else (high if old_high is None else min(high, old_high))
        # A lower bound of 0 is torch.export.Dim's default: it lets empty tensors in, and promises nothing.
        excluded_low, excluded_high = low > old_low and bool(root.low), high != old_high and root.high is not None
        if scattered and not (root.low or root.high):
            self._constrain(condition, question)
            return
        if excluded_low or excluded_high:
            wanted = "another range" if scattered else f"min={low}" if excluded_low else f"max={high}"
            self.problems.setdefault(
                f"{root.name} {wanted}",
                explain(
                    f"The dim {root.name} ({root.where}) is declared in [{root.range[0]}, {root.range[1]}], but this "
                    f"trace holds for {dims_.spell(condition)} only.",
                    where=_place(question.source),
                    why="the model's code takes another path for the other sizes",
                    fix=f"declare {wanted}, or make the line independent of the size",
                ),
            )
            return
        self.ranges[symbol] = (low, high)
        if (low, high) != (old_low, old_high) or not self._proved(condition, 2 if question.by_operator else 0):
            self._constrain(condition, question)  # the range says it already; the constraint says whose line it was

    def _constrain(self, condition: sympy.Basic, question: Question) -> None:
        self.constraints.setdefault(condition, Constraint(condition, str(question.source or "")))

    def _proved(self, condition: sympy.Basic, at_least: int) -> bool:
        ranges = {
            s: internals.ValueRanges(
                max(low, at_least if high is None or high >= at_least else low),
                internals.int_oo if high is None else high,
            )
            for s, (low, high) in self.ranges.items()
        }
        bound = internals.bound_sympy(condition, ranges)
        return bool(bound.is_singleton() and bound.lower == sympy.true)

    def _supported(self, condition: sympy.Basic, symbol: sympy.Symbol, hint: int) -> tuple[int, int | None]:
        """The interval of sizes around the example for which the condition holds."""

        def holds(size: int) -> bool:
            return _holds(condition, {symbol: size})

        floor, ceiling = self.ranges[symbol]
        low = hint
        while low > floor and holds(low - 1):
            low -= 1
        step, high = 1, hint
        top = 2**40 if ceiling is None else ceiling
        while high < top and holds(min(high + step, top)):
            high = min(high + step, top)
            step *= 2
        if high >= top:
            return low, ceiling
        good, bad = high, min(high + step, top)
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if holds(middle) else (good, middle)
        return low, good

    def _holds_beyond(self, condition: sympy.Basic, symbol: sympy.Symbol, low: int, high: int | None) -> bool:
        """Whether the condition holds at sizes outside of an interval too, so that no interval describes it."""
        if high is None:
            return False
        floor, ceiling = self.ranges[symbol]
        top = high + 64 if ceiling is None else min(ceiling, high + 64)
        sizes = [*range(floor, low), *range(high + 1, top + 1)]
        return any(_holds(condition, {symbol: size}) for size in sizes)

    def _holds_everywhere(self, condition: sympy.Basic) -> bool:
        """Whether a condition that could not be proved holds at every size that was tried."""
        symbols = list(condition.free_symbols)
        for _ in range(32):
            sizes = {}
            for s in symbols:
                low, high = self.ranges[s]
                sizes[s] = self._random.randint(low, max(low, 4 * self.roots[s].hint + 64) if high is None else high)
            if not _holds(condition, sizes):
                return False
        return True


def _holds(condition: sympy.Basic, sizes: Mapping[sympy.Symbol, int]) -> bool:
    try:
        return bool(dims_.evaluate(condition, sizes))
    except ZeroDivisionError:
        return False


def _divisor(condition: sympy.Basic, symbol: sympy.Symbol) -> int | None:
    """The step of a condition such as seq % 8 == 0, whatever the other sizes in it."""
    others = [dict.fromkeys(condition.free_symbols - {symbol}, size) for size in (7, 11, 24)]
    for step in range(2, 257):
        sizes = [{**other, symbol: size} for size in range(step, 6 * step) for other in others]
        if all(_holds(condition, at) == (at[symbol] % step == 0) for at in sizes):
            return step
    return None


def _place(source: Source | None) -> str:
    if source is None:
        return ""
    return f"{source}" + (f": {source.text}" if source.text else "")


def signature_parameters(call: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a forward, or none where Python cannot tell."""
    try:
        return list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):
        return []


def bind_check(call: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises CaptureError if `call` cannot take these arguments."""
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as failure:
        raise CaptureError(
            explain(
                f"The model cannot be called with these arguments: {failure}.",
                why=f"its forward is {signature}",
                fix="give capture the arguments that you would call the model with",
            )
        ) from None
