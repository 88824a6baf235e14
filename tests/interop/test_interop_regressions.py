"""Submodules called by themselves, and what torch.export's form, files and native code cannot hold."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import ingot
from ingot.errors import CaptureError, CompileError, ConversionError, OnnxError, UnflattenError, UntraceableError

X = torch.ones(2, 4)


# ---------------------------------------------------------------------- unflatten


class Leaf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)  # type: ignore[no-any-return]


class Middle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Leaf(), Leaf()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._check(x.max().item() < 10, lambda: "too large")
        return self.second(self.first(x)) + 1  # type: ignore[no-any-return]


class Top(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.middle, self.last = Middle(), Leaf()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.middle(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("preserved", [(), ("middle",)])
def test_a_submodule_with_children_is_called_by_itself(preserved: tuple[str, ...]) -> None:
    model = Top()
    made = ingot.capture(model, (X,), preserve_module_call_signature=preserved).unflatten()
    expected = model.last(model.middle(X))
    assert torch.equal(made.last(made.middle(X)), expected)
    assert torch.equal(made.middle.first(X), model.middle.first(X))
    assert torch.equal(copy.deepcopy(made.middle)(X), made.middle(X))
    assert torch.equal(made(X), expected), "the whole model runs as before"
    made.middle = nn.Sequential(made.middle) if preserved else made.middle
    assert torch.equal(made(X), expected), "also inside a module that takes its place"
    with pytest.raises(ingot.errors.AssertionFailed, match="too large"):
        (made.middle[0] if preserved else made.middle)(X * 100)


def test_a_submodule_that_calls_a_module_elsewhere_says_so() -> None:
    class Borrowing(nn.Module):
        def __init__(self, other: nn.Module) -> None:
            super().__init__()
            self.own = nn.Linear(4, 4)
            self.borrowed = [other]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.borrowed[0](self.own(x))  # type: ignore[no-any-return]

    class Owner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.b = Borrowing(self.a)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x))  # type: ignore[no-any-return]

    model = Owner()
    made = ingot.capture(model, (X,)).unflatten()
    assert torch.equal(made(X), model(X))
    with pytest.raises(UnflattenError, match="cannot be called by itself"):
        made.b(X)


# ---------------------------------------------------------------------- torch.export's form


class Unregistered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.held = {"weight": nn.Parameter(torch.full((1, 4), 3.0))}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.held["weight"]


def test_a_parameter_that_is_not_registered() -> None:
    program = ingot.capture(Unregistered(), (X,))
    exported = program.to_exported()
    for run in (
        exported.module(),
        exported.run_decompositions({}).module(),
        ingot.from_exported(exported),
        program.module(),
        program.unflatten(),
        ingot.compile(program),
    ):
        assert torch.equal(run(X), X + 3)


class Taking(nn.Module):
    def __init__(self, returned: Any = None) -> None:
        super().__init__()
        self.returned = returned

    def forward(self, x: torch.Tensor, other: Any = None) -> Any:
        return x + 1, self.returned


@pytest.fixture
def packed() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weight = torch.quantize_per_tensor(torch.ones(3, 4), 0.1, 0, torch.qint8)
    return torch.ops.quantized.linear_prepack(weight, torch.zeros(3))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_objects_that_torch_export_cannot_hold(packed: Any) -> None:
    for model, args in (
        (Taking(), (X, packed)),
        (Taking(), (X, object())),
        (Taking(packed), (X,)),
        (Taking(object()), (X,)),
    ):
        program = ingot.capture(model, args)
        assert torch.equal(program(*args)[0], X + 1)
        with pytest.raises(ConversionError):
            program.to_exported()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_object_as_an_operand_is_refused_at_capture(packed: Any) -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.packed = packed

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.quantized.linear_dynamic(x, self.packed)  # type: ignore[no-any-return]

    class Drawing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand(4, generator=torch.Generator())

    for model in (Packed(), Packed(), Drawing()):  # the second time torch finds the first call in its cache
        with pytest.raises(UntraceableError, match=f"(?s)which a Program cannot hold.*{Path(__file__).name}"):
            ingot.capture(model, (X,))


def test_a_fake_mode_around_the_call(tmp_path: Path) -> None:
    model = Leaf()
    program = ingot.capture(model, (X,), dynamic_shapes={"x": {0: "n"}})
    with FakeTensorMode():
        exported = program.to_exported()
        program.save(tmp_path / "p.ingot")
        loaded = ingot.load(tmp_path / "p.ingot")
        compiled = ingot.compile(program)
        again = ingot.capture(model, (X,))
        ingot.export_onnx(program, tmp_path / "m.onnx")
    for run in (exported.module(), loaded, compiled, again):
        torch.testing.assert_close(run(X), model(X))


def test_weights_without_values(tmp_path: Path) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = ingot.capture(Leaf(), (torch.ones(2, 4),))
    with torch.device("meta"):
        meta = ingot.capture(Leaf(), (torch.ones(2, 4),))
    for program in (fake, meta):
        with pytest.raises(CompileError, match=r"linear\.weight has no values"):
            ingot.compile(program)
        with pytest.raises(OnnxError, match=r"linear\.weight has no values"):
            ingot.export_onnx(program, tmp_path / "m.onnx")


# ---------------------------------------------------------------------- torch.cond


@pytest.mark.parametrize(
    "branch", [lambda x: x, lambda x: x.add_(1), lambda x: (x * 2, x)[1]], ids=["operand", "written", "one of two"]
)
def test_a_branch_that_returns_its_operand(branch: Any) -> None:
    class Returning(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, branch, lambda x: x * 2, (x,))  # type: ignore[no-any-return]

    with pytest.raises(
        CaptureError, match=r"(?s)true branch of torch\.cond returns one of its operands.*clone"
    ) as caught:
        ingot.capture(Returning(), (X,))
    assert "runs in eager" not in str(caught.value)


def test_a_branch_that_returns_a_tensor_from_outside() -> None:
    class Returning(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x + 1
            return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: y, (x,))  # type: ignore[no-any-return]

    with pytest.raises(CaptureError, match=r"false branch of torch\.cond returns"):
        ingot.capture(Returning(), (X,))


# ---------------------------------------------------------------------- names


def test_an_argument_of_an_exported_program_is_named_like_a_builtin() -> None:
    class Mean(nn.Module):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return nn.functional.adaptive_avg_pool2d(input, 1).std()

    x = torch.randn(1, 3, 8, 8)
    program = ingot.from_exported(torch.export.export(Mean(), (x,)))
    core = ingot.transform(program, ingot.passes.DEFAULT_PIPELINE)
    assert [spec.name for spec in core.signature.user_inputs] == ["input"]
    torch.testing.assert_close(ingot.compile(program, check="numerics")(x), Mean()(x))
