"""What cannot be captured or called: a named error that says what, where, why and what to do, and no trace left."""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops.while_loop import while_loop

import ingot
from ingot.errors import (
    CaptureError,
    DataDependentError,
    EagerError,
    InputError,
    LiteralError,
    StateDictError,
    StateError,
    StructureError,
    UntraceableError,
)
from tests.frontend.checks import assert_same, unchanged


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (2, 4)), generator=torch.Generator().manual_seed(0))


@torch.library.custom_op("ingot_tests::faceless", mutates_args=())
def faceless(a: torch.Tensor) -> torch.Tensor:
    return a.clone()


class Model(nn.Module):
    """One of every kind of state; the subclasses do one thing wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.register_buffer("count", torch.zeros(4))
        self.plain = torch.ones(4)
        self.kept: list[Any] = [1]

    def forward(self, a: torch.Tensor) -> Any:
        raise NotImplementedError


class BranchOnData(Model):
    def forward(self, a: torch.Tensor) -> Any:
        a = self.fc(a)
        if a.sum() > 0:  # here
            return a
        return -a


class LoopOnData(Model):
    def forward(self, a: torch.Tensor) -> Any:
        for _ in range(int(a.abs().sum())):  # here
            a = a + 1
        return a


class ToNumpy(Model):
    def forward(self, a: torch.Tensor) -> Any:
        return torch.from_numpy(a.detach().numpy() * 2)  # here


class NumpyFunction(Model):
    def forward(self, a: torch.Tensor) -> Any:
        return a + float(np.asarray(a).max())  # here


class ToList(Model):
    def forward(self, a: torch.Tensor) -> Any:
        return [a * v for v in a[0].tolist() if v > 0]  # here


class DataPointer(Model):
    def forward(self, a: torch.Tensor) -> Any:
        ctypes.memset(a.data_ptr(), 0, 4)  # here
        return a


class FailsInEager(Model):
    def forward(self, a: torch.Tensor) -> Any:
        return self.fc(a) @ torch.ones(3, 3)  # here


class RaisesItself(Model):
    def forward(self, a: torch.Tensor) -> Any:
        raise ValueError("mine")  # here


class StoresTensor(Model):
    def forward(self, a: torch.Tensor) -> Any:
        self.last = a * 2  # here
        return self.last


class StoresInList(Model):
    def forward(self, a: torch.Tensor) -> Any:
        self.kept.append(a * 2)  # here
        return a


class ReplacesPlain(Model):
    def forward(self, a: torch.Tensor) -> Any:
        b = a + self.plain
        self.plain = self.plain + 1  # here
        return b


class ReplacesParameter(Model):
    def forward(self, a: torch.Tensor) -> Any:
        self.fc[0].weight = nn.Parameter(self.fc[0].weight * 2)  # here
        return self.fc(a)


class ReshapesBuffer(Model):
    def forward(self, a: torch.Tensor) -> Any:
        self.count = torch.cat([self.count, self.count])  # here
        return a


class RemovesBuffer(Model):
    def forward(self, a: torch.Tensor) -> Any:
        self.count = None  # here
        return a


class AsksWrittenState(Model):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.zeros(()), persistent=False)

    def forward(self, a: torch.Tensor) -> Any:
        if self.step > 2:  # here
            a = a * 2
        self.step += 1
        return a


class CondStructures(Model):
    def forward(self, a: torch.Tensor) -> Any:
        return torch.cond(a.sum() > 0, lambda b: (b * 1, b * 2), lambda b: [b * 3], (a,))  # here


class CondLiterals(Model):
    def forward(self, a: torch.Tensor) -> Any:
        return torch.cond(a.sum() > 0, lambda b: (b * 1, "yes"), lambda b: (b * 3, "no"), (a,))  # here


class CondShapes(Model):
    def forward(self, a: torch.Tensor) -> Any:
        return torch.cond(a.sum() > 0, lambda b: b.sum(0), lambda b: b * 3, (a,))  # here


class LoopShapes(Model):
    def forward(self, a: torch.Tensor) -> Any:
        return while_loop(lambda b: b.sum() > 0, lambda b: (torch.cat([b, b]),), (a,))  # here


class NoFakeKernel(Model):
    def forward(self, a: torch.Tensor) -> Any:
        return faceless(a)  # here


def line_of(cls: type) -> str:
    lines, start = inspect.getsourcelines(cls)
    return f"{__file__}:{start + next(i for i, line in enumerate(lines) if '# here' in line)}"


@pytest.mark.parametrize(
    ("cls", "error"),
    [
        (BranchOnData, DataDependentError),
        (LoopOnData, DataDependentError),
        (ToNumpy, UntraceableError),
        (NumpyFunction, UntraceableError),
        (ToList, DataDependentError),
        (DataPointer, UntraceableError),
        (FailsInEager, EagerError),
        (RaisesItself, EagerError),
        (StoresTensor, StateError),
        (StoresInList, StateError),
        (ReplacesPlain, StateError),
        (ReplacesParameter, StateError),
        (ReshapesBuffer, StateError),
        (RemovesBuffer, StateError),
        (AsksWrittenState, DataDependentError),
        (CondStructures, CaptureError),
        (CondLiterals, CaptureError),
        (CondShapes, CaptureError),
        (LoopShapes, CaptureError),
        (NoFakeKernel, UntraceableError),
    ],
)
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_models_that_cannot_be_captured(cls: type[Model], error: type[CaptureError], train: bool) -> None:
    torch.manual_seed(0)
    model = cls().train(train)
    state = torch.random.get_rng_state()
    with unchanged(model), pytest.raises(CaptureError) as caught:
        ingot.capture(model, (x(),))
    assert type(caught.value) is error, caught.value
    text = str(caught.value)
    what, *rest = text.splitlines()
    assert what[0].isupper() or what.startswith("forward"), text
    assert any(line.startswith(f"  where: {line_of(cls)}: ") for line in rest), text
    assert any(line.startswith("  why: ") for line in rest), text
    assert any(line.startswith("  what to do: ") for line in rest), text
    assert torch.equal(torch.random.get_rng_state(), state), "the random state moved"


def test_the_users_own_exception_is_the_cause() -> None:
    with pytest.raises(EagerError, match="ValueError: mine") as caught:
        ingot.capture(RaisesItself(), (x(),))
    assert type(caught.value.__cause__) is ValueError


@pytest.mark.parametrize("exception", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_leaves_nothing_behind(exception: type[BaseException]) -> None:
    class Interrupted(Model):
        def forward(self, a: torch.Tensor) -> Any:
            self.count.add_(1)
            self.count = self.count * 2
            self.extra = a
            with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
                self.fc(a)
                raise exception

    model = Interrupted()
    with unchanged(model), pytest.raises(exception):
        ingot.capture(model, (x(),), preserve_module_call_signature=["fc"])


def test_a_failure_inside_a_branch_leaves_nothing_behind() -> None:
    class Fails(Model):
        def forward(self, a: torch.Tensor) -> Any:
            return torch.cond(a.sum() > 0, lambda b: self.fc(b), lambda b: b @ torch.ones(3, 3), (a,))

    model = Fails().eval()
    with unchanged(model), pytest.raises(CaptureError):
        ingot.capture(model, (x(),))
    with unchanged(model):
        ingot.capture(model.fc, (x(),))


def test_capture_works_after_every_failure() -> None:
    for cls in (BranchOnData, ToNumpy, FailsInEager, StoresTensor, NoFakeKernel):
        with pytest.raises(CaptureError):
            ingot.capture(cls(), (x(),))
    model = nn.Linear(4, 4)
    assert_same(ingot.capture(model, (x(),))(x()), model(x()))


# ---------------------------------------------------------------------- arguments of capture


@pytest.mark.parametrize(
    ("args", "kwargs", "options", "says"),
    [
        ((), {}, {}, "cannot be called with these arguments: missing a required argument: 'a'"),
        ((x(), x(), x()), {}, {}, "too many positional arguments"),
        ((x(),), {"z": x()}, {}, "unexpected keyword argument 'z'"),
        (x(), {}, {}, "args is a tensor.\n.*as a tuple"),
        ((x(),), {}, {"concrete_args": {"z": 1}}, "concrete_args names 'z', which is not an argument"),
        ((x(), 2.0), {}, {"concrete_args": {"b": 3.0}}, "concrete_args fixes b to 3.0, but the example has 2.0"),
    ],
)
def test_arguments_that_do_not_fit(args: Any, kwargs: Any, options: Any, says: str) -> None:
    def f(a: torch.Tensor, b: float = 1.0) -> torch.Tensor:
        return a * b

    with unchanged(None), pytest.raises((CaptureError, LiteralError), match=says):
        ingot.capture(f, args, kwargs, **options)


def test_argument_is_not_a_model() -> None:
    with pytest.raises(CaptureError, match="capture takes a module or a function, not int"):
        ingot.capture(3, (x(),))  # type: ignore[arg-type]


def test_an_argument_that_holds_itself() -> None:
    cycle: list[Any] = [x()]
    cycle.append(cycle)
    with pytest.raises(UntraceableError, match="A list holds itself"):
        ingot.capture(lambda a: a[0], (cycle,))


def test_an_unknown_preserved_module() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with unchanged(model), pytest.raises(CaptureError, match="names 'O', which is not a submodule of Sequential"):
        ingot.capture(model, (x(),), preserve_module_call_signature=["O"])


def test_a_preserved_module_that_is_not_called() -> None:
    class Skips(Model):
        def forward(self, a: torch.Tensor) -> Any:
            return a + 1

    model = Skips()
    with unchanged(model), pytest.raises(CaptureError, match=r"preserved module 'fc\.0' is never called"):
        ingot.capture(model, (x(),), preserve_module_call_signature=["fc.0"])


# ---------------------------------------------------------------------- calls


def add(a: torch.Tensor, b: dict[str, torch.Tensor], scale: float = 2.0) -> torch.Tensor:
    return (a + b["x"]) * scale


CAPTURED: list[ingot.Program] = []


def program() -> ingot.Program:
    if not CAPTURED:
        CAPTURED.append(ingot.capture(add, (x(), {"x": x()}), {"scale": 2.0}))
    return CAPTURED[0]


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "says"),
    [
        ((), {}, StructureError, "takes 2 positional arguments .a, b., but got 0"),
        ((x(), {"x": x()}, 2.0, x()), {}, StructureError, "takes 2 positional arguments"),
        ((x(), {"x": x()}), {}, StructureError, "missing scale"),
        ((x(), {"x": x()}), {"scale": 2.0, "z": 1}, StructureError, "unexpected z"),
        ((x(), {"y": x()}), {"scale": 2.0}, StructureError, "missing x; unexpected y"),
        ((x(), [x()]), {"scale": 2.0}, StructureError, "is a list of 1, but the program was captured with a dict of 1"),
        ((x(), x()), {"scale": 2.0}, StructureError, "is a single value, but the program was captured with a dict"),
        ((x(), {"x": x()}), {"scale": 3.0}, LiteralError, "scale is 3.0, but the program was captured with 2.0"),
        ((x(), {"x": x()}), {"scale": 2}, LiteralError, "scale is 2, but"),
        ((x(), {"x": x()}), {"scale": x()}, LiteralError, "scale is a tensor|scale is tensor|scale is another"),
        ((x(), {"x": 1.0}), {"scale": 2.0}, InputError, r"b\.x is 1\.0, but the program was captured with a tensor"),
        ((x().double(), {"x": x()}), {"scale": 2.0}, InputError, "a is float64, but the program .* float32"),
        ((x(2, 4, 1), {"x": x()}), {"scale": 2.0}, InputError, "a has 3 dims, but the program was captured with 2"),
        ((x(2, 4), {"x": x(2, 5)}), {"scale": 2.0}, InputError, r"dim 1 of b\.x is 5, but .* captured with 4"),
    ],
)
def test_calls_that_do_not_fit(args: Any, kwargs: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        program()(*args, **kwargs)
    assert type(caught.value) is error
    assert_same(program()(x(), {"x": x()}, scale=2.0), add(x(), {"x": x()}))


def test_a_device_that_differs() -> None:
    with pytest.raises(InputError, match="a is on meta, but the program was captured with a tensor on cpu"):
        program()(x().to("meta"), {"x": x()}, scale=2.0)


def test_state_dicts_that_do_not_fit() -> None:
    model = nn.Linear(4, 4)
    captured = ingot.capture(model, (x(),))
    before = {key: value.clone() for key, value in captured.state_dict.items()}
    bad: list[tuple[dict[str, Any], str]] = [
        ({"weight": torch.zeros(4, 4)}, "missing bias"),
        ({"weight": torch.zeros(4, 4), "bias": torch.zeros(4), "more": torch.zeros(1)}, "unexpected more"),
        ({"weight": torch.zeros(4, 4), "bias": torch.zeros(5)}, r"bias is \(5,\) instead of \(4,\)"),
    ]
    for state, says in bad:
        with pytest.raises(StateDictError, match=says):
            captured.load_state_dict(state)
        assert all(torch.equal(value, before[key]) for key, value in captured.state_dict.items())
    captured.load_state_dict({"weight": torch.ones(4, 4), "bias": torch.ones(4)})
    assert_same(captured(x()).detach(), F.linear(x(), torch.ones(4, 4), torch.ones(4)))


def test_messages_follow_the_house_form() -> None:
    call: Callable[[], Any] = lambda: program()(x(), {"x": x()}, scale=3.0)  # noqa: E731
    with pytest.raises(LiteralError) as caught:
        call()
    assert str(caught.value).splitlines() == [
        "scale is 3.0, but the program was captured with 2.0.",
        "  why: values that are not tensors are constants of a program",
        "  what to do: capture the model again with scale=3.0",
    ]


def test_a_lazy_layer_that_was_never_called() -> None:
    with pytest.raises(StateError, match=r"0\.weight has no shape yet.\n  why: LazyLinear is lazy.*\n  what to do: "):
        ingot.capture(nn.Sequential(nn.LazyLinear(4)), (torch.ones(2, 3),))
