"""What went wrong once: each case is small and named after the mistake."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import ingot
import ingot_runtime
from ingot.errors import InputError, UnsupportedOperator
from tests.support.oracle import assert_right


def x(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_a_tensor_joined_with_itself() -> None:
    class Twice(nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            b = a * 2
            return torch.cat((b, b), -1) + 1

    assert_right(Twice(), (x(3, 5),))


def test_a_buffer_written_piece_by_piece_is_local_to_no_row() -> None:
    class Pieces(nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            parts = [torch.softmax(a[:, k] * (k + 1), -1).exp() for k in range(8)]
            whole = torch.cat(parts, 0)
            return whole / whole.sum(-1, keepdim=True) + whole.amax(-1, keepdim=True)

    assert_right(Pieces(), (x(9, 8, 20),))


class Groups(nn.Module):
    """Rows in groups, each with a weight of its own, as experts are."""

    def __init__(self, transposed: bool) -> None:
        import transformers.integrations.moe  # noqa: F401  declares the operator

        super().__init__()
        self.transposed = transposed
        self.weight = nn.Parameter(x(4, 52, 8) if transposed else x(4, 8, 52))

    def forward(self, a: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        weight = self.weight.transpose(1, 2) if self.transposed else self.weight
        made: torch.Tensor = torch.ops.transformers.grouped_mm_fallback(a, weight, ends)
        return made


@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_groups(transposed: bool) -> None:
    calls = [(x(9, 8), torch.tensor(ends, dtype=torch.int32)) for ends in ([2, 2, 7, 9], [0, 0, 9, 9], [9, 9, 9, 9])]
    more = (x(70, 8), torch.tensor([1, 66, 69, 70], dtype=torch.int32))
    assert_right(Groups(transposed), *calls, more, dynamic_shapes={"a": {0: "rows"}, "ends": None})


def test_offsets_of_groups_out_of_range_touch_no_memory() -> None:
    compiled = assert_right(Groups(False), (x(9, 8), torch.tensor([2, 2, 7, 9], dtype=torch.int32)))
    made = compiled(x(9, 8), torch.tensor([-5, 1 << 30, 3, 1 << 30], dtype=torch.int32))
    assert made.shape == (9, 52)


def test_a_number_that_a_loop_carries_is_a_size_of_the_run() -> None:
    class Counts(nn.Module):
        def forward(self, a: torch.Tensor) -> tuple[torch.Tensor, ...]:
            made: tuple[torch.Tensor, ...] = torch.while_loop(
                lambda i, b: i < 4, lambda i, b: (i + 1, torch.softmax(b * 2, -1) + i), (torch.tensor(0), a)
            )
            return made

    assert_right(Counts(), (x(3, 5),), (x(3, 5, seed=1),))


def test_scratch_memory_by_a_size_that_only_the_run_tells() -> None:
    class Cut(nn.Module):
        def forward(self, a: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
            size = count.item()
            torch._check(size >= 2)
            torch._check(size <= a.shape[0])
            rows = a[:size]
            return rows.T @ (rows + 1)

    assert_right(Cut(), *((x(400, 30), torch.tensor(count)) for count in (17, 400, 2)))


def test_a_slice_by_numbers_that_the_run_tells() -> None:
    class Cut(nn.Module):
        def forward(self, a: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            return a[at[0].item() :].sum() + a[: at[1].item()].sum() * 3 + a[at[2].item()].sum() * 7

    ends = ([0, 5, 2], [3, -2, -1], [-4, 100, -9], [100, 0, 8])
    compiled = assert_right(Cut(), *((x(9, 4).mul(8).round(), torch.tensor(at)) for at in ends))
    with pytest.raises(ingot_runtime.IndexOutOfRange):
        compiled(x(9, 4), torch.tensor([0, 0, 9]))


def test_sizes_behind_many_layers_are_spelled_in_reasonable_time() -> None:
    layers = [nn.Sequential(nn.Conv1d(3, 3, 3, stride=2, padding=1), nn.ReLU()) for _ in range(8)]
    calls = [(x(2, 3, 700 + more),) for more in (0, 1, 60)]
    assert_right(nn.Sequential(*layers), *calls, dynamic_shapes=[{2: "length"}])


def test_a_number_that_the_run_tells_may_be_negative() -> None:
    class Halves(nn.Module):
        def forward(self, a: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
            return a + count.item() // 2

    assert_right(Halves(), *((x(3), torch.tensor(count)) for count in (5, -5, -1, 0)))


def test_a_recurrent_layer_loops_over_time() -> None:
    """torch's own way to take it apart repeats it as often as the example is long."""
    torch.manual_seed(0)
    model = nn.LSTM(5, 7, 2, batch_first=True, bidirectional=True)
    calls = [(x(batch, length, 5),) for batch, length in ((3, 6), (2, 13), (5, 1))]
    assert_right(model, *calls, dynamic_shapes=[{0: "batch", 1: "time"}])


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.LSTM(5, 7, proj_size=3, bias=False, batch_first=True),
        lambda: nn.GRU(5, 7, 2, batch_first=True, bidirectional=True),
        lambda: nn.RNN(5, 7, nonlinearity="relu"),
        lambda: nn.RNN(5, 7, bidirectional=True),
    ],
)
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_recurrent_layers(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    assert_right(make(), (x(4, 6, 5),), (x(4, 6, 5, seed=1),))


def test_whether_all_is_true() -> None:
    class Truth(nn.Module):
        def forward(self, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch._is_all_true(a > 0), torch._is_any_true(a > 0)

    assert_right(Truth(), *((torch.tensor(a),) for a in ([1.0, 2.0], [1.0, -1.0], [-1.0, -2.0])))


def test_a_result_whose_size_only_the_run_tells_is_refused() -> None:
    class Cut(nn.Module):
        def forward(self, a: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
            return a[: count.item()]

    with pytest.raises(UnsupportedOperator, match=r"slice.*is data-dependent"):
        ingot.compile(Cut(), (x(9), torch.tensor(3)))


def test_a_window_far_larger_than_the_image() -> None:
    """It was right but took minutes: every tap of the window was asked whether it lies inside."""
    calls = [(x(batch, 3, 4, 5),) for batch in (2, 3)]
    assert_right(nn.AvgPool2d(20000, ceil_mode=True), *calls, dynamic_shapes=[{0: "batch"}])
    assert_right(nn.AvgPool2d(3, 2, padding=1, ceil_mode=True, count_include_pad=False), (x(2, 3, 6, 7),))


@pytest.mark.parametrize(
    "model, shape",
    [
        (nn.Linear(20000, 60), (9, 20000)),
        (nn.Conv2d(700, 20, 3), (2, 700, 9, 9)),
        (nn.Conv1d(3, 20, 999), (2, 3, 1200)),
    ],
)
def test_long_sums_round_no_worse_than_eager(model: nn.Module, shape: tuple[int, ...]) -> None:
    """One sum over the whole depth was right, but its error grew with the depth: three times eager's at 3072."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(x(*parameter.shape, seed=number).abs())
    a = x(*shape).abs()
    with torch.no_grad():
        truth = copy.deepcopy(model).double()(a.double())
        error = (ingot.compile(model, (a,))(a).double() - truth).abs().mean()
        own = (model(a).double() - truth).abs().mean()
    assert error <= 4 * own + 2.0**-24 * truth.abs().mean()


@pytest.mark.parametrize("pad", [(-1, 1, -2, 1), (2, -1, 1, -3), (-1, -1, 3, 3), (-2, 0, 0, 2)])
def test_a_circular_pad_that_crops_goes_around_what_it_leaves(pad: tuple[int, ...]) -> None:
    class Pad(nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return nn.functional.pad(a, pad, mode="circular")

    assert_right(Pad(), (x(1, 3, 4, 5),))


@pytest.mark.parametrize("shape", [(), (4,)])
def test_a_transpose_that_turns_nothing(shape: tuple[int, ...]) -> None:
    class Turn(nn.Module):
        def forward(self, a: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return a.t(), a.transpose(0, -1), (a * 2).t(), (a * 2).transpose(0, 0) + 1

    assert_right(Turn(), (x(*shape),))


@pytest.mark.parametrize("rows", [0, 3, 7])
def test_parts_of_a_tensor_that_may_be_empty(rows: int) -> None:
    class Parts(nn.Module):
        def forward(self, a: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (*torch.split(a, 3), *(part * 2 for part in torch.split(a * 2, 3)))

    assert_right(Parts(), (x(rows, 2),))


@pytest.mark.parametrize(("shifts", "dims"), [(1, 0), (-4, 0), (2, ()), ((3, -2), (0, 1)), ((1, 1), (0, 0))])
def test_a_roll_of_a_dim_that_may_be_empty(shifts: Any, dims: Any) -> None:
    class Roll(nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return torch.roll(a, shifts, dims)

    compiled = ingot.compile(Roll(), (x(5, 3),), dynamic_shapes=({0: Dim("n", min=0, max=9)},))
    for rows in (0, 1, 2, 9):
        torch.testing.assert_close(compiled(x(rows, 3)), Roll()(x(rows, 3)))


@pytest.mark.parametrize("weighed", [False, True])
def test_a_histogram_as_density(weighed: bool) -> None:
    class Histogram(nn.Module):
        def forward(self, a: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
            made = torch.histogram(a, 5, range=(-1.0, 2.0), weight=weight if weighed else None, density=True)
            return tuple(made)

    assert_right(Histogram(), (x(40), x(40, seed=1).abs()))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3)])
def test_a_mask_without_elements(shape: tuple[int, ...]) -> None:
    class Places(nn.Module):
        def forward(self, a: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return torch.nonzero(a), a[a > 0] * 2, torch.masked_select(a, a > 0)

    assert_right(Places(), (x(*shape),))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("last", [False, True])
def test_bags_of_rows(mode: str, last: bool) -> None:
    bag = nn.EmbeddingBag(10, 4, mode=mode, include_last_offset=last, padding_idx=3)
    rows = torch.tensor([1, 3, 5, 5, 0, 3, 9])
    for offsets in ([0, 2, 2, 5, 7], [0, 0, 1, 7, 7]):
        assert_right(bag, (rows, torch.tensor(offsets)))


def test_bags_of_weighed_rows_and_a_row_that_is_not_there() -> None:
    class Weighed(nn.EmbeddingBag):
        def forward(self, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            return super().forward(rows, per_sample_weights=weights)

    rows = torch.tensor([[1, 3], [5, 5], [0, 9]])
    compiled = assert_right(Weighed(10, 4, mode="sum"), (rows, x(3, 2)))
    with pytest.raises(ingot.IngotError, match="out of range"):
        compiled(rows + 1, x(3, 2))


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 2.5, float("inf")])
def test_distances_of_pairs(p: float) -> None:
    class Pairs(nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return nn.functional.pdist(a, p)

    assert_right(Pairs(), (x(5, 3),))


@pytest.mark.parametrize("places", [[], [0], [-1], [0, 0]])
@pytest.mark.parametrize("value", [2.0, torch.tensor(3.0)])
def test_filling_a_number(places: list[int], value: float | torch.Tensor) -> None:
    class Fill(nn.Module):
        def forward(self, a: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            return a.index_fill(0, at, value)  # type: ignore[arg-type]

    assert_right(Fill(), (x(), torch.tensor(places, dtype=torch.int64)))


def test_integer_ranges_start_and_step_by_integers() -> None:
    class Ranges(nn.Module):
        def forward(self, a: torch.Tensor) -> tuple[torch.Tensor, ...]:
            whole = torch.int64
            return (
                torch.arange(2.1, -2.9, -1.0, dtype=whole),
                torch.arange(0.1, -7.9, -4.0, dtype=whole),
                torch.linspace(4.3, -3, 50, dtype=whole),
                torch.linspace(0, 7, 50, dtype=whole),
                torch.linspace(a, 50, 50, dtype=whole),
                torch.linspace(-3, a, 1, dtype=whole),
                torch.linspace(a, a * 3, 7, dtype=torch.int32),
            )

    assert_right(Ranges(), (torch.tensor(4.3),), (torch.tensor(-9.7),))


@pytest.mark.parametrize("how", ["amin", "amax", "prod", "sum"])
@pytest.mark.parametrize("include", [False, True])
def test_bools_scattered_onto_bools(how: str, include: bool) -> None:
    class Scatter(nn.Module):
        def forward(self, a: torch.Tensor, at: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a.scatter_reduce(0, at, b, how, include_self=include)

    at = torch.tensor([[0, 1, 2], [0, 0, 2], [1, 1, 2]])
    assert_right(Scatter(), *((x(4, 3, seed=seed) > 0, at, x(3, 3, seed=seed + 9) > 0) for seed in range(4)))


@pytest.mark.parametrize("shape", [(), (6,), (2, 3)])
def test_a_decomposition_that_writes_keeps_the_dtype_of_what_it_writes_to(shape: tuple[int, ...]) -> None:
    class Similar(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return nn.functional.cosine_similarity(a, b, 0)

    args = (x(*shape).bfloat16(), x(*shape, seed=1).bfloat16())
    compiled = ingot.compile(Similar(), args)
    assert compiled(*args).dtype is torch.bfloat16
    torch.testing.assert_close(compiled(*args), Similar()(*args))


def test_what_reads_a_size_that_the_run_finds_out_comes_after_it() -> None:
    """Added to a product it would become part of it, and run before the place where the bias begins is known."""

    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("bias", x(2, 1, 64))

        def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            scores = q @ k.transpose(-1, -2)
            return torch.softmax(scores + self.bias[:, :, max(0, 64 - q.shape[-2]) :], -1)  # type: ignore[index]

    calls = [(x(2, 2, n, 8), x(2, 2, n, 8, seed=1)) for n in (11, 12, 40)]
    assert_right(Biased(), *calls, dynamic_shapes={"q": {2: "n"}, "k": {2: "n"}})


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("to", [{"size": (3, 7)}, {"size": (301, 2)}, {"scale_factor": (1.7, 0.6)}])
@pytest.mark.parametrize("align", [False, True])
def test_images_of_bytes_are_resampled_to_the_bit(mode: str, to: dict[str, Any], align: bool) -> None:
    """torch rounds shares to 15 bits and every dim's result to bytes; its decompositions round otherwise."""

    class Resized(nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return nn.functional.interpolate(a, mode=mode, align_corners=align, **to)

    image = torch.randint(0, 256, (2, 3, 5, 260), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    decomposed = ingot.capture(Resized(), (image,))
    ingot.passes.decompose(decomposed)
    for made in (decomposed, ingot.compile(Resized(), (image,))):
        assert torch.equal(made(image), Resized()(image))
    dynamic = ingot.compile(ingot.capture(Resized(), (image,), dynamic_shapes={"a": {2: "h", 3: "w"}}))
    for cut in (image, image[:, :, :3, :31], image[:, :, :4, 7:20]):
        assert torch.equal(dynamic(cut), Resized()(cut))


def test_parts_of_a_dynamic_dim() -> None:
    """How many there are is what capture found; torch's decompositions count them by the example's sizes."""

    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        four = torch.cat([x] * 4, 1).chunk(4, dim=1)
        return [*four, *x.chunk(2, -1), *y.split(x.shape[1] // 2, 1)]

    x = torch.randn(2, 6)
    program = ingot.capture(function, (x, x), dynamic_shapes={"x": {1: "2*half"}, "y": {1: "2*half"}})
    native = ingot.compile(program)
    for size in (2, 4, 14):
        x, y = torch.randn(2, 2, size)
        for got, want in zip(native(x, y), function(x, y), strict=True):
            assert torch.equal(got, want)


@pytest.mark.parametrize("side", [8, 13, 31, 56])
def test_sums_of_hundreds_of_numbers_are_as_good_as_eagers(side: int) -> None:
    """Of an image: one after another, along memory and across it, they lost five times as much."""
    conv = nn.Conv2d(48, 48, 3, padding=1, groups=48)
    x = torch.rand(1, 48, side, side)
    functions: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: x.mean((2, 3)),
        lambda x: conv(x.relu()).mean((2, 3)),
    ]
    for function in functions:
        with torch.no_grad():
            eager, native = function(x), ingot.compile(function, (x,))(x)
            conv.double()
            exact = function(x.double())
            conv.float()
        assert (native - exact).abs().max() <= max(2 * (eager - exact).abs().max(), 2.0**-22 * exact.abs().max())


@pytest.mark.parametrize("over", [(0,), (3,), (0, 2), (0, 3)])
def test_sums_of_equal_numbers_are_as_good_as_eagers(over: tuple[int, ...]) -> None:
    """Their roundings do not cancel: a norm of what `masked_fill` made equal had up to 19 times eager's error."""

    def normalize(x: torch.Tensor) -> torch.Tensor:
        x = x.masked_fill(x >= -2.7, -0.7)
        away = x - x.mean(over, keepdim=True)
        return away * torch.rsqrt(away.square().mean(over, keepdim=True) + 1e-5)

    x = torch.randn(13, 64, 4, 52, generator=torch.Generator().manual_seed(0))
    x = x.permute(0, 2, 3, 1).reshape(13, 64, 4, 52) if over == (0, 3) else x.repeat(16, 1, 1, 16)[:, :4]
    exact = normalize(x.double())
    error, own = (ingot.compile(normalize, (x,))(x) - exact).abs().max(), (normalize(x) - exact).abs().max()
    assert error <= 2 * own


@pytest.mark.parametrize(("spec", "example", "others", "wrong"), [("2*half", 6, (2, 40), 5), ("3*k+1", 7, (4, 10), 9)])
def test_a_dim_that_is_a_multiple_of_what_no_argument_has(
    spec: str, example: int, others: tuple[int, ...], wrong: int, tmp_path: Path
) -> None:
    class Model(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.cat([a, b.flip(0)], 1).cumsum(1) * a.shape[1]

    model = Model()
    native = ingot.compile(model, (x(2, example), x(2, example)), dynamic_shapes={"a": {1: spec}, "b": {1: spec}})
    native.save(tmp_path / "m.ingot")
    loaded = ingot_runtime.load(tmp_path / "m.ingot")
    for size in (example, *others):
        a, b = x(2, size), x(2, size, seed=1)
        torch.testing.assert_close(native(a, b), model(a, b))
        assert torch.equal(torch.from_numpy(loaded(a=a.numpy(), b=b.numpy())), native(a, b))
    for call in (native, lambda a, b: loaded(a=a.numpy(), b=b.numpy())):
        with pytest.raises(InputError, match=f"is {wrong}"):
            call(x(2, wrong), x(2, wrong))
        with pytest.raises(InputError, match="must be"):
            call(x(2, example), x(2, others[0]))
    assert native.profile(x(2, example), x(2, example)).rows


class OfConstants(nn.Module):
    """Every operator that C spells itself, of constants: what is written before a sign must not join it."""

    def forward(self, a: torch.Tensor) -> list[torch.Tensor]:
        n, m = torch.full_like(a, -3), torch.full_like(a, -2)
        found = [n.abs(), -n, n.sign(), n * n, n.relu(), n - m, n + m, torch.maximum(n, m), torch.minimum(n, m)]
        found += [n // m, n % m, torch.fmod(n, m), n.clamp(-2, 5), n.clamp_max(-4), n < m, n == m, n.square()]
        if not a.is_floating_point():
            found += [~n, n & m, n | m, n ^ m, n << m.abs(), n >> m.abs()]
        else:
            found += [n / m, n.reciprocal(), n.floor(), n.isnan(), n.isinf(), torch.fmax(n, m), torch.copysign(n, m)]
        return [value * a if value.dtype == a.dtype else value for value in found]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8])
def test_operators_of_negative_constants(dtype: torch.dtype) -> None:
    a = torch.arange(6).to(dtype).reshape(2, 3)
    with torch.no_grad():
        torch.testing.assert_close(ingot.compile(OfConstants().eval(), (a,))(a), OfConstants()(a), rtol=0, atol=0)


@pytest.mark.parametrize("number", [-0.0, -2.0])
def test_a_negative_constant_negated(number: float) -> None:
    class Negates(nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return torch.full_like(a, number).neg_() * a

    assert_right(Negates(), (x(4, 3),))


@pytest.mark.parametrize("size", [3, 8])
def test_orthogonal_factors_need_no_c_library_of_functions(size: int) -> None:
    """A library is linked with nothing: `fmax` was left to the C library where it is not one instruction."""

    class Factors(nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            q, r = torch.linalg.qr(a)
            return q @ r

    a = torch.randn(size, size)
    compiled = ingot.compile(Factors(), (a,), cache=False)
    torch.testing.assert_close(compiled(a), a, rtol=1e-5, atol=1e-5)
