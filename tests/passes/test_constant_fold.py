"""fold: constants, limits, batch norm; what is left, that it verifies, that numbers stay, and that it is stable."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot import passes
from ingot.ir.outlining import graph_modules
from ingot.passes.constant_fold import constant_fold
from ingot.passes.decompose import decompose
from ingot.passes.functionalize import functionalize

aten = torch.ops.aten
REGIONS = (passes.tracepoints, passes.autocast, passes.grad_mode, functionalize)


def count(program: ingot.Program, *targets: Any) -> int:
    return sum(n.target in targets for m in graph_modules(program.graph_module) for n in m.graph.nodes)


def folded(
    model: nn.Module, x: torch.Tensor, pipeline: Sequence[Any], tolerance: float = 0.0, **options: Any
) -> ingot.Program:
    """The program after fold: verified, the same numbers as eager at several sizes, the model untouched, and stable."""
    state = {name: t.clone() for name, t in model.state_dict().items()}
    program = ingot.transform(ingot.capture(model, (x,), dynamic_shapes={"x": {0: "n"}}), pipeline)
    after = ingot.transform(program, [(constant_fold, options)])
    after.verify()
    for size in (x.shape[0], 2, 5):
        given = torch.randn(size, *x.shape[1:])
        expected, got = model(given), after(given)
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
    assert all(torch.equal(state[name], t) for name, t in model.state_dict().items())
    again = ingot.transform(after, [(constant_fold, options)])
    assert again.history[-1].changes == 0
    assert str(again) == str(after)
    return after


# ---------------------------------------------------------------------- constants


class Constants(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.table, self.function = torch.linspace(1, 2, 4), function
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def test_constants() -> None:
    model = Constants(lambda self, x: x * self.table.exp().sin() + torch.tensor(3.0))
    after = folded(model, torch.randn(3, 4), REGIONS)
    assert [n.name for n in after.graph.nodes if n.op == "call_function"] == ["mul", "add"]
    assert set(after.constants) == {"folded", "constant"}
    assert [i.name for i in after.signature.inputs][-3:] == ["c_constant", "c_folded", "x"]


def test_what_is_smaller_as_a_call_stays() -> None:
    def many(self: Constants, x: torch.Tensor) -> Any:
        return x + torch.arange(4), x[:, None] * self.table.exp().expand(7, 4), x + torch.ones(4, 4).triu()[1]

    after = folded(Constants(many), torch.randn(3, 4), REGIONS)
    assert count(after, aten.arange.default, aten.expand.default) == 2
    assert count(after, aten.exp.default, aten.ones.default) == 0


def test_the_limit() -> None:
    def outer(self: Constants, x: torch.Tensor) -> Any:
        return x + (self.table[:, None] * self.table)[0]

    model = Constants(outer)
    assert count(folded(model, torch.randn(3, 4), REGIONS, limit_bytes=4), aten.mul.Tensor) == 1
    assert count(folded(model, torch.randn(3, 4), REGIONS, limit_bytes=64), aten.mul.Tensor) == 0


def test_constants_in_every_graph() -> None:
    def nested(self: Constants, x: torch.Tensor) -> Any:
        def body(i: torch.Tensor, y: torch.Tensor) -> Any:
            return i + 1, y * self.table.exp()

        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.fc(x) @ torch.mm(self.table.diag(), self.table.diag())
        _, z = torch.while_loop(lambda i, y: i < 2, body, (torch.zeros((), dtype=torch.int64), x))
        return y, torch.cond(z.sum() > 0, lambda z: z + self.table.sin(), lambda z: z - self.table.cos(), (z,))

    after = folded(Constants(nested), torch.randn(3, 4), REGIONS)
    assert count(after, aten.exp.default, aten.sin.default, aten.cos.default, aten.mm.default) == 0
    assert "table" not in after.constants


def test_parameters_on_request_and_never_what_is_written() -> None:

    model, x = Constants(lambda self, x: x @ self.fc.weight.exp()), torch.randn(3, 4)
    assert count(folded(model, x, REGIONS), aten.exp.default) == 1
    after = folded(model, x, REGIONS, parameters=True)
    assert count(after, aten.exp.default) == 0
    assert "fc.weight" not in after.state_dict

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scale = self.seen.exp()
            self.seen.add_(1)
            return x * scale

    program = ingot.transform(ingot.capture(Counts(), (x,)), REGIONS)
    after = ingot.transform(program, [(constant_fold, {"parameters": True})], check="numerics")
    assert count(after, aten.exp.default) == 1


def test_a_constant_result_stays_a_tensor_of_its_own() -> None:
    model = Constants(lambda self, x: (x * 2, self.table.exp(), torch.tensor([1.0, 2.0])))
    after = folded(model, torch.randn(3, 4), REGIONS)
    x = torch.randn(3, 4)
    for out in after(x)[1:]:
        out.zero_()
    torch.testing.assert_close(after(x), model(x), rtol=0, atol=0)


def test_in_float64_integers_divide_into_float64() -> None:
    """The numbers that fold computes are compared in float64, those without a dtype of their own too."""
    model = Constants(lambda self, x: x * (torch.arange(1, 5) / 3).exp())
    program = ingot.transform(ingot.capture(model, (torch.randn(3, 4),)), REGIONS)
    after = ingot.transform(program, [constant_fold], check="numerics")
    assert count(after, aten.exp.default) == 0
    assert next(iter(after.constants.values())).dtype is torch.float32


# ---------------------------------------------------------------------- batch norm


def randomized(norm: Any) -> Any:
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        if norm.affine:
            norm.weight.normal_()
            norm.bias.normal_()
    return norm


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv1d": (lambda: nn.Conv1d(4, 6, 3), lambda: nn.BatchNorm1d(6), (3, 4, 8)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, padding="same"), lambda: nn.BatchNorm2d(6, eps=1e-3), (3, 4, 5, 5)),
    "conv2d_grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2, bias=False), lambda: nn.BatchNorm2d(6), (3, 4, 5, 5)),
    "conv3d": (lambda: nn.Conv3d(2, 4, 2, bias=False), lambda: nn.BatchNorm3d(4, affine=False), (3, 2, 4, 4, 4)),
    "transposed1d": (lambda: nn.ConvTranspose1d(4, 6, 3), lambda: nn.BatchNorm1d(6), (3, 4, 8)),
    "transposed2d": (lambda: nn.ConvTranspose2d(4, 6, 3, groups=2), lambda: nn.BatchNorm2d(6), (3, 4, 5, 5)),
    "transposed3d": (lambda: nn.ConvTranspose3d(4, 6, 2, bias=False), lambda: nn.BatchNorm3d(6), (3, 4, 3, 3, 3)),
    "linear": (lambda: nn.Linear(4, 6), lambda: nn.BatchNorm1d(6), (3, 4)),
    "linear_no_bias": (lambda: nn.Linear(4, 6, bias=False), lambda: nn.BatchNorm1d(6), (3, 4)),
}
NORMS = (aten.batch_norm.default, aten._native_batch_norm_legit_no_training.default)


@pytest.mark.parametrize("pipeline", [REGIONS, (*REGIONS, decompose)], ids=["composite", "core"])
@pytest.mark.parametrize("name", LAYERS)
def test_batch_norm(name: str, pipeline: Sequence[Any]) -> None:
    torch.manual_seed(0)
    layer, norm, shape = LAYERS[name]
    model = nn.Sequential(layer(), randomized(norm()), nn.ReLU()).eval()
    after = folded(Named(model), torch.randn(shape), pipeline, 2e-5)
    assert count(after, *NORMS) == 0
    assert set(after.state_dict) == {"net.0.folded_weight", "net.0.folded_bias", "net.1.num_batches_tracked"}
    assert [i.target for i in after.signature.inputs][:2] == ["net.0.folded_weight", "net.0.folded_bias"]


class Named(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x)


def test_batch_norm_inside_a_region() -> None:
    class Region(Named):
        def forward(self, x: torch.Tensor) -> Any:
            with torch.autocast("cpu", enabled=True, dtype=torch.bfloat16):
                with torch.autocast("cpu", enabled=False):
                    return self.net(x)

    torch.manual_seed(0)
    model = Region(nn.Sequential(nn.Conv2d(3, 4, 3), randomized(nn.BatchNorm2d(4)))).eval()
    after = folded(model, torch.randn(3, 3, 5, 5), REGIONS, 2e-5)
    assert count(after, *NORMS) == 0
    assert "net.0.weight" not in after.state_dict


def test_batch_norm_stays_where_the_layer_serves_others() -> None:
    class Twice(Named):
        def forward(self, x: torch.Tensor) -> Any:
            y = self.net[0](x)  # type: ignore[index]
            return self.net[1](y) + y  # type: ignore[index]

    class Tied(Named):
        def forward(self, x: torch.Tensor) -> Any:
            return self.net(x) + self.net[0](x * 2)  # type: ignore[index]

    for build in (Twice, Tied):
        net = nn.Sequential(nn.Conv2d(3, 4, 3), randomized(nn.BatchNorm2d(4))).eval()
        assert count(folded(build(copy.deepcopy(net)), torch.randn(3, 3, 5, 5), REGIONS, 2e-5), *NORMS) == 1


def test_batch_norm_in_training_stays() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train()
    program = ingot.transform(ingot.capture(model, (torch.randn(3, 3, 5, 5),)), REGIONS)
    assert ingot.transform(program, [constant_fold]).history[-1].changes == 0
