"""A Program becomes a Module: one rule an operator, from tensors to loops.

    @lowers(aten.relu.default)
    def relu(low, x): return low.pointwise("relu", x)

A rule is given the Lowering and the node's arguments as Tensors, Sizes and plain Python values; it returns Tensors. The
node being lowered is `low.node`, its type `low.out`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import sympy
import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.errors import UnsupportedOperator, explain
from ingot.lowering.body import Recorder
from ingot.lowering.expr import Expr, Size, divide, evaluate, largest, remainder, smallest, symbol
from ingot.lowering.ir import (
    Argument,
    Bind,
    Body,
    Buffer,
    Check,
    Loop,
    Map,
    Module,
    Origin,
    Reduce,
    Routine,
    SizeSymbol,
    Step,
    Store,
    Weight,
    wide,
)
from ingot.lowering.values import Index, Lazy, Shape, Strided, Tensor, contiguous_strides, loop_variables
from ingot.program import dims
from ingot.program.metadata import module_path_of, source_of, value_of
from ingot.program.program import Program
from ingot.program.signature import STATE_KINDS, InputKind, OutputKind

Rule = Callable[..., Any]
R = TypeVar("R", bound=Rule)
RULES: dict[Any, Rule] = {}

# Columns that a packed weight's panel may have, the best first where none wastes less.
PANELS = (48, 64, 32, 16)
# Rows of the tile that goes with each of them, on a machine with 32 vector registers.
HEIGHTS = (8, 6, 12, 12)
# A result used more than once is kept in memory if computing it again costs more than this.
CHEAP = 3
# An expression longer than this is cut: C compilers and caches both prefer it.
LONG = 48


def symbols_of(size: Size) -> set[str]:
    return {s.name for s in size.symbols} if isinstance(size, Expr) else set()


def lowers(*targets: Any) -> Callable[[R], R]:
    """Registers the rule for these operators; a second registration is a bug."""

    def register(rule: R) -> R:
        for target in targets:
            assert target not in RULES, f"{target} has two rules"
            RULES[target] = rule
        return rule

    return register


def panel_width(columns: int, rows: Size | None = None) -> int:
    """The panel that leaves the least of its columns empty. For few rows it is one of which all rows fit in the tile
    at once: such a product is as fast as its weights are read, and they are then read once."""
    fitting = [w for w, high in zip(PANELS, HEIGHTS, strict=True) if isinstance(rows, int) and rows <= high]
    if fitting and rows != 1:
        return fitting[0]
    return min(PANELS, key=lambda width: -(-columns // width) * width)


def rule_of(target: Any) -> Rule | None:
    """The rule of an operator; that of a library which may not be installed is registered by the operator's name."""
    return RULES.get(target) or RULES.get(str(target))


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


SUPPORTED = frozenset(
    [
        "bool",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
    ]
)


class Unsupported(Exception):
    """Raised by a rule that cannot take its arguments; `lower` collects all of them."""


def refusal(found: Sequence[tuple[fx.Node, str]]) -> UnsupportedOperator:
    """One error for everything that cannot be lowered: each operator once with a reason, and where it is used."""
    places: dict[tuple[str, str], list[str]] = {}
    for node, reason in found:
        source, path = source_of(node), module_path_of(node)
        where = ", ".join(part for part in (f"in {path}" if path else "", str(source) if source else "") if part)
        places.setdefault((str(node.target), reason), []).append(where or f"node {node.name}")
    lines = []
    for (target, reason), wheres in places.items():
        more = f" and {len(wheres) - 1} more" if len(wheres) > 1 else ""
        lines.append(f"    {target}: {reason} ({wheres[0]}{more})")
    count = len({target for target, _ in places})
    kind = "input" if all(node.op == "placeholder" for node, _ in found) else "operator"
    return UnsupportedOperator(
        explain(
            f"{count} {kind}{'s' if count > 1 else ''} cannot be compiled to native code:\n" + "\n".join(lines),
            fix="rewrite these lines with other operators, or run the program through torch: program(*args)",
        )
    )


def lower(program: Program) -> Module:
    """The program's loops. Every operator that cannot be lowered is named in one UnsupportedOperator."""
    import ingot.lowering.rules  # noqa: F401  fills RULES

    lowering = Lowering(program)
    missing = lowering.missing()
    if missing:
        raise refusal(missing)
    return lowering.module()


class Lowering:
    """The state of one lowering: buffers and steps so far, and the value of every node."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.buffers: dict[str, Buffer] = {}
        self.steps: list[Step] = []
        self.weights: list[Weight] = []
        self.values: dict[fx.Node, Any] = {}
        self.symbols: dict[str, SizeSymbol] = {}
        self.hints: dict[str, int] = {}
        self.node: fx.Node = next(iter(program.graph.nodes))
        self._names: dict[sympy.Symbol, str] = {}
        self._told: set[str] = set()  # symbols that an input or a step gives a value
        self._signed: dict[sympy.Symbol, bool] = {}
        self._sizes: dict[sympy.Basic, Size] = {}
        self._count = 0
        self.packed: dict[Any, str] = {}
        self.numbers: dict[sympy.Symbol, Tensor] = {}  # floats and bools that the run itself tells
        self.draws = 0

    # ------------------------------------------------------------------ the whole

    def missing(self) -> list[tuple[fx.Node, str]]:
        """Nodes that no rule can take, with why."""
        from ingot.program.cutting import graph_modules

        found = []
        for graph_module in graph_modules(self.program.graph_module):
            for node in graph_module.graph.nodes:
                given = node.op == "placeholder" and node.users and node.graph is self.program.graph
                if node.op == "call_function" or given:
                    reason = self._complaint(node)
                    if reason is not None:
                        found.append((node, reason))
        return found

    def _complaint(self, node: fx.Node) -> str | None:
        value = value_of(node)
        if isinstance(value, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)):
            return None
        if node.op == "call_function" and rule_of(node.target) is None:
            return "there is no rule for it"
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(part, torch.Tensor):
                if dtype_name(part.dtype) not in SUPPORTED:
                    return f"dtype {dtype_name(part.dtype)} is not supported"
                if part.layout is not torch.strided or part.device.type != "cpu":
                    return f"a {part.layout} tensor on {part.device} is not supported"
        return None

    def module(self) -> Module:
        inputs = self._placeholders()
        self._constraints()
        output = self.run(self.program.graph)
        outputs = self._outputs(output)
        return Module(
            buffers=self.buffers,
            steps=tuple(self.steps),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            weights=tuple(self.weights),
            symbols=self.symbols,
            hints=self.hints,
            draws=self.draws,
        )

    def run(self, graph: fx.Graph) -> Any:
        """Lowers every node of a graph whose placeholders have values; returns the value of its output."""
        failed: list[tuple[fx.Node, str]] = []
        for node in graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                continue
            if node.op == "output":
                if failed:
                    raise refusal(failed)
                return self.argument(node.args[0])
            outer, self.node = self.node, node
            try:
                self.values[node] = self._lowered(node)
            except Unsupported as error:
                failed.append((node, str(error)))
                self._told |= self._graphs  # one complaint about a size is enough
                self.values[node] = self._stand_in(node)
            finally:
                self.node = outer
        raise AssertionError("a graph has an output")

    def _lowered(self, node: fx.Node) -> Any:
        value = value_of(node)
        if isinstance(value, (int, float, bool)):
            return value
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            rule = rule_of(node.target)
            if rule is not None:
                rule(self, *map(self.argument, node.args))
            self._check_told(node)
            return self.symbolic(value)
        rule = rule_of(node.target)
        assert rule is not None
        result = rule(self, *map(self.argument, node.args), **{k: self.argument(v) for k, v in node.kwargs.items()})
        self._check_told(node)
        several = isinstance(value, (tuple, list)) and isinstance(result, (tuple, list)) and len(value) == len(result)
        types = value if several else (value,)
        parts = [self._typed(part, kind) for part, kind in zip(result if several else (result,), types, strict=True)]
        for part in parts:
            if isinstance(part, Tensor):
                self._settle(part, len(node.users))
        return parts if several else parts[0]

    def _typed(self, part: Any, value: Any) -> Any:
        """A result in the dtype that torch gives it: a rule may have computed it in a wider one."""
        if not isinstance(part, Tensor) or not isinstance(value, torch.Tensor) or part.dtype == dtype_name(value.dtype):
            return part
        dtype = dtype_name(value.dtype)
        return Tensor(
            part.shape, dtype, Lazy(lambda ops, index: ops.cast(part.load(ops, index), wide(dtype)), part.cost)
        )

    def _check_told(self, node: fx.Node) -> None:
        """A size that the rule left without a value would be whatever lies in memory."""
        value = value_of(node)
        for part in value if isinstance(value, (tuple, list)) else (value,):
            sizes = part.shape if isinstance(part, torch.Tensor) else (part,) if isinstance(part, torch.SymInt) else ()
            told = all(self.is_told(self.size(size)) for size in sizes)
            if isinstance(part, (torch.SymFloat, torch.SymBool)):
                told = all(s in self.numbers or self._name(s) in self._told for s in part.node.expr.free_symbols)
            if not told:
                what = f"of shape {[*part.shape]}" if isinstance(part, torch.Tensor) else str(part)
                raise Unsupported(f"it gives something {what}, known only when it runs, and its rule does not tell it")

    def _settle(self, tensor: Tensor, users: int) -> None:
        """Keeps in memory what is used often or has become long."""
        cost = tensor.cost
        if isinstance(tensor.data, Lazy) and ((users > 1 and cost > CHEAP) or cost > LONG):
            self.realize(tensor)

    def _stand_in(self, node: fx.Node) -> Any:
        """Something of the right type, so that lowering goes on and finds every other complaint."""
        value = value_of(node)
        parts = value if isinstance(value, (tuple, list)) else (value,)
        made = [
            self.full(self.shape_of(v), 0, dtype_name(v.dtype)) if isinstance(v, torch.Tensor) else v for v in parts
        ]
        return made if isinstance(value, (tuple, list)) else made[0]

    def argument(self, value: Any) -> Any:
        """An argument of a node, with nodes replaced by their values and symbolic numbers by Sizes."""
        if isinstance(value, fx.Node):
            if value.op == "get_attr":
                return getattr(value.graph.owning_module, str(value.target))
            return self.values[value]
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self.symbolic(value)
        if isinstance(value, (list, tuple)):
            return (
                type(value)(self.argument(v) for v in value)
                if type(value) in (list, tuple)
                else [*map(self.argument, value)]
            )
        if isinstance(value, dict):
            return {k: self.argument(v) for k, v in value.items()}
        return value

    # ------------------------------------------------------------------ inputs and outputs

    def _placeholders(self) -> list[Argument]:
        inputs: list[Argument] = []
        nodes = [n for n in self.program.graph.nodes if n.op == "placeholder"]
        mutated = {
            o.target
            for o in self.program.signature.outputs
            if o.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.ARGUMENT_MUTATION)
        }
        for spec, node in zip(self.program.signature.placeholders, nodes, strict=True):
            value = value_of(node)
            if spec.kind in STATE_KINDS:
                kind = "state" if spec.target in mutated and spec.kind is not InputKind.CONSTANT else "weight"
                self.values[node] = self._state(spec, node, kind)
            elif isinstance(value, torch.Tensor):
                shape, dtype = self._bound_shape(value, len(inputs)), dtype_name(value.dtype)
                if dtype not in SUPPORTED:
                    raise refusal([(node, f"dtype {dtype} is not supported")])
                name = self.buffer("input", dtype, shape).name
                inputs.append(Argument(name, spec.name, dtype, shape, spec.name in mutated))
                self.values[node] = Tensor(shape, dtype, Strided(name, 0, contiguous_strides(shape)))
            else:
                inputs.append(self._scalar_input(node, spec.name, value, len(inputs)))
        return inputs

    def _state(self, spec: Any, node: fx.Node, kind: str) -> Tensor:
        value = value_of(node)
        shape = tuple(int(size) for size in value.shape)
        name = self.buffer(kind, dtype_name(value.dtype), shape).name
        self.weights.append(Weight(name, spec.target))
        return Tensor(shape, dtype_name(value.dtype), Strided(name, 0, contiguous_strides(shape)))

    def _bound_shape(self, value: torch.Tensor, place: int) -> Shape:
        """The shape of an input; a dim that is a symbol of its own tells that symbol."""
        for dim, size in enumerate(value.shape):
            if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
                name = self._name(size.node.expr)
                self._told.add(name)
                self.symbols.setdefault(name, self._ranged(size.node.expr, place, dim))
                self.hints.setdefault(name, int(size.node.hint) if size.node.has_hint() else 8)
        return self.shape_of(value)

    def _scalar_input(self, node: fx.Node, name: str, value: Any, place: int) -> Argument:
        dtype = (
            "float64"
            if isinstance(value, (float, torch.SymFloat))
            else "bool"
            if isinstance(value, (bool, torch.SymBool))
            else "int64"
        )
        buffer = self.buffer("input", dtype, ()).name
        tensor = Tensor((), dtype, Strided(buffer, 0, ()))
        if isinstance(value, torch.SymInt) and isinstance(value.node.expr, sympy.Symbol):
            symbol_name = self._name(value.node.expr)
            self._told.add(symbol_name)
            self.hints.setdefault(symbol_name, 8)
            self.symbols.setdefault(symbol_name, self._ranged(value.node.expr, place, -1))
            self.values[node] = self.symbolic(value)
        else:
            self.values[node] = tensor
            if isinstance(value, torch.SymFloat) and isinstance(value.node.expr, sympy.Symbol):
                self.numbers[value.node.expr] = tensor
        return Argument(buffer, name, dtype, (), scalar=True)

    def _ranged(self, s: sympy.Symbol, place: int, dim: int) -> SizeSymbol:
        name = dims.name_of(s)
        found = next((d for d in self.program.dims if d.name == name), None)
        if found is None:
            return SizeSymbol(place, dim, name)
        return SizeSymbol(place, dim, name, max(found.low, 0), found.high)

    def _constraints(self) -> None:
        """What the program asks of its sizes beyond their ranges, checked before anything runs."""
        for constraint in self.program.constraints:
            ops = Recorder()
            value = self._compute(ops, constraint.condition, "bool")
            self.steps.append(Check(ops.finish([value]), f"The sizes do not satisfy {constraint}", True))

    def _outputs(self, values: Sequence[Any]) -> list[Argument]:
        specs = self.program.signature.graph_outputs
        outputs: list[Argument] = []
        taken: set[str] = set()
        writes: list[tuple[str, Tensor]] = []
        by_target = {w.source: w.buffer for w in self.weights}
        nodes = next(n for n in reversed(self.program.graph.nodes) if n.op == "output").args[0]
        for spec, value, node in zip(specs, values, nodes, strict=True):
            if spec.kind is OutputKind.TOKEN:
                continue
            tensor = value if isinstance(value, Tensor) else self.scalar(value)
            if spec.kind is OutputKind.RESULT:
                self._check_known(tensor, node)
                buffer = self._output_buffer(tensor, taken)
                taken.add(buffer)
                outputs.append(
                    Argument(buffer, spec.name, tensor.dtype, tensor.shape, scalar=not isinstance(value, Tensor))
                )
            else:
                target = (
                    by_target[str(spec.target)]
                    if spec.kind is not OutputKind.ARGUMENT_MUTATION
                    else self._input_buffer(str(spec.target))
                )
                if self.buffers[target].shape != tensor.shape:
                    why = f"it gives {spec.target} another shape, which native code cannot do to what others hold"
                    raise refusal([(node, why)])
                writes.append((target, self.realize(tensor)))
        # All results are in memory before any state is overwritten: they may read the state as it was.
        copied = [(target, self.copy(tensor)) for target, tensor in writes]
        for target, tensor in copied:
            self.realize(self.lazy_copy(tensor), into=target)
        return outputs

    def _check_known(self, tensor: Tensor, node: fx.Node) -> None:
        """The caller makes the memory of results, from the sizes of the arguments alone."""
        for size in tensor.shape:
            if isinstance(size, Expr) and not {s.name for s in size.symbols} <= self.symbols.keys():
                raise refusal([(node, "it is a result of the model, but its size is known only when it runs")])

    def _input_buffer(self, placeholder: str) -> str:
        node = next(n for n in self.program.graph.nodes if n.op == "placeholder" and n.name == placeholder)
        return str(self.values[node].data.buffer)

    def _output_buffer(self, tensor: Tensor, taken: set[str]) -> str:
        """The buffer of a result: the one it was realized in, if it is alone there, or a copy."""
        data = tensor.data
        if isinstance(data, Strided):
            buffer = self.buffers[data.buffer]
            whole = (
                data.offset == 0 and data.strides == contiguous_strides(tensor.shape) and buffer.size == tensor.numel
            )
            if whole and buffer.kind == "temporary" and data.buffer not in taken:
                self.buffers[data.buffer] = Buffer(buffer.name, buffer.dtype, tensor.shape, "output")
                return data.buffer
            tensor = self.lazy_copy(tensor)
        name = self.buffer("output", tensor.dtype, tensor.shape).name
        self.realize(tensor, into=name)
        return name

    # ------------------------------------------------------------------ sizes

    def _name(self, s: sympy.Symbol) -> str:
        if s not in self._names:
            self._names[s] = f"n{len(self._names)}"
        return self._names[s]

    def symbol_of(self, s: sympy.Symbol) -> str:
        """The name of a size that the run itself tells."""
        name = self._name(s)
        self._told.add(name)
        self.hints.setdefault(name, 8)
        return name

    def is_told(self, size: Size) -> bool:
        """Whether every symbol of a size of the graph has a value when the run comes here."""
        return isinstance(size, int) or all(s.name in self._told or s.name not in self._graphs for s in size.symbols)

    def tell(self, size: Size, value: Size) -> None:
        """A size of the graph that is a symbol of its own takes this value."""
        ops = Recorder()
        self.steps.append(Bind(self.told_here(size), ops.finish([ops.index(value)]), self.origin))

    def told_here(self, size: Size) -> str:
        """The name of the symbol that a size of the graph is; the caller gives it a value, here."""
        names = {s.name for s in size.symbols} if isinstance(size, Expr) else set()
        for s, name in self._names.items():
            if {name} == names and size == self._symbol(s):
                self._told.add(name)
                self.hints.setdefault(name, 8)
                return name
        raise Unsupported(f"its size {size} is known only when it runs, and is no size of its own")

    @property
    def _graphs(self) -> set[str]:
        """Names of symbols of the graph; others are loops of our own."""
        return {name for s, name in self._names.items() if not isinstance(s, sympy.Dummy)}

    def _symbol(self, s: sympy.Symbol) -> Expr:
        return symbol(self._name(s), signed=self._signed.get(s, False))

    def new_symbol(self) -> str:
        """A size of our own: a loop's count."""
        name = f"n{len(self._names)}"
        self._names[sympy.Dummy()] = name
        self.hints[name] = 8
        return name

    def symbolic(self, value: Any) -> Any:
        """A symbolic number as a Size; a float or a bool as a Tensor of rank 0."""
        expr = value.node.expr
        if isinstance(value, torch.SymInt):
            return self.size(value)
        if expr.is_number:
            return float(expr) if isinstance(value, torch.SymFloat) else bool(expr)
        dtype = "float64" if isinstance(value, torch.SymFloat) else "bool"
        return Tensor((), dtype, Lazy(lambda ops, index: self._compute(ops, expr, dtype), 2))

    def size(self, value: int | torch.SymInt) -> Size:
        if isinstance(value, int):
            return value
        expr = value.node.expr
        for s in expr.free_symbols:
            self._signed.setdefault(s, internals.may_be_negative(value, s))
        if expr not in self._sizes:
            self._sizes[expr] = self._converted(expr)
        return self._sizes[expr]

    def _converted(self, expr: sympy.Basic) -> Size:
        def apply(name: str, parts: tuple[Size, ...], _: sympy.Basic) -> Size:
            if name == "add":
                return parts[0] + parts[1]
            if name == "mul":
                return parts[0] * parts[1]
            if name == "floordiv":
                return divide(parts[0], parts[1])
            if name == "mod":
                return remainder(parts[0], parts[1])
            if name == "max":
                return largest(parts[0], parts[1])
            if name == "min":
                return smallest(parts[0], parts[1])
            if name == "pow" and isinstance(parts[1], int):
                result: Size = 1
                for _i in range(parts[1]):
                    result = result * parts[0]
                return result
            raise Unsupported(f"the size {dims.spell(expr)} uses {name}, which has no integer form")

        return dims.fold(expr, self._symbol, lambda c: int(c), apply)

    def _compute(self, ops: Recorder, expr: sympy.Basic, dtype: str) -> int:
        """A symbolic float or bool as operations."""
        names = {"eq", "ne", "lt", "le", "gt", "ge"}

        def apply(name: str, parts: tuple[int, ...], whole: sympy.Basic) -> int:
            if name in ("and", "or", "not"):
                return ops.call(name, *parts)
            wide = (
                "float64"
                if any(ops.dtype(p) == "float64" for p in parts)
                or name in ("truediv", "float", "sqrt", "log2", "floattruediv", "floatpow")
                else "int64"
            )
            cast = [ops.cast(p, wide) for p in parts]
            if name in names or name in ("add", "mul", "max", "min"):
                return ops.call(name, *cast)
            if name in ("truediv", "floattruediv"):
                return ops.call("div", *cast)
            if name in ("sqrt", "log2"):
                return ops.call(name, *cast)
            if name in ("floatpow", "pow"):
                return ops.call("pow", *cast)
            if name == "float":
                return cast[0]
            if name in ("floordiv", "mod"):
                return ops.call("floordiv" if name == "floordiv" else "floormod", *cast)
            if name in ("trunc", "floor", "ceil"):
                return ops.cast(ops.call(name, ops.cast(parts[0], "float64")), "int64")
            raise Unsupported(f"{dims.spell(expr)} uses {name}, which has no rule")

        def constant(c: int | float | bool) -> int:
            return ops.const(c, "bool" if isinstance(c, bool) else "float64" if isinstance(c, float) else "int64")

        def known(s: sympy.Symbol) -> int:
            if s in self.numbers:
                return self.numbers[s].load(ops, ())
            return ops.index(self._symbol(s))

        value = dims.fold(expr, known, constant, apply)
        return ops.cast(value, dtype)

    def shape_of(self, value: torch.Tensor) -> Shape:
        return tuple(self.size(size) for size in value.shape)

    def hint(self, size: Size) -> int:
        """The size for the example inputs: for choices, never for meaning."""
        if isinstance(size, int):
            return size
        return evaluate(size, {s.name: self.hints.get(s.name, 8) for s in size.symbols})

    @property
    def out(self) -> torch.Tensor:
        """The type of the node being lowered."""
        value = value_of(self.node)
        made: torch.Tensor = value[0] if isinstance(value, (tuple, list)) else value
        return made

    @property
    def out_dtype(self) -> str:
        return dtype_name(self.out.dtype)

    @property
    def origin(self) -> Origin:
        source = source_of(self.node)
        place = f"{'/'.join(source.file.replace(chr(92), '/').split('/')[-2:])}:{source.line}" if source else ""
        return Origin(module_path_of(self.node), place, str(self.node.target).removeprefix("aten."))

    # ------------------------------------------------------------------ making

    def buffer(self, kind: str, dtype: str, shape: Sequence[Size]) -> Buffer:
        name = f"{kind[0]}{self._count}"
        self._count += 1
        self.buffers[name] = made = Buffer(name, dtype, tuple(shape), kind)
        return made

    def full(self, shape: Sequence[Size], value: int | float | bool, dtype: str) -> Tensor:
        return Tensor(shape, dtype, Lazy(lambda ops, index: ops.const(value, dtype), 0))

    def scalar(self, value: Any) -> Tensor:
        """A number, symbolic or not, as a tensor of rank 0."""
        if isinstance(value, Tensor):
            return value
        if isinstance(value, Expr):
            return Tensor((), "int64", Lazy(lambda ops, index: ops.index(value), 1))
        return self.full(
            (), value, "bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "float64"
        )

    def lazy_copy(self, tensor: Tensor) -> Tensor:
        """The same elements as something yet to be computed."""
        return Tensor(tensor.shape, tensor.dtype, Lazy(lambda ops, index: tensor.load(ops, index), 1))

    def copy(self, tensor: Tensor) -> Tensor:
        return self.realize(self.lazy_copy(tensor))

    def realize(self, tensor: Tensor, *, order: Sequence[int] | None = None, into: str | None = None) -> Tensor:
        """Puts a tensor into memory, dims in `order` physically, or into a buffer in its own order. Returns it."""
        data = tensor.data
        if isinstance(data, Strided):
            return tensor
        order = tuple(range(tensor.rank)) if into else tuple(order or data.order or range(tensor.rank))
        ops = Recorder()
        index, loops = loop_variables(tensor.shape, order)
        value = tensor.load(ops, index)
        physical = [tensor.shape[d] for d in order]
        steps = contiguous_strides(physical)
        strides = tuple(steps[order.index(d)] for d in range(tensor.rank))
        name = into or self.buffer("temporary", tensor.dtype, physical).name
        home = Strided(name, 0, strides)
        self.steps.append(
            Map(
                tuple(Loop(variable, extent) for variable, extent in loops),
                ops.finish([value]),
                (Store(name, home.at(index), 0),),
                self.origin,
            )
        )
        if into is None:
            tensor.data = home
        return tensor

    def pack(
        self, buffer: str, dtype: str, offset: Size, depth: Sequence[Size], steps: Sequence[Size], columns: Size,
        column_step: Size, groups: int = 1, group_step: Size | None = None, winograd: bool = False,
        width: int | None = None
    ) -> str:  # fmt: skip
        """A weight as [groups · panels][depth…][columns of a panel]: the order in which a product reads it.

        Groups lie `group_step` apart, or one after another as columns do."""
        assert isinstance(columns, int) and isinstance(column_step, int)
        width = width or panel_width(columns)
        shape = (groups, -(-columns // width), *depth, width)
        between = columns * column_step if group_step is None else group_step
        strides = (between, width * column_step, *steps, column_step)
        return self._weight(buffer, dtype, (offset, shape, strides, columns), winograd)

    def repacked(self, buffer: str, dtype: str, offset: Size, shape: Sequence[Size], strides: Sequence[Size]) -> Tensor:
        """A weight in another order of its dims."""
        name = self._weight(buffer, dtype, (offset, tuple(shape), tuple(strides), None))
        return Tensor(shape, dtype, Strided(name, 0, contiguous_strides(shape)))

    def _weight(self, buffer: str, dtype: str, packing: tuple[Any, ...], winograd: bool = False) -> str:
        """A weight made of another: (offset, shape, strides, columns). `columns` limits panels: the rest is zeros."""
        key = (buffer, dtype, (*packing, winograd))
        if key not in self.packed:
            origin = next(w for w in self.weights if w.buffer == buffer)
            assert not origin.packing
            made = self.buffer("weight", dtype, packing[1])
            self.weights.append(Weight(made.name, origin.source, packing, winograd))
            self.packed[key] = made.name
        return self.packed[key]

    def keep(self, tensor: Tensor) -> Tensor:
        """The tensor, in memory if it costs something: for rules that read each element more than once."""
        return self.realize(tensor) if tensor.cost > CHEAP else tensor

    def dense(self, tensor: Tensor) -> Tensor:
        """The tensor in memory, in row-major order of its own dims."""
        data = tensor.data
        if isinstance(data, Lazy):
            return self.realize(tensor, order=range(tensor.rank))
        strides = contiguous_strides(tensor.shape)
        whole = all(a == b or size == 1 for a, b, size in zip(data.strides, strides, tensor.shape, strict=True))
        return tensor if whole else self.realize(self.lazy_copy(tensor), order=range(tensor.rank))

    def write(self, target: Tensor, source: Tensor) -> None:
        """Writes a tensor into a part of another's memory."""
        assert isinstance(target.data, Strided)
        index, loops = loop_variables(target.shape, range(target.rank))
        ops = Recorder()
        value = ops.cast(source.load(ops, index), wide(target.dtype))
        store = Store(target.data.buffer, target.data.at(index), 0)
        self.steps.append(Map(tuple(Loop(v, e) for v, e in loops), ops.finish([value]), (store,), self.origin))

    def scatter(
        self, target: Tensor, shape: Shape, body: Callable[[Recorder, Index], tuple[Index, int]], mode: str = "set"
    ) -> None:
        """At every point of `shape`, in row-major order, writes the value that `body` gives to the place it gives."""
        assert isinstance(target.data, Strided)
        index, loops = loop_variables(shape, range(len(shape)))
        ops = Recorder()
        place, value = body(ops, index)
        store = Store(target.data.buffer, target.data.at(place), 0, mode)
        # The store names values of the body: they are results too, and the body is kept as it was written.
        named = symbols_of(store.index)
        written = Body(tuple(ops.ops), (value, *sorted(int(name[1:]) for name in named if name[0] == "v")))
        self.steps.append(Map(tuple(Loop(v, e) for v, e in loops), written, (store,), self.origin, serial=True))

    def routine(
        self,
        name: str,
        reads: Sequence[Tensor],
        results: Sequence[tuple[Shape, str]],
        sizes: Sequence[Size],
        **attributes: Any,
    ) -> list[Tensor]:
        """Calls a hand-written kernel on dense tensors; its results are dense as well."""
        dense = [self.dense(tensor) for tensor in reads]
        made = []
        for shape, dtype in results:
            home = Strided(self.buffer("temporary", dtype, shape).name, 0, contiguous_strides(shape))
            made.append(Tensor(shape, dtype, home))
        names = [self._whole(tensor) for tensor in dense]
        self.steps.append(
            Routine(
                name,
                tuple(names),
                tuple(tensor.data.buffer for tensor in made if isinstance(tensor.data, Strided)),
                tuple(sizes),
                tuple(sorted(attributes.items())),
                self.origin,
            )
        )
        return made

    def _whole(self, tensor: Tensor) -> str:
        """The buffer of a dense tensor that begins where its buffer does."""
        assert isinstance(tensor.data, Strided)
        if tensor.data.offset != 0:
            tensor = self.copy(tensor)
        assert isinstance(tensor.data, Strided)
        return tensor.data.buffer

    def draw(self) -> int:
        """The number of a new draw of random numbers."""
        self.draws += 1
        return self.draws - 1

    def bind(self, name: str, tensor: Tensor) -> None:
        """The symbol becomes the tensor's one element, when the run comes here."""
        ops = Recorder()
        value = ops.cast(self.realize(tensor).load(ops, (0,) * tensor.rank), "int64")
        self.steps.append(Bind(name, ops.finish([value]), self.origin))

    def reduce(
        self,
        x: Tensor,
        dims_: Sequence[int],
        kinds: Sequence[str],
        transform: Callable[[Recorder, int, Index], Sequence[int]],
        dtypes: Sequence[str],
    ) -> list[Tensor]:
        """Reductions of `transform(x[index])` over dims, each result without those dims."""
        kept = [d for d in range(x.rank) if d not in dims_]
        order = self.order_of(x)
        outer = [d for d in order if d in kept]
        index_outer, loops = loop_variables(x.shape, outer)
        index_inner, over = loop_variables(
            x.shape, [d for d in order if d in dims_] if kinds[0][:3] != "arg" else sorted(dims_), "r"
        )
        index = tuple(index_inner[d] if d in dims_ else index_outer[d] for d in range(x.rank))
        ops = Recorder()
        values = list(transform(ops, x.load(ops, index), index))
        physical = [x.shape[d] for d in outer]
        steps = contiguous_strides(physical)
        results, stores = [], []
        for number, dtype in enumerate(dtypes):
            home = Strided(
                self.buffer("temporary", dtype, physical).name, 0, tuple(steps[outer.index(d)] for d in kept)
            )
            stores.append(Store(home.buffer, home.at(tuple(index[d] for d in kept)), number))
            results.append(Tensor(tuple(x.shape[d] for d in kept), dtype, home))
        self.steps.append(
            Reduce(
                tuple(Loop(v, e) for v, e in loops),
                tuple(Loop(v, e) for v, e in over),
                tuple(kinds),
                ops.finish(values),
                tuple(stores),
                self.origin,
            )
        )
        return results

    def order_of(self, tensor: Tensor) -> tuple[int, ...]:
        """The physical order of a tensor's dims, outermost first."""
        data = tensor.data
        if isinstance(data, Lazy):
            return data.order or tuple(range(tensor.rank))
        strides = [self.hint(s) for s in data.strides]
        return tuple(sorted(range(tensor.rank), key=lambda d: (-strides[d], d) if strides[d] else (-(10**18), d)))
