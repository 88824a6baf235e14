"""Autocast and grad-mode regions: what is cut, what is inlined, what disappears, and that numbers stay bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot import passes
from ingot.errors import PassError
from ingot.ir.outlining import graph_modules

hop = torch.ops.higher_order
BF16, F16 = torch.bfloat16, torch.float16


def cast(dtype: torch.dtype = BF16, **kwargs: Any) -> Any:
    return torch.autocast("cpu", dtype=dtype, **kwargs)


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))


class OneRegion(Base):
    def forward(self, x: torch.Tensor) -> Any:
        y = self.a(x)
        with cast():
            z = self.b(y).relu()
        return {"y": y, "z": z, "none": None, "sum": y + z}


class NestedRegions(Base):
    def forward(self, x: torch.Tensor) -> Any:
        with cast():
            y = self.a(x)
            with cast(enabled=False):
                z = self.b(x) + y.float()
            with cast(F16):
                w = self.b(z)
        return y, z, w


class Redundant(Base):
    def forward(self, x: torch.Tensor) -> Any:
        with cast(enabled=False):
            y = self.a(x)
        with cast():
            z = self.a(y)
            with cast():
                z = self.b(z)
        return z


class OnlyAnEffect(Base):
    def forward(self, x: torch.Tensor) -> Any:
        with cast():
            self.count.add_(1)
        return x + self.count


class Nothing(Base):
    def forward(self, x: torch.Tensor) -> Any:
        with cast():
            self.a(x)
        with torch.no_grad():
            self.b(x)
        return x * 2


class Siblings(Base):
    def forward(self, x: torch.Tensor) -> Any:
        with cast():
            y = self.a(x)
        with cast(F16):
            y = self.b(y)
        with cast():
            y = self.a(y)
        return y


class GradModes(Base):
    def forward(self, x: torch.Tensor) -> Any:
        y = self.a(x)
        with torch.no_grad():
            z = self.b(y)
            with torch.enable_grad():
                w = self.a(z)
            z = z + w.detach()
        return y + z


class Mixed(Base):
    def forward(self, x: torch.Tensor) -> Any:
        with torch.no_grad(), cast():
            y = self.a(x)
        with cast():
            with torch.no_grad():
                z = self.b(y)
            w = self.a(z)
        return y, z, w


class InControlFlow(Base):
    def forward(self, x: torch.Tensor) -> Any:
        def yes(x: torch.Tensor) -> torch.Tensor:
            with cast(), torch.no_grad():
                return self.a(x).float()

        with cast():
            y = torch.cond(x.sum() > 0, yes, lambda x: self.b(x).float(), (x,))
        return y


CASES: dict[type[Base], dict[Any, int]] = {
    OneRegion: {hop.wrap_with_autocast: 1},
    NestedRegions: {hop.wrap_with_autocast: 3},
    Redundant: {hop.wrap_with_autocast: 1},
    OnlyAnEffect: {hop.wrap_with_autocast: 1},
    Nothing: {hop.wrap_with_autocast: 0, hop.wrap_with_set_grad_enabled: 0},
    Siblings: {hop.wrap_with_autocast: 3},
    GradModes: {hop.wrap_with_set_grad_enabled: 2},
    Mixed: {hop.wrap_with_autocast: 2, hop.wrap_with_set_grad_enabled: 2},
    InControlFlow: {hop.wrap_with_autocast: 1, hop.wrap_with_set_grad_enabled: 1},
}


def count(program: ingot.Program, target: Any) -> int:
    return sum(n.target is target for m in graph_modules(program.graph_module) for n in m.graph.nodes)


@pytest.mark.parametrize("build", CASES, ids=lambda build: build.__name__)
def test_regions(build: Callable[[], Base]) -> None:
    torch.manual_seed(0)
    model = build()
    program = ingot.capture(copy.deepcopy(model), (torch.randn(3, 4),), dynamic_shapes={"x": {0: "n"}})
    text = str(program)
    cut = ingot.transform(program, [passes.autocast, passes.grad_mode], check="numerics")
    assert str(program) == text, "the caller's program is as it was"
    for target, expected in CASES[build].items():
        assert count(cut, target) == expected, str(target)
    cut.verify()
    for size in (3, 2, 5):
        x = torch.randn(size, 4)
        expected_out, out = model(x), cut(x)
        leaves, got = torch.utils._pytree.tree_leaves(expected_out), torch.utils._pytree.tree_leaves(out)
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(leaves, got, strict=True))
    again = ingot.transform(cut, [passes.autocast, passes.grad_mode])
    assert str(again) == str(cut)
    assert [step.changes for step in again.history[-2:]] == [0, 0]


@pytest.mark.parametrize("build", CASES, ids=lambda build: build.__name__)
def test_regions_survive_a_file_and_unflatten(build: Callable[[], Base], tmp_path: Any) -> None:
    torch.manual_seed(0)
    model, x = build(), torch.randn(3, 4)
    cut = ingot.transform(ingot.capture(copy.deepcopy(model), (x,)), passes.DEFAULT_PIPELINE)
    cut.save(tmp_path / "m.ingot")
    expected = torch.utils._pytree.tree_leaves(model(x))
    loaded = torch.utils._pytree.tree_leaves(ingot.load(tmp_path / "m.ingot")(x))
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(expected, loaded, strict=True))
    model, rebuilt = copy.deepcopy(model), cut.unflatten()
    expected, got = (torch.utils._pytree.tree_leaves(m(x)) for m in (model, rebuilt))
    if build is not OnlyAnEffect:  # its state has moved on
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(expected, got, strict=True))


def test_gradients_stop_at_a_no_grad_region_and_nowhere_else() -> None:
    torch.manual_seed(0)
    model = GradModes()
    cut = ingot.transform(ingot.capture(model, (torch.randn(3, 4),)), passes.DEFAULT_PIPELINE)
    x = torch.randn(3, 4)
    model(x).sum().backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = None
    cut(x).sum().backward()
    for name, p in model.named_parameters():
        assert (p.grad is None) == (expected[name] is None), name
        assert p.grad is None or torch.equal(p.grad, expected[name]), name


def test_metadata_is_kept_inside() -> None:
    program = ingot.capture(OneRegion(), (torch.randn(3, 4),))
    cut = ingot.transform(program, [passes.autocast])
    assert "z = self.b(y).relu()" in str(cut)
    assert "b: Linear" in str(cut)


def test_a_switch_that_closes_another_is_refused() -> None:
    program = ingot.capture(NestedRegions(), (torch.randn(3, 4),))
    exits = [n for n in program.graph.nodes if n.name.startswith("exit_autocast")]
    exits[0].args, exits[-1].args = exits[-1].args, exits[0].args
    with pytest.raises(PassError, match="nested like with statements"):
        ingot.transform(program, [passes.autocast])


def test_an_exception_inside_autocast_reaches_the_user() -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with cast():
                raise KeyError("mine")

    with pytest.raises(ingot.errors.EagerError) as caught:
        ingot.capture(Fails(), (torch.ones(2),))
    assert isinstance(caught.value.__cause__, KeyError)
    assert not torch.is_autocast_enabled("cpu")
