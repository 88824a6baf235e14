"""Effects and tokens: what becomes an effect, that dependence alone keeps it, and the way back."""

from __future__ import annotations

import copy
import operator
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

import ingot
from ingot import passes
from ingot.errors import PassError
from ingot.ir import effect_tokens
from ingot.ir.outlining import graph_modules
from ingot.ir.signature import OutputKind
from ingot.passes.decompose import decompose
from ingot.passes.erase_effect_tokens import erase_effect_tokens
from ingot.passes.functionalize import functionalize
from ingot.passes.insert_effect_tokens import declare_effect, insert_effect_tokens, strip_tokens
from tests.passes.effects.effectful_ops import (
    MODELS,
    TO_EFFECTS,
    Base,
    BothBranches,
    CountedLoop,
    OneBranch,
    Unused,
    Writes,
    assert_same,
    heard,
    made,
    naive_cse,
    naive_dce,
    program_of,
    pure,
    say,
    shuffle,
    targets,
)

every_model = pytest.mark.parametrize("cls", MODELS)


# ---------------------------------------------------------------------- every situation, every promise


@every_model
def test_results_and_effects_are_the_eager_models(cls: type[Base], tmp_path: Path) -> None:
    model, x = made(cls)
    plain = program_of(model, x)
    threaded = ingot.transform(plain, [insert_effect_tokens], check="numerics")
    expected = heard(model, x)
    assert_same(expected, heard(threaded, x))
    kinds = [output.kind for output in threaded.signature.outputs]
    assert kinds.count(OutputKind.TOKEN) == 1
    threaded.save(tmp_path / "threaded.ingot")
    loaded = ingot.load(tmp_path / "threaded.ingot")
    loaded.verify()
    assert str(loaded) == str(threaded)


@every_model
def test_the_way_back_gives_the_program_again(cls: type[Base]) -> None:
    model, x = made(cls)
    plain = program_of(model, x)
    back = ingot.transform(plain, [insert_effect_tokens, erase_effect_tokens], check="numerics")
    if cls is not CountedLoop:  # its condition has become a tensor
        assert str(back) == str(plain)
    assert not any("ingot" in str(target) and "tests" not in str(target) for target in targets(back))
    assert all(output.kind is not OutputKind.TOKEN for output in back.signature.outputs)
    assert_same(heard(model, x), heard(back, x))


@every_model
def test_both_ways_change_nothing_the_second_time(cls: type[Base]) -> None:
    model, x = made(cls)
    program = program_of(model, x)
    assert insert_effect_tokens(program) > 0
    text = str(program)
    assert insert_effect_tokens(program) == 0
    assert str(program) == text
    assert erase_effect_tokens(program) > 0
    text = str(program)
    assert erase_effect_tokens(program) == 0
    assert str(program) == text


@every_model
def test_the_pipeline_keeps_effects(cls: type[Base]) -> None:
    model, x = made(cls)
    pipeline: list[Any] = [*TO_EFFECTS, insert_effect_tokens, functionalize, decompose, insert_effect_tokens]
    program = ingot.transform(ingot.capture(copy.deepcopy(model), (x,)), pipeline, check="numerics")
    assert program.history[-1].changes == 0
    back = ingot.transform(program, [erase_effect_tokens], check="numerics")
    for one in (program, back):
        _, said = heard(one.copy(), x)
        assert said == heard(copy.deepcopy(model), x)[1]


@every_model
@pytest.mark.parametrize("seed", range(4))
def test_no_order_that_dependence_allows_changes_effects(cls: type[Base], seed: int) -> None:
    model, x = made(cls)
    threaded = ingot.transform(program_of(model, x), [insert_effect_tokens, functionalize])
    moved = ingot.transform(threaded, [naive_dce, naive_cse, (shuffle, {"seed": seed}), naive_dce])
    expected = heard(copy.deepcopy(model), x)
    assert expected[1] == heard(moved.copy(), x)[1]
    back = ingot.transform(moved, [erase_effect_tokens])
    assert expected[1] == heard(back, x)[1]


# ---------------------------------------------------------------------- the printed graph


def test_the_graph_is_printed() -> None:
    model, x = made(Unused)
    text = str(ingot.transform(program_of(model, x), [insert_effect_tokens]))
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    assert [line for line in lines if " = " in line or line.startswith(("token", "return"))] == [
        "token: bool[0] = ingot.make_token()",
        "count_effect: (bool[0], f32[3, 4]) = ingot_ingot_tests.count(token, x, 'a')",
        "token_1: bool[0] = count_effect[0]",
        "count: f32[3, 4] = count_effect[1]",
        "pair: (bool[0], f32[3, 4], f32[3, 4]) = ingot_ingot_tests.pair(token_1, x, 'b')",
        "token_2: bool[0] = pair[0]",
        "pair_1: (bool[0], f32[3, 4], f32[3, 4]) = ingot_ingot_tests.pair(token_2, x, 'c')",
        "token_3: bool[0] = pair_1[0]",
        "getitem_3: f32[3, 4] = pair_1[2]",
        "token ← token_3",
        "return getitem_3",
    ]


def test_a_program_without_effects_is_untouched() -> None:
    class Quiet(Base):
        def forward(self, x: torch.Tensor) -> Any:
            self.seen.add_(1)
            return pure(self.sub.fc(x)) + self.seen

    model, x = made(Quiet)
    program = program_of(model.eval(), x)
    text, graph_module, signature = str(program), program.graph_module, program.signature
    assert insert_effect_tokens(program, random=True) == 0
    assert erase_effect_tokens(program) == 0
    assert program.graph_module is graph_module and program.signature is signature and str(program) == text


def test_new_effects_join_the_chain() -> None:
    model, x = made(BothBranches)
    program = ingot.transform(program_of(model, x), [insert_effect_tokens])
    with program.graph.inserting_before(next(iter(reversed(program.graph.nodes)))):
        node = program.graph.create_node(
            "call_function", torch.ops.ingot_tests.say.default, (program.graph.find_nodes(op="placeholder")[-1], "new")
        )
    node.meta["val"] = None
    program.graph_module.recompile()
    assert insert_effect_tokens(program) > 0
    program.verify()
    assert heard(program, x)[1] == [*heard(model, x)[1], "new"]
    assert naive_dce(program) == 0


def test_a_function_that_two_calls_share_is_copied() -> None:
    model, x = made(OneBranch)
    program = program_of(model, x)
    first, second = program.graph.find_nodes(op="call_function", target=torch.ops.higher_order.cond)
    second.args = (second.args[0], *first.args[1:3], *second.args[3:])
    for node in program.graph.find_nodes(op="get_attr"):
        if not node.users:
            program.graph.erase_node(node)
    program.graph_module.recompile()
    expected = heard(program, x)
    assert insert_effect_tokens(program) > 0
    program.verify()
    assert_same(expected, heard(program, x))
    assert erase_effect_tokens(program) > 0
    program.verify()
    assert_same(expected, heard(program, x))


# ---------------------------------------------------------------------- random draws


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 4))
        self.attention = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.2, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x), self.attention(x[None])


class Samples(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        noise = torch.empty_like(x).bernoulli_(0.5) + torch.randn_like(x).normal_(1, 2)
        picked = torch.multinomial(x.softmax(-1), 2)
        torch.rand(3)  # nobody looks at it, but it moves the generator on

        def draw(v: torch.Tensor) -> torch.Tensor:
            return v + torch.rand_like(v)

        y = torch.cond(x.sum() > 0, draw, lambda v: torch.bernoulli(v.sigmoid()), (x,))
        say(y, "drawn")

        def body(i: torch.Tensor, v: torch.Tensor) -> Any:
            return i + 1, v + torch.randn_like(v).clamp(-1, 1)

        return noise, picked, torch.while_loop(lambda i, v: i < 3, body, (torch.zeros((), dtype=torch.int64), y))


@pytest.mark.parametrize("cls", [Dropped, Samples])
def test_draws_are_the_same_given_the_seed(cls: type[nn.Module]) -> None:
    model, x = made(cls)
    plain = program_of(model, x)
    expected = heard(model, x)
    threaded = ingot.transform(plain, [(insert_effect_tokens, {"random": True})], check="numerics")
    assert_same(expected, heard(threaded, x))
    functional = ingot.transform(threaded, [functionalize, (insert_effect_tokens, {"random": True})], check="numerics")
    assert_same(expected, heard(functional, x))
    back = ingot.transform(threaded, [erase_effect_tokens], check="numerics")
    assert_same(expected, heard(back, x))
    for seed in range(4):
        moved = ingot.transform(functional, [naive_dce, naive_cse, (shuffle, {"seed": seed})])
        assert_same(expected, heard(moved, x))


def test_what_does_not_draw_gets_no_token() -> None:
    model, x = made(Dropped)
    text = str(ingot.transform(program_of(model, x), [(insert_effect_tokens, {"random": True})]))
    assert len(re.findall(r"= aten\.dropout\(", text)) == 1  # the one at a rate of nothing
    assert not insert_effect_tokens(program_of(model.eval(), x), random=True)


def test_random_draws_are_effects_only_on_request() -> None:
    model, x = made(Samples)
    program = ingot.transform(program_of(model, x), [insert_effect_tokens])
    assert torch.ops.aten.multinomial.default in targets(program)
    assert torch.ops.aten.bernoulli_.float in targets(program)


def test_gradients_go_through_the_token_form() -> None:
    model, x = made(Dropped)
    threaded = ingot.transform(program_of(model, x), [(insert_effect_tokens, {"random": True})])
    gradients = []
    for run in (model, threaded):
        given = x.clone().requires_grad_()
        torch.manual_seed(5)
        torch.cat([out.flatten() for out in run(given)]).square().sum().backward()
        gradients.append(given.grad)
    assert torch.equal(gradients[0], gradients[1])


# ---------------------------------------------------------------------- the rest


def test_dynamic_sizes() -> None:
    model, x = made(BothBranches)
    program = program_of(model, x, dynamic_shapes={"x": {0: "batch"}})
    threaded = ingot.transform(program, [insert_effect_tokens, functionalize, decompose], check="numerics")
    for size in (2, 3, 9):
        given = torch.rand(size, 4)
        assert heard(model, given)[1] == heard(threaded, given)[1]


def test_an_effect_that_has_no_order_is_refused() -> None:
    class Scored(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return flex_attention(x, x, x, score_mod=lambda score, b, h, q, k: score * 2)

    program = program_of(Scored(), torch.rand(1, 1, 16, 16))
    function = next(
        m for m in graph_modules(program.graph_module) if m.graph.find_nodes(op="placeholder")[0].name == "score0"
    )
    (mul,) = [node for node in function.graph.nodes if node.op == "call_function"]
    with function.graph.inserting_before(mul):
        function.graph.create_node("call_function", torch.ops.aten.rand_like.default, mul.args[:1])
    with pytest.raises(PassError, match="no order of its calls is defined"):
        insert_effect_tokens(program, random=True)


def test_only_operators_can_be_declared() -> None:
    with pytest.raises(PassError, match="is not an operator"):
        declare_effect(len)


def test_a_file_with_tokens_is_read_by_a_process_that_never_made_one(tmp_path: Path) -> None:
    class Checked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._assert_async((x < 50).all(), "too large")
            return x + 1

    ingot.transform(program_of(Checked(), torch.ones(2)), [insert_effect_tokens]).save(tmp_path / "m.ingot")
    code = f"import ingot, torch; print(ingot.load({str(tmp_path / 'm.ingot')!r})(torch.ones(2)).tolist())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[2.0, 2.0]"


def test_the_operator_with_a_token_is_made_once() -> None:
    op = torch.ops.aten._assert_async.msg
    made_of = effect_tokens.add_token(op)
    assert effect_tokens.add_token(op) is made_of and effect_tokens.remove_token(made_of) is op
    assert str(made_of._schema) == "ingot_aten::_assert_async.msg(Tensor token, Tensor self, str assert_msg) -> Tensor"
    assert effect_tokens.remove_token(operator.getitem) is None


@every_model
@pytest.mark.parametrize("order", [(2, 0, 1), (0, 2, 1), (1, 0, 2), (2, 1, 0)])
def test_regions_and_effects_come_in_any_order(cls: type[Base], order: tuple[int, ...]) -> None:
    model, x = made(cls)
    either: list[Any] = [passes.autocast, passes.grad_mode, insert_effect_tokens]
    program = ingot.transform(
        ingot.capture(copy.deepcopy(model), (x,)), [passes.tracepoints, *(either[i] for i in order)], check="numerics"
    )
    back = ingot.transform(program, [erase_effect_tokens, *either], check="numerics")
    expected = heard(copy.deepcopy(model), x)
    assert_same(expected, heard(program, x) if cls is not Writes else (expected[0], heard(program, x)[1]))
    assert expected[1] == heard(back, x)[1]


def test_draws_that_are_decomposed_take_tokens_again() -> None:
    model, x = made(Dropped)
    program = ingot.transform(program_of(model, x), [(insert_effect_tokens, {"random": True}), functionalize])
    before = program.copy()
    with strip_tokens(program):
        decompose(program)
    program.verify()
    attention = torch.ops.aten.scaled_dot_product_attention.default
    drawing, left = ([effect_tokens.remove_token(target) for target in targets(one)] for one in (before, program))
    assert attention in drawing and attention not in left
    assert torch.ops.aten.dropout.default in drawing and torch.ops.aten.dropout.default not in left
    assert left.count(torch.ops.aten.native_dropout.default) > drawing.count(torch.ops.aten.dropout.default)
    for a, b in zip(heard(before, x)[0], heard(program, x)[0], strict=True):
        torch.testing.assert_close(a, b)
