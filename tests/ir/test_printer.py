"""What print(program) shows."""

from __future__ import annotations

import inspect
import math
import operator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import fx, nn

import ingot
from ingot.ir import metadata
from ingot.ir.printer import describe_value, literal, neighbourhood, operator_name, print_program
from ingot.ir.program import Program
from ingot.ir.signature import Output, OutputKind
from tests.support.zoo import entry

aten = torch.ops.aten


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x.pow(2).mean(-1, keepdim=True).rsqrt() * self.gain


@dataclass
class Answer:
    logits: torch.Tensor
    past: list[dict[str, torch.Tensor]]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU()), Norm()])
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.spare = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor, options: dict[str, Any], scale: float = 0.5) -> Answer:
        self.count.add_(1)
        for layer in self.layers:
            x = layer(x)
        rows = x.new_zeros(x.shape[0] * 2 + 1)
        first, second = x.chunk(2, -1)
        past = [{"keys": first, "values": second + options["shift"]}, {"rows": rows}]
        return Answer(x * scale, past)


def model_program() -> Program:
    inputs = (torch.randn(3, 4), {"shift": torch.ones(2), "name": "a"}, 1 / 3)
    return ingot.capture(Model().eval(), inputs, dynamic_shapes={"x": {0: torch.export.Dim("batch", min=1, max=64)}})


def test_a_whole_program() -> None:
    norm, forward = (inspect.getsourcelines(cls.forward)[1] for cls in (Norm, Model))
    here = "ir/test_printer.py"
    expected = f"""\
# Model: 17 nodes, CAPTURED, evaluation
#   dims         batch in [1, 64]
#   parameters   4 tensors, 26 values, 104 B
#                p_spare: f32[2]  (unused)
#                p_layers_0_0_weight: f32[4, 4]
#                p_layers_0_0_bias: f32[4]
#                p_layers_1_gain: f32[4]
#   buffers      1 tensor, 1 value, 8 B
#                b_count: i64[]

def forward(
    x: f32[batch, 4],
    options_shift: f32[2],  # options.shift
    options.name='a',
    scale=~0.333333,
):

  # Model
    # {here}:{forward + 1}  self.count.add_(1)
    add_: i64[] = aten.add_.Tensor(b_count, 1)

  # layers.0  (Sequential)
    # {here}:{forward + 3}  x = layer(x)
    linear: f32[batch, 4] = aten.linear(x, p_layers_0_0_weight, p_layers_0_0_bias)  # 0: Linear
    relu: f32[batch, 4] = aten.relu(linear)  # 1: ReLU

  # layers.1  (Norm)
    # {here}:{norm + 1}  return x * x.pow(2).mean(-1, keepdim=True).rsqrt() * self.gain
    pow_1: f32[batch, 4] = aten.pow.Tensor_Scalar(relu, 2)
    mean: f32[batch, 1] = aten.mean.dim(pow_1, [-1], True)
    rsqrt: f32[batch, 1] = aten.rsqrt(mean)
    mul: f32[batch, 4] = aten.mul.Tensor(relu, rsqrt)
    mul_1: f32[batch, 4] = aten.mul.Tensor(mul, p_layers_1_gain)

  # Model
    # {here}:{forward + 4}  rows = x.new_zeros(x.shape[0] * 2 + 1)
    sym_size: int(batch) = aten.sym_size.int(x, 0)
    mul_2: int(2*batch) = 2 * sym_size
    add: int(1 + 2*batch) = 1 + mul_2
    new_zeros: f32[1 + 2*batch] = aten.new_zeros(mul_1, [add], pin_memory=False)
    # {here}:{forward + 5}  first, second = x.chunk(2, -1)
    chunk: (f32[batch, 2], f32[batch, 2]) = aten.chunk(mul_1, 2, -1)
    getitem: f32[batch, 2] = chunk[0]
    getitem_1: f32[batch, 2] = chunk[1]
    # {here}:{forward + 6}  past = [{{"keys": first, "values": second + options["shift"]}}, {{"rows": rows}}]
    add_1: f32[batch, 2] = aten.add.Tensor(getitem_1, options_shift)
    # {here}:{forward + 7}  return Answer(x * scale, past)
    mul_3: f32[batch, 4] = aten.mul.Tensor(mul_1, ~0.333333)

    return Answer(logits=mul_3, past[0].keys=getitem, past[0].values=add_1, past[1].rows=new_zeros)"""
    assert print_program(model_program()) == expected


def choose(x: torch.Tensor) -> torch.Tensor:
    def positive(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.max() > 1, lambda x: x.exp(), lambda x: x.log(), (x,))

    return torch.cond(x.sum() > 0, positive, lambda x: x * 2, (x,))


def test_graphs_inside_are_functions() -> None:
    text = print_program(ingot.capture(choose, (torch.randn(3),)))
    lines = [line for line in text.splitlines() if "#" not in line]
    assert lines == [
        "",
        "def forward(x: f32[3]):",
        "    sum_1: f32[] = aten.sum(x)",
        "    gt: bool[] = aten.gt.Scalar(sum_1, 0)",
        "    def true_graph(arg0: f32[3]):",
        "        max_1: f32[] = aten.max(arg0)",
        "        gt: bool[] = aten.gt.Scalar(max_1, 1)",
        "        def true_graph(arg0: f32[3]):",
        "            exp: f32[3] = aten.exp(arg0)",
        "            return (exp,)",
        "        def false_graph(arg0: f32[3]):",
        "            log: f32[3] = aten.log(arg0)",
        "            return (log,)",
        "        cond: (f32[3],) = cond(gt, true_graph, false_graph, (arg0,))",
        "        getitem: f32[3] = cond[0]",
        "        return (getitem,)",
        "    def false_graph(arg0: f32[3]):",
        "        mul: f32[3] = aten.mul.Tensor(arg0, 2)",
        "        return (mul,)",
        "    cond: (f32[3],) = cond(gt, true_graph, false_graph, (x,))",
        "    getitem: f32[3] = cond[0]",
        "",
        "    return getitem",
    ]


def test_a_graph_that_is_used_twice_is_written_once() -> None:
    program = ingot.capture(choose, (torch.randn(3),))
    first = next(n for n in program.graph.nodes if n.name == "true_graph")
    with program.graph.inserting_after(first):
        again = program.graph.get_attr("true_graph")
    assert f"    {again.name} = true_graph\n" in print_program(program)


def test_modes_and_effects() -> None:
    def switch(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            return x @ x

    lines = print_program(ingot.capture(switch, (torch.randn(3, 3),))).splitlines()
    shown = [line.strip() for line in lines if "#" not in line]
    assert shown[2:-2] == [
        "enter_autocast = enter_autocast('cpu', bf16, True, True)",
        "set_grad_enabled(False)",
        "matmul: bf16[3, 3] = aten.matmul(x, x)",
        "set_grad_enabled(True)",
        "exit_autocast(enter_autocast)",
    ]


def test_constraints_name_their_line() -> None:
    def split(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] % 2 == 0:
            return x.view(2, -1)
        return x

    line = inspect.getsourcelines(split)[1] + 1
    program = ingot.capture(split, (torch.randn(4),), dynamic_shapes={"x": {0: "auto"}})
    constraints = [text for text in print_program(program).splitlines() if text.startswith("#   constraints")]
    assert len(constraints) == 1 and f"ir/test_printer.py:{line}" in constraints[0], constraints


def test_writes_and_the_shapes_of_results() -> None:
    def forward(x: torch.Tensor) -> Any:
        return x + 1, 3

    program = ingot.capture(forward, (torch.randn(2),))
    writes = (Output(OutputKind.BUFFER_MUTATION, "add", "bn.count"), Output(OutputKind.ARGUMENT_MUTATION, "add", "x"))
    program.signature = replace(program.signature, outputs=(*writes, *program.signature.outputs))
    assert print_program(program).splitlines()[-4:] == [
        "",
        "    bn.count ← add  # buffer",
        "    x ← add  # argument",
        "    return (add, 3)",
    ]


def test_a_long_result_gets_a_line_for_each_part() -> None:
    item = entry("gpt2")
    text = print_program(ingot.capture(item.build(), (), item.inputs(item.sizes), dynamic_shapes=item.dynamic))
    returned = text[text.index("    return ") :].splitlines()
    assert returned[0] == "    return CausalLMOutputWithCrossAttentions("
    assert returned[1].startswith("        logits = linear") and returned[1].endswith(": f32[batch, seq, 101],")
    assert "        past_key_values.layers[0].keys = cat: f32[batch, 4, seq, 8]," in returned
    assert returned[-1] == "    )"
    state = [line for line in text.splitlines() if line.startswith("#   parameters")]
    assert state == ["#   parameters   28 tensors, 30,752 values, 123.0 kB"]
    assert "p_transformer_wte_weight: f32" not in text
    assert "  # transformer.h.0.attn  (GPT2Attention)" in text


def test_the_same_model_prints_the_same() -> None:
    first, second = print_program(model_program()), print_program(model_program())
    assert first == second
    assert "0x" not in first
    assert str(model_program().copy()) == first


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.zeros(2, 3), "f32[2, 3]"),
        (torch.zeros((), dtype=torch.bool), "bool[]"),
        (torch.zeros(1, dtype=torch.complex64), "c64[1]"),
        (torch.zeros(1, device="meta", dtype=torch.bfloat16), "bf16[1]@meta"),
        (torch.zeros(1, dtype=torch.float8_e4m3fn), "float8_e4m3fn[1]"),
        ([torch.zeros(2)], "(f32[2],)"),
        ((torch.zeros(2), None), "(f32[2], None)"),
        ([torch.zeros(2)] * 5 + [torch.zeros(3)], "(f32[2] ×5, f32[3])"),
        (None, "None"),
    ],
)
def test_describe_value(value: Any, text: str) -> None:
    assert describe_value(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-12, "1e-12"),
        (0.1, "0.1"),
        (0.3535533905932738, "~0.353553"),
        (-3.4028234663852886e38, "~-3.40282e+38"),
        (math.inf, "inf"),
        (2.0, "2.0"),
        (2**63 - 1, "∞"),
        (True, "True"),
        (torch.int8, "i8"),
        (torch.device("cuda", 1), "cuda:1"),
        (torch.channels_last, "channels_last"),
        (torch.strided, "strided"),
        ("tanh", "'tanh'"),
        (object(), "<object>"),
    ],
)
def test_literals_are_short_and_honest(value: Any, text: str) -> None:
    assert literal(value) == text


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (aten.linear.default, "aten.linear"),
        (aten.add.Tensor, "aten.add.Tensor"),
        (torch.ops.higher_order.cond, "cond"),
        (math.floor, "math.floor"),
        (torch.sym_max, "torch.sym_max"),
        (operator.neg, "neg"),
    ],
)
def test_operators_keep_what_tells_them_apart(target: Any, text: str) -> None:
    assert operator_name(target) == text


def chain() -> fx.Graph:
    graph = fx.Graph()
    node = graph.placeholder("x")
    metadata.set_value(node, torch.zeros(2))
    for name in "abcdefgh":
        node = graph.create_node("call_function", aten.neg.default, (node,), name=name)
        metadata.set_value(node, torch.zeros(2))
    graph.output((node,))
    return graph


def test_neighbourhood() -> None:
    nodes = {n.name: n for n in chain().nodes}
    assert neighbourhood(nodes["d"], radius=1) == "\n".join(
        ["    …", "    c: f32[2] = aten.neg(b)", "--> d: f32[2] = aten.neg(c)", "    e: f32[2] = aten.neg(d)", "    …"]
    )
    assert neighbourhood(nodes["x"], radius=1).splitlines() == ["--> x: f32[2]", "    a: f32[2] = aten.neg(x)", "    …"]
    assert neighbourhood(nodes["output"], radius=0).splitlines() == ["    …", "--> return (h,)"]


def test_a_node_without_a_value_can_be_shown() -> None:
    graph = chain()
    last = next(iter(reversed(graph.nodes)))
    with graph.inserting_before(last):
        bare = graph.create_node("call_function", aten.neg.default, (last.args[0][0],), name="bare")  # type: ignore[index]
    assert "--> bare: ? = aten.neg(h)" in neighbourhood(bare)
