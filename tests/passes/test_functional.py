"""functionalize and decompose: no writes, no composite operators, the same numbers, the user's lines kept."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ingot
from ingot import passes
from ingot import torch_internals as internals
from ingot.errors import CaptureError, PassError
from ingot.ir import metadata
from ingot.ir.outlining import graph_modules
from ingot.ir.signature import OutputKind
from ingot.passes.decompositions import aten as decompositions
from tests.support.zoo import entry

aten = torch.ops.aten
TO_FUNCTIONAL = passes.DEFAULT_PIPELINE[: passes.DEFAULT_PIPELINE.index(passes.functionalize) + 1]
KEEP = ["linear", "layer_norm", "scaled_dot_product_attention", "gelu", "softmax"]


class Writes(nn.Module):
    """In-place writes to buffers, arguments and views, with everything that sees them afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4, eps=1e-3, momentum=0.03)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> Any:
        y = self.norm(self.fc(x))
        part = y[:, 1:3]
        part.mul_(2)
        self.seen[0] += 1
        x.add_(self.seen.sum())
        flat = y.view(-1).relu_()
        return {"flat": flat, "part": part, "none": None}


class UnderAutocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.fc(x)
            y.relu_()
            z = self.norm(y)
        return y, z + x


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        def grow(x: torch.Tensor) -> torch.Tensor:
            y = self.fc(x)
            y.add_(1)
            return y

        y = torch.cond(x.sum() > 0, grow, lambda x: x.cos(), (x,))
        return torch._higher_order_ops.scan(lambda c, v: (c + v, c * v), torch.zeros(4), y)[1]


MODELS: list[Callable[[], nn.Module]] = [Writes, UnderAutocast, Branches]


def captured(build: Callable[[], nn.Module]) -> tuple[nn.Module, ingot.Program]:
    torch.manual_seed(0)
    model = build()
    program = ingot.capture(copy.deepcopy(model), (torch.randn(3, 4),), dynamic_shapes={"x": {0: "n"}})
    return model, program


def agree(model: nn.Module, program: ingot.Program, exact: bool) -> None:
    """Three calls in a row, at three sizes: results, arguments and state."""
    for size in (3, 2, 7):
        x = torch.randn(size, 4)
        given = [x.clone(), x.clone()]
        with torch.no_grad():  # eager scan cannot train
            expected = torch.utils._pytree.tree_leaves(model(given[0]))
        got = torch.utils._pytree.tree_leaves(program(given[1]))
        tolerance = {"rtol": 0, "atol": 0} if exact else {}
        torch.testing.assert_close(got, expected, **tolerance)
        torch.testing.assert_close(given[1], given[0], **tolerance)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(program.state_dict[name].detach(), tensor.detach())


@pytest.mark.parametrize("build", MODELS)
def test_functionalize(build: Callable[[], nn.Module]) -> None:
    model, program = captured(build)
    functional = ingot.transform(program, [*TO_FUNCTIONAL], check="numerics")
    assert functional.dialect.name == "FUNCTIONAL"
    nodes = [n for m in graph_modules(functional.graph_module) for n in m.graph.nodes]
    assert not any(
        n.op == "call_function" and getattr(n.target, "_schema", None) and n.target._schema.is_mutable for n in nodes
    )
    agree(model, functional, exact=True)
    assert ingot.transform(functional, [passes.functionalize]).history[-1].changes == 0


def test_what_was_written_is_an_output() -> None:
    _, program = captured(Writes)
    functional = ingot.transform(program, [passes.functionalize])
    written = {(o.kind, o.target) for o in functional.signature.outputs if o.kind is not OutputKind.RESULT}
    buffers = ("seen", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked")
    assert written == {
        *((OutputKind.BUFFER_MUTATION, name) for name in buffers),
        (OutputKind.ARGUMENT_MUTATION, "x"),
        (OutputKind.LITERAL, None),
    }


@pytest.mark.parametrize("build", MODELS)
@pytest.mark.parametrize("keep", [[], KEEP], ids=["all", "some kept whole"])
def test_decompose(build: Callable[[], nn.Module], keep: list[str]) -> None:
    model, program = captured(build)
    options = (passes.decompose, {"keep": keep})
    core = ingot.transform(program, [*TO_FUNCTIONAL, options], check="numerics")
    core.verify()
    nodes = [n for m in graph_modules(core.graph_module) for n in m.graph.nodes]
    assert not any(n.target is torch.ops.higher_order.wrap_with_autocast for n in nodes)
    assert any(n.target is aten.linear.default for n in nodes) == bool(keep)
    agree(model, core, exact=False)
    assert ingot.transform(core, [options]).history[-1].changes == 0


class NormsAcross(nn.Module):
    """A batch norm of something permuted, and a view of what it gives in the other order."""

    def __init__(self, features: int, order: tuple[int, ...]) -> None:
        super().__init__()
        self.norm = (nn.BatchNorm1d if len(order) < 4 else nn.BatchNorm2d)(features)
        self.order = order

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.permute(self.order)).permute(self.order).flatten(1)


@pytest.mark.parametrize("keep", [[], ["batch_norm"]], ids=["all", "kept whole"])
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("order", [(0, 2, 1), (0, 1, 3, 2), (0, 3, 2, 1)])
def test_a_batch_norm_of_something_permuted(order: tuple[int, ...], training: bool, keep: list[str]) -> None:
    x = torch.randn(3, 4, 5, 6)[(...,) + (0,) * (4 - len(order))]
    model = NormsAcross(x.shape[order[1]], order).train(training)
    program = ingot.capture(copy.deepcopy(model), (x,), dynamic_shapes={"x": {0: "n"}})
    core = ingot.transform(program, [*TO_FUNCTIONAL, (passes.decompose, {"keep": keep})], check="numerics")
    torch.testing.assert_close(core(x), model(x))
    torch.testing.assert_close(core.state_dict["norm.running_mean"], model.state_dict()["norm.running_mean"])


@pytest.mark.parametrize("x", [torch.randn(2, 4, 5), torch.randn(2, 4, 5, 6).to(memory_format=torch.channels_last)])
def test_a_batch_norm_copies_nothing_without_need(x: torch.Tensor) -> None:
    model = (nn.BatchNorm1d if x.dim() < 4 else nn.BatchNorm2d)(4).eval()
    core = ingot.transform(ingot.capture(model, (x,)), [*TO_FUNCTIONAL, passes.decompose], check="numerics")
    assert not any(n.target is aten.clone.default for n in core.graph.nodes)


def test_origins_are_kept() -> None:
    _, program = captured(Writes)
    core = ingot.transform(program, [*TO_FUNCTIONAL, passes.decompose])
    text = str(core)
    assert "part.mul_(2)" in text
    assert "norm  (BatchNorm1d)" in text


def test_a_pass_that_needs_a_functional_program_says_so() -> None:
    _, program = captured(Writes)
    with pytest.raises(PassError, match="takes a FUNCTIONAL program"):
        ingot.transform(program, [passes.decompose])
    with pytest.raises(PassError, match="is not an operator"):
        ingot.transform(program, [passes.functionalize, (passes.decompose, {"keep": ["linnear"]})])


@pytest.mark.parametrize("name", ["bert", "gpt2", "resnet", "mixtral"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_default_pipeline(name: str, dynamic: bool) -> None:
    item = entry(name)
    kwargs = item.inputs(item.sizes)
    shapes = {k: dict(v) for k, v in (item.dynamic or {}).items() if k in kwargs} if dynamic else None
    program = ingot.capture(item.build(), (), kwargs, dynamic_shapes=shapes)
    core = ingot.transform(program, passes.DEFAULT_PIPELINE, check="numerics")
    assert core.dialect.name == "CORE"
    again = ingot.transform(core, [p for p in passes.DEFAULT_PIPELINE if p not in (passes.tracepoints,)])
    assert all(step.changes == 0 for step in again.history[len(core.history) :])


def test_default_pipeline_in_a_file(tmp_path: Any) -> None:
    model, program = captured(Writes)
    core = ingot.transform(program, [*TO_FUNCTIONAL, (passes.decompose, {"keep": ["linear"]})])
    core.save(tmp_path / "core.ingot")
    loaded = ingot.load(tmp_path / "core.ingot")
    loaded.verify()
    assert [step.name for step in loaded.history] == [step.name for step in core.history]
    agree(model, loaded, exact=False)


# ---------------------------------------------------------------------- decompositions that write through views


class Circular(nn.Module):
    def __init__(self, pad: list[int]) -> None:
        super().__init__()
        self.pad = pad

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, self.pad, mode="circular")


@pytest.mark.parametrize("pad", [[2, 1], [0, 3], [1, 0, 2, 2], [-1, 2], [-2, -1, 0, 1]])
@pytest.mark.parametrize("dynamic", [False, True])
def test_circular_padding_is_decomposed_without_writes(pad: list[int], dynamic: bool) -> None:
    model, x = Circular(pad), torch.rand(2, 3, 6, 7)
    x = x if len(pad) > 2 else x[..., 0]
    program = ingot.capture(model, (x,), dynamic_shapes=({0: "n", 2: "m"},) if dynamic else None)
    program = ingot.transform(program, passes.DEFAULT_PIPELINE, check="numerics")
    assert torch.equal(program(x), model(x))
    if dynamic:
        longer = torch.cat([x, x + 1], 2)
        assert torch.equal(program(longer), model(longer))


def test_circular_padding_goes_around_once() -> None:
    """What a crop leaves is what goes around; torch compares the padding with the size before it."""
    program = ingot.capture(Circular([-1, 2]), (torch.rand(2, 3, 6),), dynamic_shapes=({2: "m"},))
    assert "m in [3, ∞]" in str(program)
    with pytest.raises(CaptureError, match="goes around twice"):
        ingot.capture(Circular([-1, 2]), (torch.rand(2, 3, 2),))


def test_symbols_stay_bound_by_their_nodes() -> None:
    def read_twice(x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros(8, dtype=torch.int64)
        y[0] = x[0]
        first, second = x[5].item(), x[5].item()
        torch._check(first * 2 + second > 3)
        return y + first

    program = ingot.capture(read_twice, (torch.arange(8),))
    program = ingot.transform(program, [passes.functionalize, passes.cse])
    items = [node for node in program.graph.nodes if node.target is torch.ops.aten.item.default]
    bound = [set(metadata.bindings_of(node)) for node in items]
    assert bound == [{metadata.value_of(node).node.expr} for node in items] and len(bound) == 2


def test_a_decomposition_that_writes_through_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own rule fills an empty tensor slice by slice."""
    monkeypatch.delitem(decompositions._OWN._rules, torch.ops.aten._pad_circular.default)
    x = torch.rand(2, 3, 4)
    program = ingot.transform(ingot.capture(Circular([1, 1]), (x,)), [passes.functionalize])
    assert torch.equal(ingot.transform(program, [passes.decompose])(x), Circular([1, 1])(x))


class CopiedForConvolution(nn.Module):
    """Copies that are views where a dim is 1: a convolution of eager's strides rounds otherwise than one of others."""

    def __init__(self, copies: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.copies = copies
        self.conv = nn.Conv1d(20, 24, 5, stride=2, padding=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(self.copies(x.transpose(1, 2)))
        y[:, :3] += 1
        return y


def strides_seen(program: ingot.Program, x: torch.Tensor) -> tuple[tuple[int, ...], torch.Tensor]:
    """The strides that the convolution of a program is given, and what the program returns."""
    seen: list[tuple[int, ...]] = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(function, "__name__", "").startswith("conv1d"):
                seen.append(args[0].stride())
            return function(*args, **(kwargs or {}))

    with Watch(), torch.no_grad():
        result = program(x)
    (found,) = seen
    return found, result


@pytest.mark.parametrize(
    "copies",
    [
        pytest.param(lambda x: x.contiguous(), id="contiguous"),
        pytest.param(lambda x: x.reshape(x.shape[0], 20, -1), id="reshape"),
        pytest.param(lambda x: x.reshape_as(x), id="reshape_as"),
        pytest.param(lambda x: x.flatten(0, 1).view(x.shape), id="flatten"),
    ],
)
def test_a_copy_that_a_size_of_one_makes_needless_keeps_its_strides(
    copies: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    torch.manual_seed(0)
    model = CopiedForConvolution(copies).eval()
    program = ingot.capture(model, (torch.randn(3, 9, 20),), dynamic_shapes={"x": {0: "batch", 1: "frames"}})
    functional = ingot.transform(program, [passes.functionalize], check="numerics")
    ingot.transform(program, passes.DEFAULT_PIPELINE, check="numerics")
    for shape in ((3, 9, 20), (1, 1, 20), (4, 1, 20), (1, 6, 20)):
        x = torch.randn(shape)
        strides, expected = strides_seen(program, x)
        found, got = strides_seen(functional, x)
        assert found == strides
        assert torch.equal(got, expected) and torch.equal(got, model(x))


def test_as_strided_of_a_copy_reads_the_copy() -> None:
    """At size 1 what is copied elsewhere lies in the argument's memory, where a view of it begins at another place."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x[1:].transpose(1, 2).contiguous()
            y[:, :1] *= 2.0
            return y + y[:, 1:].as_strided((2,), (1,), 1).sum()

    program = ingot.capture(Model(), (torch.randn(4, 3, 5),), dynamic_shapes={"x": {0: "batch", 1: "frames"}})
    functional = ingot.transform(program, [passes.functionalize], check=None)
    assert not any(node.target is aten.contiguous.default for node in functional.graph.nodes)
    for shape in ((4, 3, 5), (2, 3, 5), (5, 2, 5)):
        x = torch.randn(shape)
        torch.testing.assert_close(functional(x), Model()(x.clone()))


class PartRead(nn.Module):
    """Writes to some columns, and adds them up in the order in which they lie in memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = x[:, 1:3]
        part.add_(x.sum() * 0.1)
        return x + part.sum()


def test_view_that_was_written_keeps_its_strides() -> None:
    """Otherwise a sum adds in another order than in eager, and has other bits."""
    torch.manual_seed(0)
    program = ingot.capture(PartRead(), (torch.randn(3, 4),))
    functional = ingot.transform(program, [passes.functionalize], check="numerics")
    calls = [node for node in functional.graph.nodes if node.op == "call_function"]
    scattered = next(node for node in calls if node.target is aten.slice_scatter.default)
    again = next(node for node in calls if node.target is aten.slice.Tensor and node.args[0] is scattered)
    assert [user.target for user in again.users] == [aten.sum.default]
    for _ in range(20):
        x = torch.randn(3, 4)
        assert torch.equal(functional(x.clone()), PartRead()(x.clone()))


@pytest.mark.parametrize("exponent", [2, 0.5, torch.tensor([1.0, 2, 3])])
def test_a_power_written_in_place(exponent: Any) -> None:
    """pow_.Scalar and pow.Scalar are different operators: the latter raises a number to the power of a tensor."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        return (x + 4).pow_(exponent).mul_(2)

    x = torch.tensor([1.0, 2, 3])
    program = ingot.capture(forward, (x,))
    torch.testing.assert_close(ingot.compile(program)(x), forward(x))


def test_every_functional_form_takes_what_its_operator_takes() -> None:
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            operator = getattr(packet, overload)
            found = internals.functional_form(operator)
            if found is not None:
                given, taken = ([str(a.type) for a in op._schema.arguments] for op in (operator, found))
                assert given == taken, operator
