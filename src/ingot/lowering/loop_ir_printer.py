"""The loop IR as text: the same text for the same module, in every process.

    module {
      input x = i0: float32[n0, 16]
      output y = o1: float32[n0, 16]
      symbol n0 = dim 0 of x, 2 <= n0 <= 64  // batch
      buffer i0: float32[n0, 16] input
      buffer o1: float32[n0, 16] output

      map (i0 < n0, i1 < 16) {  // relu.default  act  model.py:7
        %0 = load i0[16*i0 + i1]: float32
        %1 = relu %0: float32
        store o1[16*i0 + i1] = %1
      }
    }

A value of a body is %7, in an index too. Steps that are one block of loops and a body, and control flow, have a form of
their own (`_FORMS`). Every other step, those of targets among them, is printed by its fields: numbers and names follow
its name, a view, a layout or a store has a line, bodies and steps are blocks inside it. A field that has its default is
left out. What the text means is in loop_ir.py. Its grammar; // is followed by where a step comes from:

    module  ::= module { input… output… symbol… buffer… step… }
    buffer  ::= buffer NAME: DTYPE[size, …] KIND (= TENSOR OF THE MODEL (as LAYOUT))
    step    ::= map (loop, …) (collides) { op… store… }  | reduce (loop, …) over (loop, …) { op… store… }
              | nest (loop, …) (local NAME, …) { step… }
              | scan (loop, …) over (loop) (backwards) { start { body } turn { body store… } }
              | extern NAME(buffer, …, size, …) -> buffer, …   | bind NAME { body }  | assert MESSAGE { body }
              | if { condition { body } then { step… } else { step… } }
              | while { test { step… } condition { body } do { step… } }  | for (loop) { step… }
              | CLASS field=value … { field = view … field { body } … epilogue (loop, …) { op… store… } step… }
    loop    ::= VARIABLE < size
    op      ::= %PLACE = NAME %OPERAND, …, attribute: DTYPE      attribute of a load: buffer[index] (if %MASK)
    store   ::= store buffer[index] = (KIND OF REDUCTION) %PLACE     add=, prod=, max=, min= accumulate
    body    ::= op… yield %PLACE, …
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from ingot.lowering.index_expr import Atom, BodyValue, Div, Expr, MinMax, Size, Symbol, Term, symbol
from ingot.lowering.loop_ir import (
    Assert,
    BindSymbol,
    Body,
    Buffer,
    ExternKernel,
    For,
    If,
    Load,
    Loop,
    LoopNest,
    Map,
    MatrixView,
    Op,
    Reduce,
    Scan,
    Scatter,
    SourceLocation,
    StepGroup,
    Stmt,
    Store,
    StridedView,
    While,
    WithEpilogue,
)
from ingot.registry import Registry

if TYPE_CHECKING:
    from ingot.lowering.loop_module import Argument, Module, PackedWeight, SymbolSource

_INDENT = "  "
_NAME = re.compile(r"[\w.]+")


def print_module(module: Module, *, locations: bool = True) -> str:
    """The whole module. Without `locations` no step says where it comes from."""
    out = _IrWriter(locations)
    out.open(_join_words("module", _precision(module), f"draws={module.draws}" if module.draws else ""))
    for argument in module.inputs:
        out.line(f"input {_format_argument(argument)}")
    for argument in module.outputs:
        out.line(f"output {_format_argument(argument)}")
    for name, source in module.symbols.items():
        out.line(_format_symbol(name, source, module.inputs))
    weights = {weight.buffer: weight for weight in module.weights}
    for buffer in module.buffers.values():
        out.line(_format_buffer(buffer) + _format_weight(weights.get(buffer.name)))
    if module.steps:
        out.line("")
    out.steps(module.steps)
    out.close()
    return out.text()


def print_steps(steps: Iterable[Stmt], *, locations: bool = True) -> str:
    """The steps alone, one after another."""
    out = _IrWriter(locations)
    out.steps(steps)
    return out.text()


def print_body(body: Body) -> str:
    out = _IrWriter(locations=False)
    out.body(body)
    return out.text()


def format_size(size: Size) -> str:
    """A size or an index: a number on its own comes last, and a value of the body is %7."""
    if isinstance(size, int):
        return str(size)
    text = ""
    for term, coefficient in sorted(size.terms.items(), key=_order_of_term):
        factors = [_format_atom(atom, alone=len(term) == 1 and abs(coefficient) == 1) for atom in term]
        if abs(coefficient) != 1 or not factors:
            factors.insert(0, str(abs(coefficient)))
        sign = "-" if coefficient < 0 else "+"
        text += f" {sign} {'*'.join(factors)}" if text else f"{'-' if coefficient < 0 else ''}{'*'.join(factors)}"
    return text


def _order_of_term(item: tuple[Term, int]) -> tuple[bool, int, int, list[str]]:
    """As strides fall: i0*n0 + 16*i1 + i2 - 1."""
    term, coefficient = item
    return not term, -len(term), -coefficient, [str(atom) for atom in term]


def _format_atom(atom: Atom, alone: bool) -> str:
    if isinstance(atom, BodyValue):
        return f"%{atom.place}"
    if isinstance(atom, Symbol):
        return atom.name
    left, right = format_size(atom.left), format_size(atom.right)
    if isinstance(atom, MinMax):
        return f"{atom.which}({left}, {right})"
    operator = "//" if isinstance(atom, Div) else "%"
    text = f"{_enclose(left)} {operator} {_enclose(right)}"
    return text if alone and isinstance(atom, Div) and left.isalnum() else f"({text})"


def _enclose(text: str) -> str:
    return text if text.isalnum() or re.fullmatch(r"%\d+", text) else f"({text})"


# ---------------------------------------------------------------------- the head of a module


def _join_words(*words: str) -> str:
    return " ".join(word for word in words if word)


def _precision(module: Module) -> str:
    return "" if module.precision == "float32" else f"precision={module.precision}"


def _format_shape(shape: Sequence[Size]) -> str:
    return f"[{', '.join(map(format_size, shape))}]"


def _format_buffer(buffer: Buffer) -> str:
    return f"buffer {buffer.name}: {buffer.dtype}{_format_shape(buffer.shape)} {buffer.kind}"


def _format_argument(argument: Argument) -> str:
    kind = "" if argument.scalar else _format_shape(argument.shape)
    return f"{argument.name} = {argument.buffer}: {argument.dtype}{kind}{' mutated' if argument.mutated else ''}"


def _format_symbol(name: str, source: SymbolSource, inputs: Sequence[Argument]) -> str:
    given = inputs[source.place].name if source.place < len(inputs) else f"input {source.place}"
    value = given if source.dim < 0 else f"dim {source.dim} of {given}"
    line = format_size(symbol(name) * source.slope + source.offset)
    above = f" <= {source.high}" if source.high is not None else ""
    return f"symbol {line} = {value}, {source.low} <= {name}{above}  // {source.name}"


def _format_weight(weight: PackedWeight | None) -> str:
    """Which of the model's tensors a buffer holds, and in which layout of the target."""
    if weight is None:
        return ""
    return f" = {weight.source}" + (f" as {_format_value(weight.layout)}" if weight.layout is not None else "")


# ---------------------------------------------------------------------- operations and accesses


def _format_load(load: Load) -> str:
    return f"{load.buffer}[{format_size(load.index)}]" + (f" if %{load.mask}" if load.mask is not None else "")


def _format_op(op: Op) -> str:
    parts = [f"%{operand}" for operand in op.operands]
    match op.name, op.attribute:
        case _, Load() as load:
            parts.append(_format_load(load))
        case _, None:
            pass
        case "cast", str() as dtype:
            parts[-1:] = [f"{parts[-1]} to {dtype}"] if parts and dtype != op.dtype else parts[-1:]
        case "bitcast", (before, after):
            parts[-1:] = [f"{parts[-1]} from {before} to {after}"]
        case "bounds_check", bound:
            parts.append(f"below {_format_value(bound)}")
        case _, attribute:
            parts.append(_format_value(attribute))
    return f"{op.name} {', '.join(parts)}".rstrip() + f": {op.dtype}"


def _format_store(store: Store, body: Body | None, kinds: Sequence[str] = ()) -> str:
    """Without a body, what is stored is the step's own."""
    sign = "=" if store.mode == "set" else f"{store.mode}="
    value = f"result {store.result}"
    if body is not None and 0 <= store.result < len(body.results):
        value = f"%{body.results[store.result]}"
        value = f"{kinds[store.result]} {value}" if store.result < len(kinds) else value
    return f"{store.buffer}[{format_size(store.index)}] {sign} {value}"


def _format_loops(loops: Iterable[Loop]) -> str:
    return f"({', '.join(f'{loop.variable} < {format_size(loop.extent)}' for loop in loops)})"


def _format_matrix(view: MatrixView) -> str:
    return f"{view.buffer}[{format_size(view.offset + symbol('row') * view.rows + symbol('column') * view.columns)}]"


def _format_strided(view: StridedView) -> str:
    index = view.offset
    for dim, stride in enumerate(view.strides):
        index = index + symbol(f"d{dim}") * stride
    return f"{view.buffer}[{format_size(index)}]"


def _format_value(value: Any) -> str:
    """A field of a step, a layout or an attribute, on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case Expr():
            return format_size(value)
        case str():
            return value if _NAME.fullmatch(value) else repr(value)
        case Loop():
            return f"{value.variable} < {format_size(value.extent)}"
        case MatrixView():
            return _format_matrix(value)
        case StridedView():
            return _format_strided(value)
        case Store():
            return f"store {_format_store(value, None).partition(' = result')[0]}"
        case tuple():
            return f"({', '.join(map(_format_value, value))})"
    if is_dataclass(value):
        return f"{type(value).__name__}({', '.join(_format_fields(value))})"
    return str(value)


def _format_fields(value: Any) -> list[str]:
    return [f"{name}={_format_value(found)}" for name, found in _list_fields(value)]


def _list_fields(value: Any) -> list[tuple[str, Any]]:
    """The fields of a dataclass that have a value, and another one than their default."""
    found = [(field, getattr(value, field.name)) for field in fields(value)]
    return [
        (field.name, one)
        for field, one in found
        if one is not None and (field.default is MISSING or one != field.default)
    ]


# ---------------------------------------------------------------------- steps


class _IrWriter:
    """Lines, indented by the blocks that are open."""

    def __init__(self, locations: bool) -> None:
        self._lines: list[str] = []
        self._depth = 0
        self._locations = locations

    def text(self) -> str:
        return "\n".join(self._lines) + "\n" if self._lines else ""

    def line(self, text: str) -> None:
        self._lines.append(_INDENT * self._depth + text if text else "")

    def open(self, head: str, origin: SourceLocation | None = None) -> None:
        self.line(f"{head} {{" + self.comment(origin))
        self._depth += 1

    def close(self) -> None:
        self._depth -= 1
        self.line("}")

    def comment(self, origin: SourceLocation | None) -> str:
        return f"  // {origin}" if self._locations and origin is not None and str(origin) else ""

    def steps(self, steps: Iterable[Stmt]) -> None:
        for step in steps:
            _FORMS.get(type(step), _write_fields)(self, step)

    def block(self, head: str, steps: Iterable[Stmt]) -> None:
        self.open(head)
        self.steps(steps)
        self.close()

    def ops(self, body: Body) -> None:
        for place, op in enumerate(body.ops):
            self.line(f"%{place} = {_format_op(op)}")

    def body(self, body: Body) -> None:
        """The operations, and what the body gives."""
        self.ops(body)
        self.line("yield " + ", ".join(f"%{result}" for result in body.results))

    def body_block(self, head: str, body: Body, origin: SourceLocation | None = None) -> None:
        self.open(head, origin)
        self.body(body)
        self.close()

    def stores(self, body: Body, stores: Sequence[Store], kinds: Sequence[str] = ()) -> None:
        """The operations and the stores. Results that no store writes are given besides."""
        if {store.result for store in stores} >= set(range(len(body.results))):
            self.ops(body)
        else:
            self.body(body)
        for store in stores:
            self.line(f"store {_format_store(store, body, kinds)}")


Form: TypeAlias = Callable[[_IrWriter, Any], None]
# Steps that have a form of their own.
_FORMS: Registry[type, Form] = Registry("printed form of a step")


@_FORMS.register(Map)
def _write_map(out: _IrWriter, step: Map, name: str = "map") -> None:
    out.open(_join_words(name, _format_loops(step.loops), "collides" if step.collides else ""), step.origin)
    out.stores(step.body, step.stores)
    out.close()


@_FORMS.register(Reduce)
def _write_reduce(out: _IrWriter, step: Reduce) -> None:
    out.open(f"reduce {_format_loops(step.loops)} over {_format_loops(step.over)}", step.origin)
    out.stores(step.body, step.stores, step.kinds)
    if len(step.kinds) != len(step.body.results) or len({s.result for s in step.stores}) < len(step.kinds):
        out.line(f"kinds {', '.join(step.kinds)}")
    out.close()


@_FORMS.register(LoopNest)
def _write_nest(out: _IrWriter, step: LoopNest) -> None:
    local = f"local {', '.join(step.local)}" if step.local else ""
    out.open(_join_words("nest", _format_loops(step.outer), local), step.origin)
    out.steps(step.steps)
    out.close()


@_FORMS.register(Scan)
def _write_scan(out: _IrWriter, step: Scan) -> None:
    back = "backwards" if step.back else ""
    out.open(
        _join_words("scan", _format_loops(step.loops), "over", _format_loops((step.over,)), back),
        step.origin,
    )
    out.body_block("start", step.start)
    out.open("turn")
    out.body(step.body)
    for store in step.stores:
        out.line(f"store {_format_store(store, step.body)}")
    out.close()
    out.close()


@_FORMS.register(ExternKernel)
def _write_extern(out: _IrWriter, step: ExternKernel) -> None:
    given = [*step.reads, *map(format_size, step.sizes)]
    given += [f"{name}={_format_value(value)}" for name, value in step.attributes]
    called = f"extern {step.name}({', '.join(given)}) -> {', '.join(step.writes) or '()'}"
    out.line(called + out.comment(step.origin))


@_FORMS.register(BindSymbol)
def _write_bind(out: _IrWriter, step: BindSymbol) -> None:
    out.body_block(f"bind {step.symbol}", step.body, step.origin)


@_FORMS.register(Assert)
def _write_assert(out: _IrWriter, step: Assert) -> None:
    out.body_block(
        _join_words("assert", repr(step.message), "on_sizes" if step.on_sizes else ""), step.body, step.origin
    )


@_FORMS.register(If)
def _write_if(out: _IrWriter, step: If) -> None:
    out.open("if", step.origin)
    out.body_block("condition", step.condition)
    out.block("then", step.then)
    out.block("else", step.otherwise)
    out.close()


@_FORMS.register(While)
def _write_while(out: _IrWriter, step: While) -> None:
    out.open("while", step.origin)
    out.block("test", step.test)
    out.body_block("condition", step.condition)
    out.block("do", step.steps)
    out.close()


@_FORMS.register(For)
def _write_for(out: _IrWriter, step: For) -> None:
    out.open(f"for {_format_loops((step.loop,))}", step.origin)
    out.steps(step.steps)
    out.close()


def _write_fields(out: _IrWriter, step: Any) -> None:
    """A step without a form of its own, by its fields."""
    head = [_format_step_name(type(step))]
    lines: list[str] = []
    blocks: list[tuple[str, Any]] = []
    for name, value in _list_fields(step):
        if name == "origin":
            continue
        if isinstance(value, (Body, Map)) or _is_group(value):
            blocks.append((name, value))
        elif is_dataclass(value) and not isinstance(value, Loop):
            lines.append(f"{name} = {_format_value(value)}")
        elif isinstance(value, tuple) and all(isinstance(one, Loop) for one in value):
            head += [f"{name} {_format_loops(value)}"] if value else []
        else:
            head.append(f"{name}={_format_value(value)}")
    out.open(" ".join(head), step.origin)
    for line in lines:
        out.line(line)
    for name, value in blocks:
        _write_block(out, name, value)
    out.close()


def _is_group(value: Any) -> bool:
    """Whether a field holds steps, or scatters, which have bodies."""
    members = (Map, Reduce, LoopNest, WithEpilogue, StepGroup, Scatter)
    return isinstance(value, tuple) and bool(value) and all(isinstance(one, members) for one in value)


def _write_block(out: _IrWriter, name: str, value: Any) -> None:
    if isinstance(value, Map):
        _write_map(out, value, name)
    elif isinstance(value, Body):
        out.body_block(name, value)
    elif all(isinstance(one, Scatter) for one in value):
        for one in value:
            out.open(name)
            out.body(one.body)
            out.line(f"store {_format_store(one.store, None)}")
            out.close()
    else:
        out.steps(value)


def _format_step_name(kind: type) -> str:
    """PackedGemm is packed_gemm."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower()
