"""Recipes: dynamic, weight-only, four bits, overrides, and operators besides convolution and linear."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.quantize import (
    Recipe,
    calibrate,
    convert,
    int4_weight_only,
    int8_dynamic,
    int8_static,
    int8_weight_only,
    prepare,
    prepare_qat,
)


def quantized(model: Any, args: tuple[Any, ...], recipe: Recipe, **options: Any) -> ingot.Program:
    program = ingot.capture(model, args, **options)
    made = convert(calibrate(prepare(program, recipe), [args], progress=False))
    made.verify()
    return made


def names(program: ingot.Program) -> list[str]:
    found = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    return [name.split(".")[1] for name in found if "getitem" not in name]


def close(program: ingot.Program, model: Any, args: tuple[Any, ...], decibels: float) -> None:
    with torch.no_grad():
        expected, got = model(*args), program(*args)
    noise = 10 * torch.log10(expected.square().mean() / (expected - got).square().mean())
    assert noise > decibels


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


X = (torch.randn(8, 32, generator=torch.Generator().manual_seed(1)),)


@pytest.mark.parametrize(
    ("recipe", "decibels", "chosen"),
    [
        (int8_dynamic(), 30, "choose_qparams"),
        (int8_dynamic(symmetric=True, activation_dtype="int8"), 30, "choose_qparams_symmetric"),
        (int8_dynamic(per_token=True), 30, "choose_qparams_per_token_asymmetric"),
        (int8_weight_only(), 35, "dequantize_per_channel"),
        (int8_weight_only(per_channel=False), 30, "dequantize_per_tensor"),
        (int4_weight_only(group_size=16), 15, "dequantize_per_channel_group"),
        (int8_static(per_channel=False, symmetric=True, activation_dtype="int8"), 25, "quantize_per_tensor"),
        (int8_static(observer="percentile"), 25, "quantize_per_tensor"),
        (int8_static(observer="minmax"), 30, "quantize_per_tensor"),
        (int8_static(observer="moving_average"), 30, "quantize_per_tensor"),
    ],
)
def test_each_recipe(recipe: Recipe, decibels: float, chosen: str) -> None:
    model = Mlp().eval()
    program = quantized(model, X, recipe)
    assert names(program).count(chosen) == 2
    close(program, model, X, decibels)


def test_dynamic_sizes_stay_dynamic() -> None:
    model = Mlp().eval()
    for recipe in (int8_static(), int8_dynamic()):
        program = quantized(model, X, recipe, dynamic_shapes={"x": {0: "batch"}})
        assert program(torch.randn(3, 32)).shape == (3, 16)


def test_overrides_by_path_and_by_node() -> None:
    model = Mlp().eval()
    program = quantized(model, X, int8_static(overrides={"down": None}))
    assert names(program).count("dequantize_per_channel") == 1 and "down.weight" in program.state_dict
    mixed = quantized(model, X, int8_static(overrides={"*": int4_weight_only(group_size=16), "up": int8_weight_only()}))
    assert names(mixed) == ["dequantize_per_channel", "linear", "relu", "dequantize_per_channel_group", "linear"]
    by_node = quantized(model, X, int8_static().leaving(["@linear"]))
    assert "up.weight" in by_node.state_dict and "down.weight_int8" in by_node.state_dict


def test_a_recipe_says_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="no kind 'pool'"):
        int8_static(kinds=("pool",))
    with pytest.raises(ValueError, match="give 'uint8' or 'int8'"):
        int8_static(activation_dtype="int4")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no observer 'guess'"):
        prepare(ingot.capture(Mlp(), X), int8_static(observer="guess"))


class Attention(nn.Module):
    """Embedding, linear layers, both products of attention, layer norm and a sum that is read in float."""

    def __init__(self, whole: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.whole = whole
        self.table, self.norm = nn.Embedding(20, 16), nn.LayerNorm(16)
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        q, k, v = (layer(x).view(2, 6, 2, 8).transpose(1, 2) for layer in (self.q, self.k, self.v))
        if self.whole:
            mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            mixed = (q @ k.transpose(-2, -1) * 8**-0.5).softmax(-1) @ v
        return self.norm(x + self.out(mixed.transpose(1, 2).reshape(2, 6, 16)))


IDS = (torch.arange(12).view(2, 6),)


def test_attention() -> None:
    model = Attention().eval()
    program = quantized(model, IDS, int8_static())
    found = names(program)
    # x, q, k and v, softmax's result, what the last layer reads; and the views between them
    assert found.count("dequantize_per_channel") == 5
    nodes = {n.name: n for n in program.graph.nodes}
    softmax, add = nodes["softmax"], nodes["add"]
    assert [str(u.target).split(".")[1] for u in softmax.users] == ["quantize_per_tensor"]
    assert [n.name for n in add.args] == ["embedding", "linear_3"]  # a sum that layer norm reads stays float
    for view in ("view", "transpose", "view_1", "view_2"):  # on both sides the numbers mean the same
        before, after = nodes[view].args[0], next(iter(nodes[view].users))
        assert before.args[1:] == after.args[1:]
    close(program, model, IDS, 30)


def test_attention_as_one_operator_is_an_option() -> None:
    model = Attention(whole=True).eval()
    plain = quantized(model, IDS, int8_static())
    chosen = quantized(model, IDS, int8_static(kinds=("linear", "attention")))
    assert names(chosen).count("quantize_per_tensor") > names(plain).count("quantize_per_tensor")
    close(chosen, model, IDS, 30)


class Products(nn.Module):
    """What linear layers are written as besides: a matrix with its axes exchanged."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Parameter(torch.randn(32, 32) / 6) for _ in range(3))
        self.bias = nn.Parameter(torch.randn(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mm(torch.addmm(self.bias, x, self.a).relu(), self.b).relu() @ self.c


@pytest.mark.parametrize("recipe", [int8_static(), int4_weight_only(group_size=16)], ids=lambda r: r.name)
def test_products_with_a_weight_become_linear(recipe: Recipe) -> None:
    model = Products().eval()
    program = quantized(model, X, recipe)
    assert names(program).count("linear") == 3 and not {"addmm", "mm", "matmul"} & set(names(program))
    close(program, model, X, 14)
    module = prepare_qat(ingot.capture(model, X), recipe).train()
    module(*X).square().mean().backward()
    converted = convert(module.eval())
    converted.verify()
    torch.testing.assert_close(converted(*X), module(*X), rtol=1e-3, atol=1e-3)


def test_a_tied_weight_is_stored_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(20, 16), nn.Linear(16, 20, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(ids))

    program = quantized(Tied().eval(), IDS, int8_weight_only())
    assert [t.dtype for t in program.state_dict.values()].count(torch.int8) == 1
    assert names(program) == ["dequantize_per_channel", "embedding", "linear"]


def test_inside_of_a_region() -> None:
    """Under autocast values are bfloat16; quantize and dequantize know it."""

    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.inner = Mlp()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return self.inner(x).float()

    model = Cast().eval()
    program = quantized(model, X, int8_static())
    inside = [m for m in program.graph_module.children() if isinstance(m, torch.fx.GraphModule)]
    found = [str(n.target).split(".")[1] for m in inside for n in m.graph.nodes if n.op == "call_function"]
    assert found.count("quantize_per_tensor") == 2 and found.count("dequantize_per_channel") == 2
    close(program, model, X, 25)


def test_a_bfloat16_model() -> None:
    model = Mlp().eval().bfloat16()
    x = (X[0].bfloat16(),)
    for recipe in (int8_static(), int8_weight_only(), int4_weight_only(group_size=16)):
        program = quantized(model, x, recipe)
        assert program(*x).dtype is torch.bfloat16


def test_padding_keeps_values() -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(nn.functional.pad(self.a(x).relu(), (0, 1, 0, 1)))

    program = quantized(Padded().eval(), (torch.randn(1, 3, 6, 6),), int8_static())
    nodes = {n.name: n for n in program.graph.nodes}
    assert nodes["pad"].args[0].args[1:] == next(iter(nodes["pad"].users)).args[1:]


class Taken(nn.Module):
    """Names that a module could trip over."""

    def __init__(self) -> None:
        super().__init__()
        self.quantizers, self.base, self.table = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, keys: torch.Tensor, training: torch.Tensor) -> torch.Tensor:
        return self.table(self.base(self.quantizers(keys) * training).float())


def test_names_of_the_model_are_free() -> None:
    args = (torch.randn(2, 4), torch.randn(2, 4))
    model = Taken().eval()
    close(quantized(model, args, int8_static()), model, args, 25)
    module = prepare_qat(ingot.capture(model, args), int8_static()).train()
    module(*args).sum().backward()
    assert "quantizers.weight" in module.state_dict()
    convert(module.eval()).verify()
