"""Every invariant of a Program, broken once."""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch
from torch import fx, nn

import ingot
from ingot import torch_internals as internals
from ingot.errors import VerifyError
from ingot.ir import metadata
from ingot.ir.dialects import CORE, FUNCTIONAL
from ingot.ir.program import PassRecord, Program
from ingot.ir.pytree import LEAF, Tree
from ingot.ir.signature import CallSignature, Input, InputKind, ModuleCall, Output, OutputKind, Value
from ingot.ir.symbolic_dims import Constraint, Dim
from ingot.ir.verifier import verify

aten = torch.ops.aten


class Small(nn.Module):
    """A parameter, a buffer, a constant, a branch, two results."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))
        self.offset = torch.arange(4.0)

    def forward(self, x: torch.Tensor, twice: bool = False) -> dict[str, torch.Tensor]:
        h = self.fc(x) * self.scale + self.offset
        chosen = torch.cond(h.sum() > 0, lambda h: h.sin(), lambda h: h.cos(), (h,))
        return {"chosen": chosen, "h": h}


def small() -> Program:
    return ingot.capture(Small(), (torch.randn(2, 4), True), dynamic_shapes={"x": {0: "batch"}})


def node(program: Program, name: str) -> fx.Node:
    return next(n for n in program.graph.nodes if n.name == name)


def graph_of(program: Program, name: str) -> fx.GraphModule:
    found = getattr(program.graph_module, name)
    assert isinstance(found, fx.GraphModule)
    return found


def set_inputs(program: Program, change: Callable[[tuple[Input, ...]], tuple[Input, ...]]) -> None:
    program.signature = replace(program.signature, inputs=change(program.signature.inputs))


def set_outputs(program: Program, *outputs: Output) -> None:
    program.signature = replace(program.signature, outputs=outputs)


# ---------------------------------------------------------------------- each invariant, broken

Break = Callable[[Program], Any]
BROKEN: list[tuple[str, str, Break]] = []


def breaks(check: str, message: str) -> Callable[[Break], Break]:
    def register(surgery: Break) -> Break:
        BROKEN.append((check, message, surgery))
        return surgery

    return register


@breaks("graph", "mul uses add, which comes later")
def argument_comes_later(program: Program) -> None:
    node(program, "mul").args = (node(program, "add"), 2)


@breaks("graph", "mul uses linear, which is a node of another graph")
def argument_of_another_graph(program: Program) -> None:
    other = small()
    node(program, "mul").args = (node(other, "linear"), node(program, "b_scale"))


@breaks("graph", "sin uses mul, which is a node of another graph")
def subgraph_closes_over(program: Program) -> None:
    inner = graph_of(program, "true_graph").graph
    next(n for n in inner.nodes if n.name == "sin").args = (node(program, "mul"),)


@breaks("graph", "mul uses ghost, which was erased")
def argument_erased(program: Program) -> None:
    mul = node(program, "mul")
    with program.graph.inserting_before(mul):
        ghost = program.graph.call_function(aten.neg.default, (node(program, "linear"),))
    ghost.name = "ghost"
    program.graph.erase_node(ghost)
    mul.args = (ghost, node(program, "b_scale"))


@breaks("graph", "Two nodes are called mul")
def name_twice(program: Program) -> None:
    node(program, "add").name = "mul"


@breaks("graph", "The placeholder b_scale stands after nodes that compute")
def placeholder_late(program: Program) -> None:
    node(program, "linear").append(node(program, "b_scale"))


@breaks("graph", "The graph does not end in an output")
def no_output(program: Program) -> None:
    program.graph.erase_node(node(program, "output"))


@breaks("graph", "The graph has an output before its end")
def two_outputs(program: Program) -> None:
    with program.graph.inserting_before(node(program, "mul")):
        program.graph.output((node(program, "linear"),))


@breaks("subgraphs", "takes the attribute nowhere, which is nothing and not a graph")
def attribute_missing(program: Program) -> None:
    node(program, "true_graph").target = "nowhere"


@breaks("subgraphs", "takes the attribute weight, which is a Tensor and not a graph")
def attribute_is_a_tensor(program: Program) -> None:
    program.graph_module.weight = torch.ones(4)
    node(program, "false_graph").target = "weight"


@breaks("targets", "mul is a call_method node")
def calls_a_method(program: Program) -> None:
    mul = node(program, "mul")
    mul.op, mul.target = "call_method", "mul"


@breaks("targets", "mul is a call_module node")
def calls_a_module(program: Program) -> None:
    mul = node(program, "mul")
    mul.op, mul.target = "call_module", "true_graph"


@breaks("targets", "mul calls torch.mul, neither an operator nor a function on sizes")
def calls_python(program: Program) -> None:
    node(program, "mul").target = torch.mul


@breaks("targets", "sin calls mul, neither")
def calls_a_packet_inside(program: Program) -> None:
    next(n for n in graph_of(program, "true_graph").graph.nodes if n.name == "sin").target = aten.mul


@breaks("inputs", "The placeholder p_fc_bias stands where the signature has p_fc_weight")
def placeholders_swapped(program: Program) -> None:
    node(program, "p_fc_bias").append(node(program, "p_fc_weight"))


@breaks("inputs", "The placeholder renamed (target p_fc_weight) stands where the signature has p_fc_weight")
def placeholder_renamed(program: Program) -> None:
    node(program, "p_fc_weight").name = "renamed"


@breaks("inputs", "The signature does not know the placeholder extra")
def placeholder_unknown(program: Program) -> None:
    with program.graph.inserting_after(node(program, "x")):
        extra = program.graph.placeholder("extra")
    metadata.set_value(extra, metadata.value_of(node(program, "x")))


@breaks("inputs", "The signature names y, which is not a placeholder of the graph")
def placeholder_missing(program: Program) -> None:
    set_inputs(program, lambda inputs: (*inputs, Input(InputKind.ARGUMENT, "y")))


@breaks("inputs", "The parameter p_fc_bias comes after the buffer p_fc_weight")
def kinds_out_of_order(program: Program) -> None:
    set_inputs(program, lambda inputs: (replace(inputs[0], kind=InputKind.BUFFER), *inputs[1:]))


@breaks("outputs", "The graph returns 1 values, the signature has 2")
def output_dropped(program: Program) -> None:
    node(program, "output").args = ((node(program, "add"),),)


@breaks("outputs", "Output 0 of the graph is add, the signature has getitem")
def outputs_swapped(program: Program) -> None:
    node(program, "output").args = ((node(program, "add"), node(program, "getitem")),)


@breaks("outputs", "The graph returns a value that is not in a tuple")
def output_bare(program: Program) -> None:
    node(program, "output").args = (node(program, "add"),)


@breaks("outputs", "add is written to the buffer gone, which the program does not have")
def mutation_of_nothing(program: Program) -> None:
    node(program, "output").args = ((node(program, "add"), node(program, "getitem"), node(program, "add")),)
    set_outputs(program, Output(OutputKind.BUFFER_MUTATION, "add", "gone"), *program.signature.outputs)


@breaks("outputs", "add is written to the argument scale, which the program does not have")
def mutation_of_no_argument(program: Program) -> None:
    node(program, "output").args = ((node(program, "add"), node(program, "getitem"), node(program, "add")),)
    set_outputs(program, Output(OutputKind.ARGUMENT_MUTATION, "add", "scale"), *program.signature.outputs)


@breaks("outputs", "The write to scale comes after the results")
def mutation_last(program: Program) -> None:
    node(program, "output").args = ((node(program, "getitem"), node(program, "add"), node(program, "add")),)
    set_outputs(program, *program.signature.outputs, Output(OutputKind.BUFFER_MUTATION, "add", "scale"))


@breaks("trees", "The tree of the arguments has 2 leaves, the signature 1")
def literal_dropped(program: Program) -> None:
    set_inputs(program, lambda inputs: tuple(i for i in inputs if i.kind is not InputKind.LITERAL))


@breaks("trees", "The tree of the result has 1 leaves, the signature 2")
def result_tree_shrunk(program: Program) -> None:
    program.signature = replace(program.signature, out_tree=LEAF)


@breaks("state", "The parameter p_fc_weight is fc.weight in the state, and that is missing")
def state_missing(program: Program) -> None:
    del program.state_dict["fc.weight"]


@breaks("state", "The constant c_offset is offset in the state, and that is missing")
def constant_missing(program: Program) -> None:
    del program.constants["offset"]


@breaks("state", "The fixed argument gone is gone in the state, and that is missing")
def fixed_argument_missing(program: Program) -> None:
    set_inputs(program, lambda inputs: (*inputs[:-1], Input(InputKind.LITERAL, target="gone")))


@breaks("state", "The parameter fc.weight is f32[4, 5], its placeholder f32[4, 4]")
def state_of_another_shape(program: Program) -> None:
    program.state_dict["fc.weight"] = torch.zeros(4, 5)


@breaks("state", "The buffer scale is f64[4], its placeholder f32[4]")
def state_of_another_dtype(program: Program) -> None:
    program.state_dict["scale"] = torch.ones(4, dtype=torch.float64)


@breaks("values", "mul has no value")
def value_none(program: Program) -> None:
    metadata.set_value(node(program, "mul"), None)


@breaks("values", "neg_default has no value")
def value_missing(program: Program) -> None:
    with program.graph.inserting_after(node(program, "mul")):
        program.graph.call_function(aten.neg.default, (node(program, "mul"),))


@breaks("values", "arg0 has no value")
def value_missing_inside(program: Program) -> None:
    metadata.set_value(next(iter(graph_of(program, "true_graph").graph.nodes)), None)


@breaks("schema", "sum_1 does not fit the schema of aten.sum.default: it takes 1 positional argument, and is given 3")
def too_many_arguments(program: Program) -> None:
    found = node(program, "sum_1")
    found.args = (*found.args, 2, 3)


@breaks("schema", "mul does not fit the schema of aten.mul.Tensor: it needs the argument other")
def too_few_arguments(program: Program) -> None:
    mul = node(program, "mul")
    mul.args = mul.args[:1]


@breaks("schema", "it has no argument out; its arguments are self, other")
def unknown_keyword(program: Program) -> None:
    node(program, "mul").kwargs = {"out": node(program, "linear")}


@breaks("schema", "it is given other twice")
def argument_twice(program: Program) -> None:
    node(program, "mul").kwargs = {"other": 2}


@breaks("schema", "self is 'x', and must be a Tensor")
def text_for_a_tensor(program: Program) -> None:
    mul = node(program, "mul")
    mul.args = ("x", mul.args[1])


@breaks("schema", "self is [arg0], and must be a Tensor")
def list_in_a_branch(program: Program) -> None:
    inner = graph_of(program, "true_graph").graph
    sin = next(n for n in inner.nodes if n.name == "sin")
    sin.args = ([sin.args[0]],)


@breaks("schema", "dtype is b_scale, and must be an Optional[ScalarType]")
def node_for_a_dtype(program: Program) -> None:
    node(program, "sum_1").kwargs = {"dtype": node(program, "b_scale")}


@breaks("dialect", "may not stand in a CAPTURED program: a module-call marker was left behind")
def marker_left(program: Program) -> None:
    inner = graph_of(program, "true_graph").graph
    argument = next(iter(inner.nodes))
    with inner.inserting_after(argument):
        marker = inner.call_function(internals.tracepoint, (argument,), {"kind": "module_call_inputs", "path": "fc"})
    metadata.set_value(marker, (metadata.value_of(argument),))


@breaks("dialect", "add__tensor may not stand in a FUNCTIONAL program: aten.add_.Tensor writes to its argument")
def write_in_functional(program: Program) -> None:
    program.dialect = FUNCTIONAL
    add = node(program, "add")
    with program.graph.inserting_after(add):
        write = program.graph.call_function(aten.add_.Tensor, (add, 1))
    metadata.set_value(write, metadata.value_of(add))


@breaks("dialect", "linear may not stand in a CORE program: aten.linear.default is not in the core ATen set")
def composite_in_core(program: Program) -> None:
    program.dialect = CORE


def _call(inputs: tuple[Value, ...], outputs: tuple[Value, ...]) -> ModuleCall:
    arguments = Tree("tuple", "tuple", (0,), (LEAF,))
    return ModuleCall("inner", "inner", "Linear", CallSignature(inputs, outputs, arguments, LEAF))


X, MUL = Value("tensor", "x"), Value("tensor", "mul")


@breaks("calls", "2 module calls are called 'fc'")
def call_twice(program: Program) -> None:
    program.module_calls += (next(c for c in program.module_calls if c.path == "fc"),)


@breaks("calls", "The module call 'inner' has 2 values for the 1 of its arguments")
def call_with_more_arguments(program: Program) -> None:
    program.module_calls += (_call((X, X), (MUL,)),)


@breaks("calls", "The module call 'inner' has 0 values for the 1 of its result")
def call_without_result(program: Program) -> None:
    program.module_calls += (_call((X,), ()),)


@breaks("calls", "The result of the module call 'inner' names nobody, which is not a node")
def call_names_nobody(program: Program) -> None:
    program.module_calls += (_call((Value("literal", literal=3),), (Value("tensor", "nobody"),)),)


@breaks("dims", "2 dims are called batch")
def dim_twice(program: Program) -> None:
    program.dims += program.dims


@breaks("dims", "No size is in the range of batch in [5, 4]")
def dim_empty(program: Program) -> None:
    program.dims = (Dim("batch", 5, 4),)


@breaks("dims", "The constraint 2 <= seq  # f.py:3 is about seq, which is not a dim")
def constraint_of_no_dim(program: Program) -> None:
    program.constraints = (Constraint(sympy.Le(2, sympy.Symbol("s_seq", integer=True)), "f.py:3"),)


@breaks("dims", "The input x has the size batch, which is not a dim")
def size_of_no_dim(program: Program) -> None:
    program.dims = ()


@breaks("fake-run", "mul claims to be f64[batch, 4], but computes f32[batch, 4]")
def wrong_dtype(program: Program) -> None:
    mul = node(program, "mul")
    metadata.set_value(mul, metadata.value_of(mul).double())


@breaks("fake-run", "mul claims to be f32[4, batch], but computes f32[batch, 4]")
def wrong_shape(program: Program) -> None:
    mul = node(program, "mul")
    metadata.set_value(mul, metadata.value_of(mul).t())


@breaks("fake-run", "mul claims to be f32[batch, 4]@meta, but computes f32[batch, 4]")
def wrong_device(program: Program) -> None:
    mul = node(program, "mul")
    metadata.set_value(mul, metadata.value_of(mul).to("meta"))


@breaks("fake-run", "mul claims to be (f32[batch, 4],), but computes f32[batch, 4]")
def wrong_structure(program: Program) -> None:
    mul = node(program, "mul")
    metadata.set_value(mul, (metadata.value_of(mul),))


@breaks("fake-run", "linear cannot be run on what its arguments claim to be")
def wrong_argument(program: Program) -> None:
    linear = node(program, "linear")
    linear.args = (node(program, "x"), node(program, "b_scale"), node(program, "x"))


@breaks("fake-run", "sin claims to be bool[batch, 4], but computes f32[batch, 4]")
def wrong_inside(program: Program) -> None:
    sin = next(n for n in graph_of(program, "true_graph").graph.nodes if n.name == "sin")
    metadata.set_value(sin, metadata.value_of(sin).bool())


@breaks("fake-run", "size claims to be int(2*batch), but computes int(3*batch)")
def wrong_size(program: Program) -> None:
    with program.graph.inserting_after(node(program, "x")):
        batch = program.graph.call_function(aten.sym_size.int, (node(program, "x"), 0))
    with program.graph.inserting_after(batch):
        size = program.graph.call_function(operator.mul, (batch, 3))
    size.name = "size"
    known = metadata.value_of(node(program, "x")).shape[0]
    metadata.set_value(batch, known)
    metadata.set_value(size, known * 2)


@pytest.mark.parametrize(("check", "message", "surgery"), BROKEN, ids=[s.__name__ for _, _, s in BROKEN])
def test_a_broken_invariant_is_named(check: str, message: str, surgery: Break) -> None:
    program = small()
    verify(program)
    surgery(program)
    with pytest.raises(VerifyError, match=re.escape(message)) as raised:
        verify(program)
    assert f"failed check: {check}\n" in f"{raised.value}\n"
    if check == "fake-run":
        verify(program, fake_run=False)
    else:
        with pytest.raises(VerifyError, match=re.escape(message)):
            verify(program, fake_run=False)


def test_every_check_is_broken_by_some_test() -> None:
    from ingot.ir import verifier

    documented = re.findall(r"^    ([a-z-]+) {2,}\S", str(verifier.__doc__), re.MULTILINE)
    assert documented == list(verifier._CHECKS) == list(dict.fromkeys(check for check, _, _ in BROKEN))


def test_the_message_shows_the_node_and_the_users_line() -> None:
    program = small()
    wrong_dtype(program)
    program.history = (PassRecord("constant_fold", 1, 0.1, 10, 9),)
    line = inspect.getsourcelines(Small.forward)[1] + 1
    with pytest.raises(VerifyError) as raised:
        verify(program)
    assert str(raised.value) == "\n".join(
        [
            "mul claims to be f64[batch, 4], but computes f32[batch, 4].",
            f"  where: node mul, {__file__}:{line}: h = self.fc(x) * self.scale + self.offset",
            "  what to do: the program was changed last by constant_fold; look there, or report it",
            "  failed check: fake-run",
            "",
            "    …",
            "    c_offset: f32[4]",
            "    x: f32[batch, 4]",
            "    linear: f32[batch, 4] = aten.linear(x, p_fc_weight, p_fc_bias)",
            "--> mul: f64[batch, 4] = aten.mul.Tensor(linear, b_scale)",
            "    add: f32[batch, 4] = aten.add.Tensor(mul, c_offset)",
            "    sum_1: f32[] = aten.sum(add)",
            "    gt: bool[] = aten.gt.Scalar(sum_1, 0)",
            "    …",
        ]
    )
