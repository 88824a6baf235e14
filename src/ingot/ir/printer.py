"""print(program): a graph as readable code.

    # Encoder: 5 nodes, CAPTURED, evaluation
    #   dims         batch in [1, 64]
    #   parameters   2 tensors, 20 values, 80 B
    #                p_fc_weight: f32[4, 4]
    #                p_fc_bias: f32[4]

    def forward(x: f32[batch, 4]):

      # the path of a module  (Its class)
        # models/encoder.py:12  return self.fc(x).relu()
        linear: f32[batch, 4] = aten.linear(x, p_fc_weight, p_fc_bias)  # fc: Linear
        relu: f32[batch, 4] = aten.relu(linear)

        return relu

A module call that is one operation stands as a comment behind it; a longer one opens a block. A line of the user's
code stands above the nodes that it gave. Branches, loop bodies and regions are nested functions.
"""

from __future__ import annotations

import itertools
import math
import operator
import types
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.ir import metadata, pytree, symbolic_dims
from ingot.ir.metadata import ModuleFrame, Source
from ingot.ir.signature import MUTATION_KINDS, Input, InputKind, Output, OutputKind

if TYPE_CHECKING:
    from ingot.ir.program import Program

_DTYPES: dict[torch.dtype, str] = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint64: "u64",
    torch.uint32: "u32",
    torch.uint16: "u16",
    torch.uint8: "u8",
    torch.bool: "bool",
    torch.complex128: "c128",
    torch.complex64: "c64",
    torch.complex32: "c32",
}
_INFIX: dict[Any, str] = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.pow: "**",
    operator.floordiv: "//",
    operator.truediv: "/",
    operator.mod: "%",
    operator.lshift: "<<",
    operator.rshift: ">>",
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
    operator.and_: "&",
    operator.or_: "|",
}
_END = 2**63 - 1  # how ATen writes the end of a slice
_LISTED_STATE = 12  # a program with more tensors than this has them summed up, not listed
_SOURCE_WIDTH = 100
_RETURN_WIDTH = 100
_INDENT = "    "


def print_program(program: Program) -> str:
    """The program as readable text; see the module's docstring."""
    body = _Body(program.graph_module)
    lines = [
        *_header(program),
        "",
        *_definition("forward", _arguments(program)),
        *body.lines(),
        "",
        *_indent(_results(program)),
    ]
    return "\n".join(lines)


def describe_value(value: Any) -> str:
    """A node's value in a few characters: f32[batch, 4], int(2*seq), (f32[4], i64[4])."""
    if isinstance(value, torch.Tensor):
        sizes = ", ".join(str(s) if isinstance(s, int) else symbolic_dims.format_dim(s) for s in value.shape)
        place = "" if value.device.type == "cpu" else f"@{value.device}"
        layout = "" if value.layout is torch.strided else f" {literal(value.layout)}"
        return f"{dtype_name(value.dtype)}[{sizes}]{place}{layout}"
    if internals.is_symbolic(value):
        kind = {torch.SymInt: "int", torch.SymFloat: "float", torch.SymBool: "bool"}[type(value)]
        return f"{kind}({symbolic_dims.format_dim(value)})"
    if isinstance(value, list | tuple):
        runs = [(text, len(list(run))) for text, run in itertools.groupby(describe_value(item) for item in value)]
        parts = [f"{text} ×{count}" if count > 2 else ", ".join([text] * count) for text, count in runs]
        return f"({', '.join(parts)}{',' if len(value) == 1 else ''})"
    return literal(value)


def dtype_name(dtype: torch.dtype) -> str:
    """f32 for torch.float32; types without a short name keep their own."""
    return _DTYPES.get(dtype) or str(dtype).removeprefix("torch.")


def neighbourhood(node: fx.Node, radius: int = 3) -> str:
    """The lines around a node, with an arrow at it. Placeholders are shown only if the node is one, or next to them."""
    nodes = list(node.graph.nodes)
    at = nodes.index(node)
    low, high = max(0, at - radius), at + radius + 1
    shown = [f"--> {_line(n)}" if n is node else f"    {_line(n)}" for n in nodes[low:high]]
    return "\n".join([*(["    …"] if low else []), *shown, *(["    …"] if high < len(nodes) else [])])


# ---------------------------------------------------------------------- the header


def _header(program: Program) -> list[str]:
    root = next((call.type for call in program.module_calls if not call.module), "")
    name = _last(root) or "Program"
    nodes = sum(node.op not in ("placeholder", "output") for node in program.graph.nodes)
    mode = "training" if program.training else "evaluation"
    sections: list[tuple[str, list[str]]] = [("dims", [str(dim) for dim in program.dims])]
    sections.append(("constraints", [_constraint(c) for c in program.constraints]))
    named = {InputKind.PARAMETER: "parameters", InputKind.BUFFER: "buffers", InputKind.CONSTANT: "constants"}
    brief = len(program.signature.state_inputs) > _LISTED_STATE
    for kind, label in named.items():
        sections.append((label, _state(program, program.signature.inputs_of_kind(kind), brief)))
    lines = [f"# {name}: {nodes} nodes, {program.dialect.name}, {mode}"]
    for label, entries in sections:
        for index, entry in enumerate(entries):
            lines.append(f"#   {label if index == 0 else '':<12} {entry}")
    return lines


def _constraint(constraint: symbolic_dims.Constraint) -> str:
    file, colon, rest = constraint.source.partition(":")
    place = f"{_short_path(file)}{colon}{rest}"
    return symbolic_dims.format_dim(constraint.condition) + (f"    # {place}" if constraint.source else "")


def _state(program: Program, inputs: Sequence[Input], brief: bool) -> list[str]:
    """What a kind of state holds: a sum, then its tensors unless there are too many, and those that are not used."""
    if not inputs:
        return []
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    tensors = [program.state_of(i) for i in inputs]
    values = sum(t.numel() for t in tensors)
    size = sum(t.numel() * t.element_size() for t in tensors)
    unused = [i for i in inputs if i.name in placeholders and not placeholders[i.name].users]
    total = f"{_count(len(inputs), 'tensor')}, {_count(values, 'value')}, {_bytes(size)}"
    if brief:
        return [total + (f", {len(unused)} of them unused" if unused else "")]
    listed = [
        f"{i.name}: {describe_value(tensor)}{'  (unused)' if i in unused else ''}"
        for i, tensor in zip(inputs, tensors, strict=True)
    ]
    return [total, *listed]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _bytes(size: int) -> str:
    unit = 0
    while size >= 1000 ** (unit + 1) and unit < 4:
        unit += 1
    return f"{size / 1000**unit:.{1 if unit else 0}f} {('B', 'kB', 'MB', 'GB', 'TB')[unit]}"


def _arguments(program: Program) -> list[str]:
    """The user's arguments: tensors with their shapes, literals with their values."""
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    shown = []
    for spec, path in zip(program.signature.user_inputs, pytree.leaf_paths(program.signature.in_tree), strict=False):
        if spec.kind is InputKind.ARGUMENT:
            place = pytree.format_path(_name_argument(program, path))
            origin = f"  # {place}" if place != spec.name else ""
            known = _format(placeholders[spec.name]) if spec.name in placeholders else literal(None)
            shown.append(f"{spec.name}: {known},{origin}")
        else:
            value = "a fixed tensor" if spec.target is not None else literal(spec.value)
            shown.append(f"{pytree.format_path(_name_argument(program, path))}={value},")
    return shown


def _name_argument(program: Program, path: pytree.Path) -> pytree.Path:
    side, key, *rest = path
    names = program.parameter_names
    if side == 0 and isinstance(key, int):
        return (names[key] if key < len(names) else f"args[{key}]", *rest)
    return (key, *rest)


def _definition(name: str, arguments: Sequence[str]) -> list[str]:
    """A function's head, on one line where that is short and nothing in it needs a comment."""
    line = f"def {name}({' '.join(arguments).rstrip(',')}):"
    if len(line) <= _RETURN_WIDTH and "#" not in line:
        return [line]
    return [f"def {name}(", *_indent(arguments), "):"]


def _indent(lines: Iterable[str]) -> Iterator[str]:
    return (_INDENT + line if line else line for line in lines)


# ---------------------------------------------------------------------- the body


class _Body:
    """The lines of one graph: blocks by module call, the user's lines, and the nodes.

    `block` is the module call that the text around it says the graph is in.
    """

    def __init__(self, module: fx.GraphModule, block: ModuleFrame | None = None) -> None:
        self.module, self.block = module, block
        nodes = [node for node in module.graph.nodes if node.op not in ("placeholder", "output")]
        self.nodes = nodes
        self.stacks = {node: metadata.module_stack_of(node) for node in nodes}
        counted = [n for n in nodes if n.op != "get_attr" and not _is_bookkeeping(n)]
        self.operations = Counter(frame.call for node in counted for frame in self.stacks[node])

    def lines(self) -> Iterator[str]:
        source: Source | None = None
        for node in self.nodes:
            stack = self.stacks[node]
            small = [frame for frame in stack if self._is_small(frame)]
            block = next((frame for frame in reversed(stack) if frame not in small), None)
            if block is not None and block != self.block:
                if self.block is None or not (_is_inside(block, self.block) or _is_inside(self.block, block)):
                    source = None
                self.block = block
                kind = _last(block.type)
                yield ""
                yield f"  # {block.call}  ({kind})" if block.call else f"  # {kind}"
            place = metadata.source_of(node)
            if place is not None and place != source:
                source = place
                yield _INDENT + _source_line(place)
            yield from _indent(self._node(node, small))

    def _is_small(self, frame: ModuleFrame) -> bool:
        """Whether a call is one operation, which needs no block. The root always has one."""
        return bool(frame.path) and self.operations[frame.call] <= 1

    def _node(self, node: fx.Node, small: Sequence[ModuleFrame]) -> Iterator[str]:
        if node.op == "get_attr":
            yield from _function(self.module, node, self.block)
            return
        yield _line(node) + (f"  # {_small_call(small[-1])}" if small else "")


def _is_inside(inner: ModuleFrame, outer: ModuleFrame) -> bool:
    return bool(outer.call) and inner.call.startswith(f"{outer.call}.")


def _small_call(frame: ModuleFrame) -> str:
    name, kind = _last(frame.call), _last(frame.type)
    return name if name == kind else f"{name}: {kind}"


def _last(path: str) -> str:
    return path.replace(":", ".").rsplit(".", 1)[-1]


def _is_bookkeeping(node: fx.Node) -> bool:
    """Whether a node only takes a size or a part, so that it does not count as an operation of a module."""
    return node.target is operator.getitem or internals.is_symbolic(metadata.value_of(node))


def _source_line(source: Source) -> str:
    text = source.text
    if len(text) > _SOURCE_WIDTH:
        text = text[: _SOURCE_WIDTH - 1] + "…"
    return f"# {_short_path(source.file)}:{source.line}" + (f"  {text}" if text else "")


def _short_path(path: str) -> str:
    """The last two components: enough to find a file by, and the same on every machine."""
    return "/".join(path.replace("\\", "/").split("/")[-2:])


def _function(module: fx.GraphModule, node: fx.Node, block: ModuleFrame | None) -> Iterator[str]:
    """A sub-GraphModule as a function of the name that its users know it by."""
    inner = getattr(module, str(node.target), None)
    if not isinstance(inner, fx.GraphModule):
        yield _line(node)
        return
    first = next(n for n in module.graph.nodes if n.op == "get_attr" and n.target == node.target)
    if first is not node:
        yield f"{node.name} = {first.name}"
        return
    arguments = [f"{n.name}: {_format(n)}," for n in inner.graph.nodes if n.op == "placeholder"]
    yield from _definition(node.name, arguments)
    output = next(n for n in reversed(inner.graph.nodes) if n.op == "output")
    yield from _Body(inner, block).lines()
    yield f"{_INDENT}return {_argument(output.args[0])}"


def _format(node: fx.Node) -> str:
    """What is known of a node's value: what shape analysis found, else what was recorded."""
    inferred = metadata.inferred_type_of(node)
    if inferred is not None:
        return str(inferred)
    return describe_value(metadata.value_of(node)) if metadata.has_value(node) else "?"


def _line(node: fx.Node) -> str:
    """One node, as one line of code."""
    value = metadata.value_of(node)
    if node.op == "output":
        return f"return {_argument(node.args[0] if node.args else None)}"
    if node.op == "placeholder":
        return f"{node.name}: {_format(node)}"
    if node.op == "get_attr":
        return f"{node.name} = self.{node.target}"
    call = _call(node)
    if value is None and metadata.has_value(node):
        return f"{node.name} = {call}" if node.users else call
    return f"{node.name}: {_format(node)} = {call}"


def _call(node: fx.Node) -> str:
    target, args = node.target, node.args
    if target is operator.getitem and len(args) == 2 and not node.kwargs:
        return f"{_argument(args[0])}[{_argument(args[1])}]"
    if target in _INFIX and len(args) == 2 and not node.kwargs:
        return f"{_argument(args[0])} {_INFIX[target]} {_argument(args[1])}"
    shown = [*map(_argument, args), *(f"{key}={_argument(value)}" for key, value in node.kwargs.items())]
    return f"{operator_name(target)}({', '.join(shown)})"


def operator_name(target: Any) -> str:
    """An operator's name: aten.linear, aten.add.Tensor, cond, math.floor."""
    if isinstance(target, internals.OpOverload):
        return str(target).removesuffix(".default")
    if isinstance(target, internals.HigherOrderOperator):
        return str(target.name()).lstrip("_")
    if isinstance(target, str):
        return target
    name = getattr(target, "__name__", type(target).__name__)
    module = getattr(target, "__module__", None) or ""
    return f"{module}.{name}" if module in ("math", "torch") else str(name).lstrip("_")


def _argument(value: Any) -> str:
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, list):
        return f"[{', '.join(map(_argument, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(_argument, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_argument(item)}' for key, item in value.items())}}}"
    if isinstance(value, slice):
        return ":".join("" if part is None else _argument(part) for part in (value.start, value.stop))
    return literal(value)


def literal(value: Any) -> str:
    """A constant in few characters; ~ marks a float that is rounded here, ∞ the end of a slice."""
    if isinstance(value, float) and math.isfinite(value):
        short = f"{value:.6g}"
        exact = repr(value) if len(repr(value)) <= 8 else short
        return exact if float(exact) == value else f"~{short}"
    if type(value) is int and value == _END:
        return "∞"
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, torch.layout | torch.memory_format):
        return str(value).removeprefix("torch.")
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, type | types.FunctionType):
        return value.__qualname__
    return f"<{type(value).__name__}>"  # a repr may hold an address, which differs from run to run


# ---------------------------------------------------------------------- the results


def _results(program: Program) -> Iterator[str]:
    """What the call writes, then what it returns in the user's structure."""
    for output in program.signature.outputs:
        if output.kind in MUTATION_KINDS:
            what = output.kind.value.removesuffix("_mutation")
            yield f"{output.target} ← {output.name}  # {what}"
        elif output.kind is OutputKind.TOKEN:
            yield f"token ← {output.name}"
    yield from _format_return(program)


def _format_return(program: Program) -> list[str]:
    shape, outputs = program.signature.out_tree, program.signature.user_outputs
    values = {node.name: metadata.value_of(node) for node in program.graph.nodes}
    names = [o.name if o.kind is OutputKind.RESULT else literal(o.value) for o in outputs]
    if shape.kind == "leaf":
        return [f"return {name}" for name in names]
    plain = shape.kind in ("tuple", "list", "dict")
    opening, closing = {"list": ("[", "]"), "dict": ("{", "}")}.get(shape.kind, ("(", ")"))
    if not plain:
        opening = _last(shape.name) + opening
    paths = [pytree.format_path(path) for path in pytree.leaf_paths(shape)]
    flat = shape.kind in ("tuple", "list") and all(child.kind == "leaf" for child in shape.children)
    pairs = list(zip(paths, names, strict=False))
    short = names if flat else [f"{path}={name}" for path, name in pairs]
    comma = "," if shape.kind == "tuple" and len(short) == 1 else ""
    line = f"return {opening}{', '.join(short)}{comma}{closing}"
    if len(line) <= _RETURN_WIDTH:
        return [line]

    def describe(text: str, output: Output) -> str:
        return f"{text}: {describe_value(values.get(output.name))}," if output.kind is OutputKind.RESULT else f"{text},"

    long = names if flat else [f"{path} = {name}" for path, name in pairs]
    return [f"return {opening}", *_indent(map(describe, long, outputs)), closing]
