"""`check="numerics"`: whether a pass kept what a program computes, and if not, which node is to blame.

A program is run before and after a pass on its example inputs and on inputs of other sizes within its dims' ranges, in
its own dtypes and in float64. Results, and state and arguments that it writes, must agree: bit for bit after a pass
that only moves things around, within rounding otherwise. On a difference both are run again node by node; the first
node whose value differs although its inputs agree is named.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.analysis.side_effects import has_side_effects
from ingot.errors import InputError, NumericsError, format_error
from ingot.ir import execution, metadata, pytree, symbolic_dims
from ingot.ir.outlining import graph_modules
from ingot.ir.program import Program
from ingot.ir.signature import InputKind
from ingot.passes.cse import key_of
from ingot.passes.decompositions.float64_quantization import EXACT
from ingot.passes.manager import PassInfo

_SEED = 20
_DRAWS = 8
_WIDE = {
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64),
    **dict.fromkeys((torch.complex32, torch.complex64), torch.complex128),
}
_NARROW = {torch.float64: torch.float32, torch.complex128: torch.complex64}
# How much finer the roundings of float64 are than those of float32.
_FINER = 2.0**-29
# Relative to the largest value: a handful of roundings in each dtype.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 4e-2, torch.float16: 4e-3}
_TOLERANCE |= {torch.complex128: _TOLERANCE[torch.float64], torch.complex64: _TOLERANCE[torch.float32]}


class Reference:
    """Inputs to compare programs on: the example's, and generated ones at other sizes."""

    def __init__(self, program: Program) -> None:
        self.inputs: list[list[Any]] = []
        # What the program of the last comparison gave, by whether in float64 and by input: the next one starts there.
        self._last: dict[tuple[bool, int], _Observed] = {}
        for attempts in _inputs_of(program):
            for leaves in attempts:
                try:
                    observed = _observe(program, leaves)
                except (RuntimeError, IndexError):
                    if not self.inputs:
                        raise
                    # The model itself refuses what we made up: a kernel larger than the image, a row no table has.
                    continue
                self._last[False, len(self.inputs)] = observed
                self.inputs.append(leaves)
                break

    def compare(
        self, before: Program, after: Program, info: PassInfo, apply: Callable[[Program], int] | None = None
    ) -> None:
        """Raises NumericsError if the two programs differ on any of the inputs. `apply` runs the pass again.

        `before` is the program that the last comparison ended with, if there was one.
        """
        for wide in (False, True):
            old, new = (convert_to_float64(before), convert_to_float64(after)) if wide else (before, after)
            again = wide and info.computes and apply is not None
            if again and apply is not None:
                new = convert_to_float64(before, values=True)
                with _default_dtype(wide):  # as when it runs: what fold divides, integer by integer, is float64 too
                    apply(new)
                new.graph_module.recompile()
            for index, leaves in enumerate(self.inputs):
                given = [_widen(leaf) for leaf in leaves] if wide else leaves
                expected = self._last.pop((wide, index), None) or _observe(old, given, wide)
                got = _observe(new, given, wide)
                problem = _difference(expected, got, info.exact, None if wide else _coarsest(before))
                if problem is not None:
                    with _default_dtype(wide):
                        raise NumericsError(_blame(old, new, given, info, problem))
                if not again:  # else `new` is not what the next pass begins with
                    self._last[wide, index] = got


@dataclass(frozen=True, slots=True)
class Trial:
    """One call of a program: its arguments as leaves, and what it makes known in its own dtypes and in float64.

    `own` and `exact` map "result …", "argument …" and "state …" to values, in the order of the program's results.
    `near` gives such pairs for inputs that are a few roundings away: how far the program's own dtypes are from float64
    is one draw in each call, and may be a lucky one. Of a program in float64 nothing more exact is known: there the
    last pair is as far apart as float32 is from it, in float64's finer roundings.
    """

    leaves: list[Any]
    own: dict[str, Any]
    exact: dict[str, Any]
    near: Callable[[], Iterator[tuple[dict[str, Any], dict[str, Any]]]]


def trials(program: Program) -> Iterator[Trial]:
    """Calls at the example's sizes and at two others within the range of each dim, where the program takes them."""
    reference = Reference(program)
    wide = convert_to_float64(program)

    def exactly(leaves: list[Any], own: dict[str, Any]) -> dict[str, Any]:
        try:
            return _observe(wide, [_widen(leaf) for leaf in leaves], wide=True).values
        except (RuntimeError, IndexError, AssertionError):
            return own  # an operator that has no float64, and says so in a way of its own

    def near(leaves: list[Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        for seed in range(_DRAWS):
            draws = torch.Generator().manual_seed(seed)
            moved = [_move(leaf, draws) for leaf in leaves]
            own = _observe(program, moved).values
            yield own, exactly(moved, own)
        own = _observe(program, leaves).values
        if any(_is_double(value) for value in own.values()):
            with contextlib.suppress(RuntimeError, IndexError, AssertionError):
                coarse = _observe(_recast(program, _NARROW), [_cast(leaf, _NARROW) for leaf in leaves]).values
                yield own, {name: _refine(value, coarse[name]) for name, value in own.items()}

    for index, leaves in enumerate(reference.inputs):
        own = reference._last[False, index].values
        yield Trial(leaves, own, exactly(leaves, own), functools.partial(near, leaves))


def _is_double(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.float64


def _refine(own: Any, coarse: Any) -> Any:
    """What float64 gave, moved as far as float32 is from it, in float64's roundings."""
    if not _is_double(own) or coarse.shape != own.shape:
        return own
    return own + (coarse.double() - own) * _FINER


def _move(leaf: Any, draws: torch.Generator) -> Any:
    """Every float moved by at most two units in its last place."""
    if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
        return leaf
    steps = torch.randint(-2, 3, leaf.shape, generator=draws).to(leaf.dtype)
    return leaf * (1 + steps * torch.finfo(leaf.dtype).eps)


def is_unchanged(before: Program, after: Program) -> bool:
    """Whether two programs are the same node for node, with the same state."""
    same_state = all(
        a.keys() == b.keys() and all(a[key] is b[key] for key in a)
        for a, b in ((before.state_dict, after.state_dict), (before.constants, after.constants))
    )
    if not same_state or before.signature != after.signature or before.dialect != after.dialect:
        return False
    pairs = list(itertools.zip_longest(graph_modules(before.graph_module), graph_modules(after.graph_module)))
    return all(a is not None and b is not None and _same_graph(a.graph, b.graph) for a, b in pairs)


def _same_graph(a: fx.Graph, b: fx.Graph) -> bool:
    return len(a.nodes) == len(b.nodes) and all(
        x.op == y.op
        and x.name == y.name
        and x.target == y.target
        and key_of(fx.map_arg(x.args, _name_of)) == key_of(fx.map_arg(y.args, _name_of))
        and key_of(fx.map_arg(x.kwargs, _name_of)) == key_of(fx.map_arg(y.kwargs, _name_of))
        for x, y in zip(a.nodes, b.nodes, strict=True)
    )


def _name_of(node: fx.Node) -> Any:
    return ("node", node.name)


# ---------------------------------------------------------------------- inputs


def _inputs_of(program: Program) -> Iterator[list[list[Any]]]:
    """Arguments to run a program on; at each size several, of which the first that the program takes is to serve."""
    if program.example_inputs is None:
        return
    args, kwargs = program.example_inputs
    leaves, _ = pytree.flatten((args, kwargs))
    yield [leaves]
    yield from _other_sizes(program, leaves)


def _other_sizes(program: Program, example: list[Any]) -> Iterator[list[list[Any]]]:
    """The example's arguments at the least sizes, and at larger, unrelated ones: drawn anew, or else its own values."""
    if not program.dims:
        return
    fakes = {n.name: metadata.value_of(n) for n in program.graph.nodes if n.op == "placeholder"}
    specs = program.signature.user_inputs
    for steps in ((0,), (7, 12, 4, 10)):
        sizes = {}
        for index, dim in enumerate(program.dims):
            size = dim.low + steps[index % len(steps)]
            sizes[dim.name] = size if dim.high is None else min(size, dim.high)
        generator = torch.Generator().manual_seed(_SEED)
        shapes = [_sizes_at(fakes[i.name], sizes) if i.kind is InputKind.ARGUMENT else None for i in specs]
        pairs = list(zip(example, shapes, strict=True))
        attempts = [
            [leaf if shape is None else _draw(leaf, shape, generator) for leaf, shape in pairs],
            [leaf if shape is None else _repeat(leaf, shape) for leaf, shape in pairs],
        ]
        args, kwargs = pytree.unflatten(attempts[0], program.signature.in_tree)
        try:
            execution.check_call(program, args, kwargs)
        except InputError:
            continue  # a constraint rules these sizes out
        yield attempts


def _sizes_at(fake: Any, sizes: Mapping[str, int]) -> list[int]:
    return [int(symbolic_dims.evaluate(internals.expr_of(s), _map_symbols(s, sizes))) for s in fake.shape]


def _draw(example: torch.Tensor, shape: list[int], generator: torch.Generator) -> torch.Tensor:
    """A tensor of the example's dtype and range in another shape, in order where the example is: offsets, say."""
    if _ascends(example):
        return _spread(example, shape, generator).sort(-1).values
    return _spread(example, shape, generator)


def _ascends(example: torch.Tensor) -> bool:
    if example.dim() == 0 or example.shape[-1] < 3 or example.dtype.is_complex or example.dtype is torch.bool:
        return False
    return example.numel() > 0 and bool((example[..., 1:] >= example[..., :-1]).all())


def _spread(example: torch.Tensor, shape: list[int], generator: torch.Generator) -> torch.Tensor:
    if example.dtype.is_floating_point or example.dtype.is_complex:
        scale = float(example.abs().float().mean()) if example.numel() else 1.0
        made = torch.randn(shape, generator=generator, dtype=torch.float64) * (scale if math.isfinite(scale) else 1.0)
        return made.to(example.dtype)
    low, high = (int(example.min()), int(example.max())) if example.numel() else (0, 1)
    return torch.randint(low, high + 1, shape, generator=generator).to(example.dtype)


def _repeat(example: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """The example repeated and cut to another shape, so that a number stays where it means something: a row, say."""
    if not example.numel():
        return example.new_zeros(shape)
    made = example.detach()
    for axis, size in enumerate(shape):
        made = made.index_select(axis, torch.arange(size) % made.shape[axis])
    return made


def _map_symbols(size: Any, sizes: Mapping[str, int]) -> dict[sympy.Symbol, int]:
    return {
        s: sizes[symbolic_dims.name_of(s)]
        for s in internals.expr_of(size).free_symbols
        if symbolic_dims.name_of(s) in sizes
    }


def _cast(leaf: Any, to: Mapping[torch.dtype, torch.dtype]) -> Any:
    return leaf.to(to[leaf.dtype]) if isinstance(leaf, torch.Tensor) and leaf.dtype in to else leaf


def _widen(leaf: Any) -> Any:
    return _cast(leaf, _WIDE)


def convert_to_float64(program: Program, *, values: bool = False) -> Program:
    """The program with every number as float64 or complex128: state, dtype literals, and autocast switched off.

    `values`: the values that its nodes know as well, for a pass that reads them.
    """
    wide = _recast(program, _WIDE)
    for module in graph_modules(wide.graph_module):
        for node in module.graph.nodes:
            node.target = EXACT.get(str(node.target), node.target)
            if values:
                metadata.set_value(node, _wide_value(metadata.value_of(node)))
            if node.target in (internals.enter_autocast, torch.ops.higher_order.wrap_with_autocast):
                node.args = (*node.args[:2], False, *node.args[3:])
        module.recompile()
    return wide


def _recast(program: Program, to: Mapping[torch.dtype, torch.dtype]) -> Program:
    """The program with its state and its dtype literals in other types."""
    made = program.copy()
    for module in graph_modules(made.graph_module):
        for node in module.graph.nodes:
            node.args, node.kwargs = _literals(node.args, to), _literals(node.kwargs, to)
        module.recompile()
    cast = {id(t): _cast(t.detach(), to) for t in (*made.state_dict.values(), *made.constants.values())}
    made.state_dict = {name: cast[id(t)] for name, t in made.state_dict.items()}
    made.constants = {name: cast[id(t)] for name, t in made.constants.items()}
    return made


def _wide_value(value: Any) -> Any:
    """A node's recorded value as it is in float64."""
    if isinstance(value, torch.Tensor) and value.dtype in _WIDE:
        with internals.fake_mode_of(value) or contextlib.nullcontext(), torch.no_grad():
            return value.to(_WIDE[value.dtype])
    if type(value) in (list, tuple):
        return type(value)(_wide_value(item) for item in value)
    return value


def _literals(argument: Any, to: Mapping[torch.dtype, torch.dtype]) -> Any:
    if isinstance(argument, torch.dtype):
        return to.get(argument, argument)
    if isinstance(argument, list | tuple):
        return type(argument)(_literals(item, to) for item in argument)
    if isinstance(argument, dict):
        return {key: _literals(item, to) for key, item in argument.items()}
    return argument


# ---------------------------------------------------------------------- running


@dataclass(frozen=True, slots=True)
class _Observed:
    """Everything a call makes known: its result's leaves, the state and the arguments after it."""

    values: dict[str, Any]


def _observe(program: Program, leaves: list[Any], wide: bool = False) -> _Observed:
    """Runs a program on copies of its state and arguments, with a fixed seed. `wide`: it is one in float64."""
    running, given = _copy_state(program), _clone(leaves)
    with torch.random.fork_rng(devices=[]), torch.no_grad(), _default_dtype(wide):
        torch.manual_seed(_SEED)
        result = execution.run_leaves(running, given)
    out_leaves, out_tree = pytree.flatten(result)
    values = {
        f"result {pytree.format_path(p)}": v for p, v in zip(pytree.leaf_paths(out_tree), out_leaves, strict=True)
    }
    values.update({f"argument {i}": v for i, v in enumerate(given)})
    values.update({f"state {name}": t for name, t in running.state_dict.items()})
    values.update({f"state {name}": t for name, t in running.constants.items() if name in program.constants})
    return _Observed(values)


@contextlib.contextmanager
def _default_dtype(wide: bool) -> Iterator[None]:
    """Inside, tensors that are made without a dtype are in float64 too, if `wide`."""
    old = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if wide and old in _WIDE else old)
    try:
        yield
    finally:
        torch.set_default_dtype(old)


def _copy_state(program: Program) -> Program:
    """The same program on copies of its tensors, tied ones still tied."""
    made = {id(t): t.detach().clone() for t in (*program.state_dict.values(), *program.constants.values())}
    running = Program(
        graph_module=program.graph_module,
        signature=program.signature,
        state_dict={name: made[id(t)] for name, t in program.state_dict.items()},
        constants={name: made[id(t)] for name, t in program.constants.items()},
        dims=program.dims,
        constraints=program.constraints,
        parameter_names=program.parameter_names,
    )
    return running


def _clone(leaves: list[Any]) -> list[Any]:
    made = {id(x): x.detach().clone() for x in leaves if isinstance(x, torch.Tensor)}
    return [made.get(id(x), x) for x in leaves]


# ---------------------------------------------------------------------- comparing


def _coarsest(program: Program) -> torch.dtype | None:
    """The dtype with the largest roundings that a program computes in: under autocast, not that of its results.

    An operator and what it is made of round at other places there (attention keeps its scores in float32); that they
    mean the same is for the comparison in float64 to say.
    """
    nodes = (n for m in graph_modules(program.graph_module) for n in m.graph.nodes if n.op == "call_function")
    dtypes = {t.dtype for n in nodes for t in metadata.tensors_in(metadata.value_of(n))}
    return max(dtypes & _TOLERANCE.keys(), key=_TOLERANCE.__getitem__, default=None)


def _difference(expected: _Observed, got: _Observed, exact: bool, computed_in: torch.dtype | None = None) -> str | None:
    for name, value in expected.values.items():
        if name not in got.values:
            if name.startswith("state"):
                continue  # a pass may fold state away
            return f"{name} is missing"
        problem = compare_values(value, got.values[name], exact, computed_in)
        if problem is not None:
            return f"{name} {problem}"
    return None


def compare_values(a: Any, b: Any, exact: bool, computed_in: torch.dtype | None = None) -> str | None:
    """How two values differ, or None. `exact` asks for the same bits; else for those of the dtype computed in."""
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        problems = (compare_values(x, y, exact, computed_in) for x, y in zip(a, b, strict=False))
        return next((p for p in problems if p), None) or (None if len(a) == len(b) else "has another length")
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        same = type(a) is type(b) and (a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b)))
        return None if same or callable(a) else f"is {b!r} instead of {a!r}"
    a, b = a.detach(), b.detach()
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"is {execution.show_shape(b)} instead of {execution.show_shape(a)}"
    if torch.equal(a.isnan(), b.isnan()) and torch.equal(a[~a.isnan()], b[~b.isnan()]):
        return None
    if not a.dtype.is_floating_point and not a.dtype.is_complex:
        return f"differs in {int((a != b).sum())} of {a.numel()} places"
    if not torch.equal(a.isnan(), b.isnan()) or not torch.equal(a.isinf(), b.isinf()):
        return "has nan or inf in other places"
    finite = a.isfinite() & b.isfinite()
    wide = torch.complex128 if a.dtype.is_complex else torch.float64
    x, y = a[finite].to(wide), b[finite].to(wide)
    error = float((x - y).abs().max()) if x.numel() else 0.0
    scale = float(x.abs().max()) if x.numel() else 0.0
    rounding = max(_TOLERANCE.get(a.dtype, 1e-9), _TOLERANCE.get(computed_in, 0.0) if computed_in else 0.0)
    allowed = 0.0 if exact else rounding * max(scale, 1e-30)
    return None if error <= allowed else f"differs by {error:.3g} where the largest value is {scale:.3g}"


# ---------------------------------------------------------------------- blaming


class _Recording(fx.Interpreter):
    """Runs a graph and keeps a copy of each node's value as it was when the node ran."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.seen: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.seen[n.name] = _copy(value)
        return value


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return type(value)(_copy(v) for v in value) if type(value) in (list, tuple) else value


def _values_by_node(program: Program, leaves: list[Any]) -> dict[str, Any]:
    running, given = _copy_state(program), _clone(leaves)
    tensors = [x for x, i in zip(given, program.signature.user_inputs, strict=True) if i.kind is InputKind.ARGUMENT]
    state = [running.state_of(i) for i in running.signature.state_inputs]
    recording = _Recording(program.graph_module)
    with torch.random.fork_rng(devices=[]), torch.no_grad(), internals.modes_restored():
        torch.manual_seed(_SEED)
        recording.run(*state, *tensors)
    return recording.seen


def _blame(before: Program, after: Program, leaves: list[Any], info: PassInfo, problem: str) -> str:
    old, new = _values_by_node(before, leaves), _values_by_node(after, leaves)
    node = _culprit(before, after, old, new, info.exact)
    where = metadata.where(node) if node is not None else "no single node could be found"
    detail = compare_values(old.get(node.name), new.get(node.name), info.exact) if node is not None else None
    return format_error(
        f"The pass {info.name} changed what the program computes: {problem}.",
        where=where,
        why=f"{node.format_node()}" + (f"; its value {detail}" if detail and node.name in old else "")
        if node is not None
        else None,
        fix="the program is as it was before the pass; look at what the pass did to that node",
    )


def _culprit(
    before: Program, after: Program, old: Mapping[str, Any], new: Mapping[str, Any], exact: bool
) -> fx.Node | None:
    """The first node that differs although its inputs agree; a node that the pass made or changed comes first."""
    known: dict[str, fx.Node] = {n.name: n for n in before.graph.nodes}
    node: fx.Node
    for node in after.graph.nodes:
        if node.op in ("placeholder", "output") or node.name not in old:
            continue
        if compare_values(old[node.name], new[node.name], exact) is None:
            continue
        made = [n for n in _ancestors(node) if n.name not in known and n.op == "call_function"]
        if made:
            return made[0]
        if _same_call(known[node.name], node) and (lost := _lost_write(before, after, node)) is not None:
            return lost
        return node
    changed = (n for n in after.graph.nodes if n.name not in known or not _same_call(known[n.name], n))
    first: fx.Node | None = next(changed, None)
    return first


def _lost_write(before: Program, after: Program, node: fx.Node) -> fx.Node | None:
    """The last node before `node` that wrote to a tensor and that the pass removed."""
    left = {n.name for n in after.graph.nodes}
    earlier = itertools.takewhile(lambda n: n.name != node.name, before.graph.nodes)
    lost = [n for n in earlier if n.name not in left and n.op == "call_function" and has_side_effects(n)]
    return lost[-1] if lost else None


def _ancestors(node: fx.Node) -> list[fx.Node]:
    """What a node is computed from, in program order."""
    seen: set[fx.Node] = set()
    waiting = list(node.all_input_nodes)
    while waiting:
        current = waiting.pop()
        if current not in seen:
            seen.add(current)
            waiting.extend(current.all_input_nodes)
    return [n for n in node.graph.nodes if n in seen]


def _same_call(a: fx.Node, b: fx.Node) -> bool:
    return a.target == b.target and str(a.args) == str(b.args) and str(a.kwargs) == str(b.kwargs)


__all__ = ["Reference", "Trial", "compare_values", "convert_to_float64", "is_unchanged", "trials"]
