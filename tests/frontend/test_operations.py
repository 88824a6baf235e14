"""Hand-written models that each hold one difficulty of what forward does: control flow, modes, randomness, calls."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import ingot
from ingot import torch_internals as internals
from tests.frontend.checks import assert_same, check, check_calls


def x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*(shape or (2, 4)), generator=torch.Generator().manual_seed(0), dtype=dtype)


def targets(program: ingot.Program) -> list[Any]:
    """What the root graph calls, in order."""
    return [node.target for node in program.graph.nodes if node.op == "call_function"]


# ---------------------------------------------------------------------- control flow


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("shift", x(4))

    def forward(self, a: torch.Tensor) -> Any:
        def inner(b: torch.Tensor) -> torch.Tensor:
            return torch.cond(b.sum() > 1, lambda c: self.large(c), lambda c: c - self.shift, (b,))

        def other(b: torch.Tensor) -> dict[str, Any]:
            return {"y": self.small(b), "z": (b * 2, [b + 1])}

        return torch.cond(a.mean() > 0, lambda b: {"y": inner(b), "z": (b * 1, [b * 3])}, other, (a,))


def test_cond_nested_and_closing_over_the_module() -> None:
    calls = [((value,), {}) for value in (x(), x().abs(), -x().abs(), x().abs() * 0.01)]
    program = check_calls(Branches(), calls)
    assert torch.ops.higher_order.cond in targets(program)


def test_cond_closing_over_a_local_and_an_argument() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        local = a * 2
        return torch.cond(a.sum() > 0, lambda: local + b, lambda: b - local, ())

    check_calls(f, [((x(), x()), {}), ((x().abs(), x()), {}), ((-x().abs(), x()), {})])


def test_cond_gradients() -> None:
    model = Branches()
    twin = copy.deepcopy(model)
    program = ingot.capture(model, (x().abs(),))
    program(x().abs())["y"].sum().backward()
    twin(x().abs())["y"].sum().backward()
    for (name, mine), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None) or float((mine.grad or theirs.grad).abs().sum()) == 0, name
        if mine.grad is not None and theirs.grad is not None:
            assert torch.equal(mine.grad, theirs.grad), name


def test_while_loop_with_closures() -> None:
    weight = x(4, 4) * 0.1

    def f(a: torch.Tensor, limit: torch.Tensor) -> Any:
        def proceed(i: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return i < limit

        def step(i: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return i + 1, b @ weight + a

        return while_loop(proceed, step, (torch.tensor(0), a))

    check_calls(f, [((x(), torch.tensor(n)), {}) for n in (3, 0, 5)])


def test_while_loop_with_an_int_carry() -> None:
    def f(a: torch.Tensor) -> Any:
        return while_loop(lambda i, b: i < 4, lambda i, b: (i + 1, b * 2), (0, a))

    check(f, (x(),))


def test_scan_with_closures() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.Linear(4, 4)

        def forward(self, state: torch.Tensor, steps: torch.Tensor) -> Any:
            def step(carry: torch.Tensor, item: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                new = torch.tanh(self.cell(carry) + item)
                return new, new * 2

            return scan(step, state, steps)

    with torch.no_grad():
        check(Model(), (x(2, 4), x(5, 2, 4)))


def test_map_and_associative_scan() -> None:
    check(lambda a, b: torch_map(lambda row, other: row.sin() + other, a, b), (x(3, 4), x(4)))
    check(lambda a: associative_scan(lambda b, c: b * c + 1, a, 0, combine_mode="generic"), (x(5, 2),))


def test_vmap_and_grad_inside_forward() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> Any:
        products = torch.vmap(lambda row: row @ b)(a)
        slopes = torch.func.grad(lambda t: (t.sin() * b.sum()).sum())(a)
        return products, slopes, torch.func.vmap(torch.func.grad(lambda t: t.pow(3).sum()))(a)

    check(f, (x(3, 4), x(4, 2)))


# ---------------------------------------------------------------------- custom operators


@torch.library.custom_op("ingot_tests::scaled", mutates_args=())
def scaled(a: torch.Tensor, by: float) -> torch.Tensor:
    return torch.from_numpy(a.detach().numpy() * by)


@scaled.register_fake
def _(a: torch.Tensor, by: float) -> torch.Tensor:
    return torch.empty_like(a)


@torch.library.custom_op("ingot_tests::bump_by_one", mutates_args={"a"})
def bump(a: torch.Tensor) -> None:
    a.detach().numpy()[...] += 1


def test_custom_operators_stay_whole() -> None:
    program = check(lambda a: scaled(a, 3.0) + 1, (x(),))
    assert torch.ops.ingot_tests.scaled.default in targets(program)


def test_a_custom_operator_that_writes() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(3))

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            bump(self.n)
            bump(a)
            return a.sum() + self.n

    program = check(Model(), (x(),))
    assert targets(program).count(torch.ops.ingot_tests.bump_by_one.default) == 2


# ---------------------------------------------------------------------- modes


class Regions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, a: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a = self.a(a)
            with torch.autocast("cpu", enabled=False):
                b = self.b(a.float())
            c = self.c(a) + b
        return self.c(b), c


def test_autocast_regions() -> None:
    program = check(Regions(), (x(),))
    assert targets(program).count(internals.enter_autocast) == targets(program).count(internals.exit_autocast) == 2


def test_capture_inside_autocast() -> None:
    model = nn.Linear(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check(model, (x(),))


def test_exception_inside_autocast_is_the_users() -> None:
    class Model(nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            try:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    a = a @ a.mT
                    raise KeyError("mine")
            except KeyError:
                return a + 1

    check(Model(), (x(),))


def test_grad_modes() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        @torch.no_grad()
        def frozen(self, a: torch.Tensor) -> torch.Tensor:
            return self.fc(a)

        def forward(self, a: torch.Tensor) -> Any:
            with torch.no_grad():
                b = self.fc(a)
                with torch.enable_grad():
                    c = self.fc(b)
            return self.frozen(a), b, c, self.fc(c.detach()), self.fc(a).data

    model = Model()
    check(model, (x(),))
    with torch.no_grad():
        check(model, (x(),))


def test_inference_mode() -> None:
    with torch.inference_mode():
        a = x()
    model = nn.Linear(4, 4)
    with torch.inference_mode():
        program = ingot.capture(model, (a,))
        assert torch.equal(program(a), model(a))

    def f(b: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return b * 2

    assert torch.equal(ingot.capture(f, (x(),))(x()), f(x()))


# ---------------------------------------------------------------------- randomness


def test_dropout_draws_what_eager_draws() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.ReLU(), nn.Dropout1d(0.5)).train()
    check(model, (x(),))
    check(model.eval(), (x(),))


def test_random_operators() -> None:
    def f(a: torch.Tensor) -> Any:
        noise = torch.rand(2, 4) + torch.randn_like(a) + torch.randint(0, 5, (4,)) + torch.bernoulli(a.sigmoid())
        order = torch.randperm(4)
        torch.rand(3)  # unused, and yet it moves the generator
        return a[:, order] + noise + F.dropout(a) + torch.empty(2, 4).normal_() + a.clone().uniform_()

    check(f, (x(),))


# ---------------------------------------------------------------------- views and in-place


def test_in_place_views() -> None:
    def f(a: torch.Tensor) -> Any:
        b = a * 2
        shape = b.t_().shape
        c = b.unsqueeze_(0).squeeze_(0).transpose_(0, 1)
        d = a.clone().resize_(4, 2) if False else a.clone().swapaxes_(0, 1)
        return b, shape, c, d.add_(1).relu_()

    check(f, (x(),))


def test_writes_through_views() -> None:
    def f(a: torch.Tensor) -> Any:
        b = a.clone()
        row = b[0]
        b.add_(1)
        row.mul_(3)
        b.view(-1)[::2] = 0
        b[:, -1].copy_(a[:, 0])
        torch.add(a, 1, out=b[:1].expand(2, 4).clone())
        b.masked_fill_(b > 2, 2.0)
        return b, row

    check(f, (x(),))


def test_detach_and_data_share_memory() -> None:
    def f(a: torch.Tensor) -> Any:
        b = a * 1
        b.data.add_(1)
        b.detach().mul_(2)
        return b

    check(f, (x(),))


def test_out_arguments_and_foreach() -> None:
    def f(a: torch.Tensor) -> Any:
        out = torch.empty_like(a)
        torch.mul(a, 2, out=out)
        torch._foreach_add_([out], 1.0)
        return out, torch._foreach_mul([a, out], 2.0)

    check(f, (x(),))


def test_indexing() -> None:
    def f(a: torch.Tensor, ids: torch.Tensor) -> Any:
        mask = a > 0
        return a[ids, 1:], a[..., None, -1], a[:, [0, 2]], torch.where(mask, a, 0.0), a[ids][:, ids], a[0, 1]

    check(f, (x(), torch.tensor([1, 0])))


def test_indices_that_are_tensors_of_one_number() -> None:
    def f(a: torch.Tensor, i: torch.Tensor) -> Any:
        b = a.clone()
        b[(i, i + 1), (i + 1, i)] = 7.0
        b[i] = b[i] + 1
        return b, a[i], a[:, i], a[i : i + 1], a[..., i + 1 :]

    check_calls(f, [((x(3, 4), torch.tensor(i)), {}) for i in (0, 1)])


def test_boolean_masks_give_sizes_known_only_at_run_time() -> None:
    check_calls(lambda a: a[a > 0].sum() + a[a > 0].shape[0], [((x(),), {}), ((x().abs(),), {}), ((-x().abs(),), {})])


# ---------------------------------------------------------------------- calls


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_compiled_functions_inside() -> None:
    @torch.compile
    def inner(a: torch.Tensor) -> torch.Tensor:
        return a.sin() + 1

    class Model(nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return inner(a) * 2 + torch.compile(torch.cos)(a) + torch.compile()(torch.tan)(a)

    program = ingot.capture(Model(), (x(),))
    assert_same(program(x()), (x().sin() + 1) * 2 + x().cos() + x().tan())


def test_hooks_are_part_of_the_model() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[0].register_forward_hook(lambda module, args, out: out * 2)
    model[0].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    model.register_forward_hook(lambda module, args, out: {"y": out})
    check(model, (x(),))


def test_sizes_computed_in_forward() -> None:
    def f(a: torch.Tensor) -> Any:
        height, width = a.shape[-2:]
        big = F.interpolate(a, scale_factor=1.5, mode="bilinear")
        small = F.interpolate(a, size=(height // 2, int(width * 0.5)), mode="nearest")
        padded = F.pad(a, (0, -width % 4, 1, 2), value=1.0)
        return big, small, padded, F.unfold(padded, 3), F.grid_sample(a, torch.zeros(1, 2, 2, 2), align_corners=False)

    check(f, (x(1, 2, 5, 6),))


def test_the_same_submodule_several_times() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                a = self.block(a)
            return a

    program = check(Model(), (x(),))
    assert [c.path for c in program.module_calls if c.module == "block"] == ["block", "block@1", "block@2"]


def test_modules_made_inside_forward() -> None:
    class Model(nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return nn.Sequential(nn.ReLU(), nn.Softmax(-1))(a)

    check(Model(), (x(),))


def test_attention_kernels() -> None:
    def f(q: torch.Tensor, k: torch.Tensor) -> Any:
        causal = F.scaled_dot_product_attention(q, k, k, is_causal=True)
        return causal, F.scaled_dot_product_attention(q, k, k, attn_mask=torch.ones(3, 3).tril().bool())

    check(f, (x(1, 2, 3, 8), x(1, 2, 3, 8)))


def test_assertions_stay() -> None:
    def f(a: torch.Tensor) -> torch.Tensor:
        torch._assert((a > -100).all(), "too small")
        torch._assert_async((a < 100).all())
        return a * 2

    program = check(f, (x(),))
    with pytest.raises(Exception, match="too small"):
        program(x() - 1000)


@pytest.mark.parametrize("shape", [(5,), (2, 5)])
def test_a_dim_that_counts_from_the_end_is_typed_right(shape: tuple[int, ...]) -> None:
    """torch's own fake kernel slices the shape at -1, and gives a result of two or four dims."""

    class Runs(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            values, inverse, counts = torch.unique_consecutive(x, return_inverse=True, return_counts=True, dim=-1)
            return values, inverse, counts

    program = ingot.capture(Runs(), (torch.randint(0, 2, shape),))
    values, inverse, counts = (node.meta["val"] for node in program.graph.find_nodes(op="output")[0].args[0])
    assert values.dim() == len(shape) and tuple(inverse.shape) == (5,)
    assert counts.shape[0] == values.shape[-1] and not isinstance(counts.shape[0], int)
