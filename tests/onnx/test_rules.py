"""What rules say of operators: which nodes they become, opset by opset, and cases that numbers alone would not find."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ingot
from ingot.errors import PassError, UnsupportedByOnnx
from ingot.onnx.api import OnnxReport
from ingot.onnx.convert import NEWEST_OPSET
from tests.onnx.core_share import share
from tests.passes import test_decompose_complex

X = torch.Tensor


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: X) -> Any:
        return self.function(*args)


def exported(
    path: Path, model: nn.Module | Callable[..., Any], *args: X, opset: int | None = None, dynamic: Any = None
) -> tuple[OnnxReport, list[str]]:
    """The report, and the kinds of nodes in order."""
    module = model if isinstance(model, nn.Module) else Function(model)
    program = ingot.capture(module.eval(), args, dynamic_shapes=dynamic)
    report = ingot.export_onnx(program, path / "m.onnx", opset=opset)
    return report, [node.op_type for node in onnx.load(path / "m.onnx").graph.node]


def test_nine_tenths_of_core_aten_have_a_rule() -> None:
    yes, no = share()
    assert len(yes) / (len(yes) + len(no)) >= 0.9, no


@pytest.mark.parametrize(
    ("equation", "shapes", "kinds"),
    [
        ("bshd,bthd->bhst", [(2, 3, 4, 5), (2, 6, 4, 5)], ["Transpose", "Transpose", "MatMul"]),
        ("bhst,bthd->bshd", [(2, 4, 3, 6), (2, 6, 4, 5)], ["Transpose", "MatMul", "Transpose"]),
        ("b s d, d e -> b s e", [(2, 3, 4), (4, 5)], ["MatMul"]),
        ("bij,bjk->bik", [(2, 3, 4), (1, 4, 5)], ["MatMul"]),
        ("ik,jk->ji", [(2, 3), (4, 3)], ["Transpose", "MatMul", "Transpose"]),
        ("bhid,bhjd->bhij", [(2, 1, 3, 1), (2, 4, 5, 2)], None),
        ("bij,bj->bi", [(2, 3, 4), (2, 4)], None),
        ("bcij,bjd->bcid", [(2, 3, 4, 5), (2, 5, 6)], None),
        ("ij,jk->i", [(2, 3), (3, 4)], None),
        ("ii,ij->j", [(3, 3), (3, 4)], None),
        ("ij,jk", [(2, 3), (3, 4)], None),
        ("...ij,jk->...ik", [(2, 3, 4), (4, 5)], None),
    ],
)
def test_equations(equation: str, shapes: list[tuple[int, ...]], kinds: list[str] | None, tmp_path: Path) -> None:
    """One that is a product of matrices is written as one."""
    _, found = exported(tmp_path, lambda *xs: torch.einsum(equation, *xs), *(torch.randn(shape) for shape in shapes))
    assert kinds is None or found == kinds


def attend(q: X, k: X, v: X) -> X:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize(
    ("opset", "kinds"),
    [(20, {"MatMul", "Softmax"}), (23, {"Attention"}), (24, {"Attention"})],
)
def test_attention(opset: int, kinds: set[str], tmp_path: Path) -> None:
    q, k, v = (torch.randn(2, 3, 5, 8) for _ in range(3))
    _, found = exported(tmp_path, attend, q, k, v, opset=opset)
    assert kinds <= set(found) and ("Attention" in found) == (opset >= 23)


@pytest.mark.parametrize("opset", [20, 23])
@pytest.mark.parametrize("floats", [False, True])
def test_a_query_that_sees_nothing_gets_zeros(opset: int, floats: bool, tmp_path: Path) -> None:
    q, k, v = (torch.randn(2, 3, 5, 8) for _ in range(3))
    mask = torch.rand(2, 1, 5, 5) > 0.4
    mask[0, :, 2] = False
    given = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf) if floats else mask
    exported(tmp_path, F.scaled_dot_product_attention, q, k, v, given, opset=opset)


@pytest.mark.parametrize("opset", [20, 23, NEWEST_OPSET])
@pytest.mark.parametrize("shape", [(2, 1, 1, 5), (1, 5), (2, 3, 1, 5), (3, 4, 1), (4, 5)])
def test_a_mask_that_spreads_over_queries(opset: int, shape: tuple[int, ...], tmp_path: Path) -> None:
    """Of padding, say: Attention's kernels want a row of it for each query."""
    q, k, v = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8)
    mask = torch.ones(shape, dtype=torch.bool)
    mask[..., 1:2] = False
    dynamic = ({0: "batch"}, {0: "batch"}, {0: "batch"}, {0: "batch"} if shape[0] == 2 else None)
    _, found = exported(tmp_path, F.scaled_dot_product_attention, q, k, v, mask, opset=opset, dynamic=dynamic)
    assert ("Attention" in found) == (opset >= 23)


@pytest.mark.parametrize("opset", [20, 23])
def test_heads_with_padding(opset: int, tmp_path: Path) -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def padded(x: X, hidden: X) -> X:
        return model(x, src_key_padding_mask=hidden)

    hidden = torch.tensor([[False, False, True], [False, False, False]])
    dynamic = ({0: "batch", 1: "seq"},) * 2
    model.eval()
    report, _ = exported(tmp_path, padded, torch.randn(2, 3, 8), hidden, opset=opset, dynamic=dynamic)
    assert len(report.differences) == 3


def test_norms_and_gelu_are_single_nodes(tmp_path: Path) -> None:
    model = nn.Sequential(nn.GELU(), nn.LayerNorm(8), nn.RMSNorm(8), nn.GroupNorm(2, 4))
    x = torch.randn(3, 4, 8)
    _, found = exported(tmp_path, model, x, opset=23)
    assert found == ["Gelu", "LayerNormalization", "RMSNormalization", "GroupNormalization"]
    _, found = exported(tmp_path, model, x, opset=18)
    assert "LayerNormalization" in found and "Gelu" not in found


def test_norms_of_each_image(tmp_path: Path) -> None:
    """One that has learned its statistics is a batch norm; beside it the others stay what they are."""
    learned, batch = nn.InstanceNorm2d(4, affine=True, track_running_stats=True), nn.BatchNorm2d(4)
    model = nn.Sequential(nn.BatchNorm2d(4, track_running_stats=False), nn.InstanceNorm2d(4), learned, batch)
    _, found = exported(tmp_path, model, torch.randn(2, 4, 6, 6), dynamic={"input": {0: "batch"}})
    assert found.count("InstanceNormalization") == 1 and found.count("BatchNormalization") == 2


def test_convolution_and_batch_norm_are_one(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    _, found = exported(tmp_path, model, torch.randn(2, 3, 8, 8))
    assert found == ["Conv", "Relu", "MaxPool"]


def test_a_transposed_convolution_to_a_size_that_only_the_run_tells(tmp_path: Path) -> None:
    class There(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up = nn.Conv2d(3, 4, 3, (2, 3), 1), nn.ConvTranspose2d(4, 3, 3, (2, 3), 1)

        def forward(self, x: X) -> X:
            return self.up(self.down(x), output_size=x.shape[-2:])

    report, _ = exported(tmp_path, There(), torch.randn(1, 3, 8, 10), dynamic={"x": {2: "h", 3: "w"}})
    assert len(report.differences) == 3


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    "options", [{}, {"bidirectional": True, "num_layers": 2, "batch_first": True}, {"bias": False}]
)
def test_recurrent_layers_are_one_node_each(layer: Any, options: dict[str, Any], tmp_path: Path) -> None:
    model = layer(5, 6, **options)
    batch = {0 if options.get("batch_first") else 1: "batch"}
    report, found = exported(tmp_path, model, torch.randn(3, 4, 5), dynamic={"input": batch})
    assert found.count(layer.__name__) == options.get("num_layers", 1) and len(report.differences) == 3


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_over_any_number_of_steps(layer: Any, tmp_path: Path) -> None:
    model = layer(5, 6, num_layers=2, bidirectional=True, batch_first=True)
    dynamic = {"input": {0: "batch", 1: "steps"}}
    report, found = exported(tmp_path, model, torch.randn(3, 4, 5), dynamic=dynamic)
    assert found.count(layer.__name__) == 2 and len(report.differences) == 3
    report, _ = exported(tmp_path, model.double(), torch.randn(3, 4, 5).double())
    assert report.runner == "ONNX Runtime"  # which has no kernels for it: written out step by step


def test_steps_that_have_to_be_written_out(tmp_path: Path) -> None:
    model = nn.LSTM(5, 6, proj_size=3)
    exported(tmp_path, model, torch.randn(3, 4, 5), dynamic={"input": {1: "batch"}})
    with pytest.raises(PassError, match=r"aten.lstm.input cannot be decomposed for every size steps.\n  where: .*\n"):
        exported(tmp_path, model, torch.randn(3, 4, 5), dynamic={"input": {0: "steps"}})


def test_bfloat16_computes_in_float32(tmp_path: Path) -> None:
    _, found = exported(tmp_path, lambda x: torch.exp(x) + x, torch.randn(8).bfloat16())
    assert found == ["Cast", "Exp", "Cast", "Cast", "Add", "Cast"]


def test_quantize_and_dequantize_stay(tmp_path: Path) -> None:
    def model(x: X, scales: X, zeros: X) -> X:
        x = torch.fake_quantize_per_tensor_affine(x, 0.05, 3, -128, 127)
        return torch.fake_quantize_per_channel_affine(x, scales, zeros, 1, 0, 255)

    scales, zeros = torch.rand(4) * 0.1 + 0.01, torch.tensor([3, 0, 7, 100], dtype=torch.int32)
    _, found = exported(tmp_path, model, torch.randn(3, 4), scales, zeros)
    assert [kind for kind in found if "Quantize" in kind or "Dequantize" in kind] == [
        *("QuantizeLinear", "DequantizeLinear", "QuantizeLinear", "DequantizeLinear")
    ]


def test_complex_numbers_inside(tmp_path: Path) -> None:
    def rotate(x: X, angles: X) -> X:
        turns = torch.polar(torch.ones_like(angles), angles)
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns[None]).flatten(-2)

    exported(tmp_path, rotate, torch.randn(3, 5, 8), torch.randn(5, 4), dynamic=({0: "batch"}, None))

    def spectral(x: X, weight: X) -> X:
        waves = torch.einsum("bix,io->box", torch.fft.rfft(x), torch.view_as_complex(weight))
        return torch.fft.irfft(waves @ torch.complex(x[0, :1, :5].mT, x[0, 1:2, :5].mT) + waves, n=8)

    exported(tmp_path, spectral, torch.randn(2, 3, 8), torch.randn(3, 4, 2))


@pytest.mark.parametrize("name", test_decompose_complex.OPERATORS)
def test_operators_on_complex_numbers(name: str, tmp_path: Path) -> None:
    """What native code takes, by the same formulas."""

    def model(a: X, b: X) -> X:
        z, w = torch.complex(a, b), torch.complex(b, a + 1)
        return test_decompose_complex.real(test_decompose_complex.OPERATORS[name](z, w, a - b))

    exported(tmp_path, model, *torch.randn(2, 4, 4))


def test_preserved_module_calls_may_be_complex(tmp_path: Path) -> None:
    model, x = test_decompose_complex.Calling(), torch.randn(3, 2)
    program = ingot.capture(model, (x,), preserve_module_call_signature=("inner",))
    assert ingot.export_onnx(program, tmp_path / "m.onnx").differences


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda x: torch.view_as_complex(x) * 2, r"1 operator .*\n +output: .* a result is one"),
        (
            lambda x: (torch.view_as_complex(x) * 2).acos().real,
            r"1 operator .*\n +aten.acos.default: .* complex numbers",
        ),
        (test_decompose_complex._branching, r"1 operator .*\n +cond: there is no rule for complex numbers"),
    ],
    ids=["a result", "no rule", "a branch"],
)
def test_only_what_must_be_complex_is_refused(model: Callable[..., Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedByOnnx, match=words):
        exported(tmp_path, model, torch.randn(3, 2))


def test_a_complex_argument_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedByOnnx, match=r"1 operator .*\n +.*an argument is one"):
        exported(tmp_path, lambda z: (z * 2).abs(), torch.randn(3, dtype=torch.complex64))


def test_a_transform_is_one_node(tmp_path: Path) -> None:
    def model(x: X) -> X:
        return torch.view_as_real(torch.fft.fft(torch.view_as_complex(x)))

    _, kinds = exported(tmp_path, model, torch.randn(3, 8, 2, dtype=torch.float64))
    assert kinds == ["DFT"]


@pytest.mark.parametrize("opset", [18, 20])
def test_fourier_transforms(opset: int, tmp_path: Path) -> None:
    def model(x: X) -> Any:
        return torch.fft.fft2(x).real, torch.fft.irfft(torch.fft.rfft(x, norm="ortho"), n=7)

    exported(tmp_path, model, torch.randn(3, 6, 8), opset=opset)


def test_sizes_that_only_the_run_tells(tmp_path: Path) -> None:
    def model(x: X) -> Any:
        places = x.nonzero()
        return places * 2, x[x > 0].sin(), torch.ones(places.shape[0])

    exported(tmp_path, model, torch.randn(4, 3), dynamic=({0: "n"},))


def test_expressions_of_sizes(tmp_path: Path) -> None:
    def model(x: X) -> Any:
        half = x.shape[1] // 2
        return x[:, :half].reshape(-1), x.new_zeros(x.shape[0] * 2 + 1, half), x.mean() * (x.shape[0] / 3)

    report, _ = exported(tmp_path, model, torch.randn(4, 6), dynamic=({0: "n", 1: "m"},))
    assert len(report.differences) == 3


def test_a_loop_that_draws_random_numbers_is_reported(tmp_path: Path) -> None:
    report, _ = exported(tmp_path, lambda x: x + torch.rand_like(x), torch.randn(4))
    assert report.random and "random" in str(report)


def test_zeros_before_a_max_pool_count(tmp_path: Path) -> None:
    exported(tmp_path, lambda x: F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2), -torch.rand(1, 2, 6, 6) - 1)


@pytest.mark.parametrize("dim", [0, 1])
def test_running_products_and_extremes_along_a_dim_that_is_not_a_number(dim: int, tmp_path: Path) -> None:
    def model(x: X, n: X, b: X) -> Any:
        return (*x.cummax(dim), *x.cummin(dim), *n.cummax(dim), *n.cummin(dim), *b.cummax(dim), x.cumprod(dim))

    x = torch.tensor([[1.0, 3.0, 3.0, -1.0], [2.0, -torch.inf, torch.nan, 5.0], [2.0, 7.0, 0.0, torch.nan]])
    n = torch.tensor([[3, 3, -9, 4], [3, 5, 5, -(2**63)], [0, 1, 2, 3]])
    dynamic = ({0: "rows", 1: "columns"},) * 3
    report, found = exported(tmp_path, model, x, n, n > 2, dynamic=dynamic)
    assert found.count("Scan") == 6 and len(report.differences) == 3


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("align", [False, True])
def test_antialiased_images_at_sizes_that_only_the_run_tells(mode: str, align: bool, tmp_path: Path) -> None:
    def model(x: X, like: X) -> X:
        return F.interpolate(x, tuple(like.shape), mode=mode, align_corners=align, antialias=True)

    x, like = torch.randn(2, 3, 9, 7), torch.empty(5, 11)
    dynamic = ({2: "h", 3: "w"}, {0: "a", 1: "b"})
    report, _ = exported(tmp_path, model, x, like, dynamic=dynamic)
    assert len(report.differences) == 3 and len(report.inputs) == 2


@pytest.mark.parametrize("dynamic", [None, ({0: "rows"},)])
def test_running_logs_of_sums(dynamic: Any, tmp_path: Path) -> None:
    rows = [[-torch.inf, 1.0, 88.0], [-torch.inf, -2.0, -90.0], [3.0, torch.inf, 89.0], [0.0, torch.inf, 1.0]]
    x = torch.tensor(rows)
    exported(tmp_path, lambda x: (x.logcumsumexp(0), x.logcumsumexp(1)), x, dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [None, ({0: "rows", 1: "columns"},)])
def test_runs_of_equal_values(dynamic: Any, tmp_path: Path) -> None:
    """As decoders of CTC have them."""

    def model(ids: X) -> Any:
        whole = torch.unique_consecutive(ids, return_inverse=True, return_counts=True)
        return *whole, *torch.unique_consecutive(ids, dim=0, return_counts=True), ids.float().unique_consecutive()

    ids = torch.tensor([[1, 1, 2], [1, 1, 2], [2, 0, 0], [2, 0, 0], [2, 0, 1]])
    report, _ = exported(tmp_path, model, ids, dynamic=dynamic)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    if dynamic:
        found = session.run(None, {report.inputs[0]: np.zeros((0, 3), np.int64)})
        assert all(not len(part) for part in found)


@pytest.mark.parametrize("dynamic", [None, ({0: "rows", 1: "columns"},)])
def test_rolls_further_than_there_is(dynamic: Any, tmp_path: Path) -> None:
    def model(x: X) -> Any:
        half = x.shape[0] // 2
        return x.roll(1), x.roll(-19), x.roll((7, -8), (0, 1)), x.roll(half, 0), x.roll(0, 0)

    report, _ = exported(tmp_path, model, torch.randn(3, 4), dynamic=dynamic)
    if dynamic:
        session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
        for shape in ((0, 4), (1, 1), (5, 2)):
            x = torch.randn(shape)
            for mine, own in zip(session.run(None, {report.inputs[0]: x.numpy()}), model(x), strict=True):
                assert torch.equal(torch.from_numpy(mine), own)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("edge", ["zeros", "border", "reflection"])
def test_grids_over_volumes(mode: str, edge: str, tmp_path: Path) -> None:
    def model(x: X, grid: X) -> X:
        return F.grid_sample(x, grid, mode, edge, align_corners=False)

    x, grid = torch.randn(2, 3, 4, 5, 6), torch.rand(2, 2, 3, 2, 3) * 3 - 1.5
    exported(tmp_path, model, x, grid, dynamic=({0: "batch", 2: "depth"}, {0: "batch"}))
    with pytest.raises(UnsupportedByOnnx, match="from opset 20 on"):
        exported(tmp_path, model, x, grid, opset=18)


def test_places_along_a_dim(tmp_path: Path) -> None:
    def model(x: X, places: X) -> Any:
        ordered, first = torch.take_along_dim(x, x.argsort(1), 1), torch.take_along_dim(x[:1], places, -2)
        return ordered, first, torch.take_along_dim(x, places, 1), x.take_along_dim(places)

    x, places = torch.randn(3, 4, 2), torch.tensor([0, 3, 1, 1, 2, 0]).reshape(3, 2, 1)
    report, _ = exported(tmp_path, model, x, places, dynamic=({0: "batch"}, {0: "batch", 1: "count"}))
    assert len(report.differences) == 3


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_each_row_as_often_as_a_tensor_says(dtype: torch.dtype, tmp_path: Path) -> None:
    """As speech synthesis lengthens phonemes."""

    def model(x: X, counts: X) -> X:
        return x.repeat_interleave(counts, 0)

    report, _ = exported(
        tmp_path, model, torch.randn(4, 2), torch.tensor([1, 0, 3, 2], dtype=dtype), dynamic=({0: "n"}, {0: "n"})
    )
    assert len(report.differences) == 3


def test_the_median_of_nothing(tmp_path: Path) -> None:
    exported(tmp_path, lambda x: x.median(), torch.zeros(0, 5))


def test_a_running_product_of_what_may_be_nothing(tmp_path: Path) -> None:
    def model(x: X) -> X:
        return x[x > 0].cumprod(0)

    report, _ = exported(tmp_path, model, torch.tensor([1.0, 0.5, -1.0, 2.0]))
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {report.inputs[0]: -np.ones(4, np.float32)})
    assert found.shape == (0,)


def test_integers_of_a_range_with_fractions(tmp_path: Path) -> None:
    def ranges(x: X) -> tuple[X, X]:
        five, two = (torch.arange(*given, dtype=torch.int64) for given in ((2.1, -2.9, -1.0), (0.1, -7.9, -4.0)))
        return five + x, two + x

    exported(tmp_path, ranges, torch.tensor(1))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
def test_images_of_bytes(mode: str, antialias: bool, tmp_path: Path) -> None:
    def resized(image: X) -> X:
        return F.interpolate(image, size=(7, 3), mode=mode, antialias=antialias)

    image = torch.randint(0, 256, (2, 3, 5, 11), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    report, _ = exported(tmp_path, resized, image)
    assert report.runner == "ONNX Runtime" and report.largest_difference == 0


def test_float64_is_not_rounded_by_attributes(tmp_path: Path) -> None:
    """Attributes have 32 bits: what would need one that they do not hold is spelled out, for ONNX Runtime to run."""

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            norms = (nn.LayerNorm(8, eps=1e-3), nn.GroupNorm(2, 4, eps=1e-3), nn.BatchNorm1d(4, eps=1e-3))
            self.layers = nn.Sequential(*norms, nn.GELU(), nn.LeakyReLU(0.3), nn.Hardswish())

        def forward(self, x: X) -> X:
            made = self.layers(x)
            return torch.addmm(made[0], torch.log1p(made[1].abs()), made[2].mT @ made[2], beta=0.3, alpha=0.7)

    report, _ = exported(tmp_path, Layers().double(), torch.randn(3, 4, 8, dtype=torch.float64))
    assert report.runner == "ONNX Runtime"
    assert report.largest_difference is not None and report.largest_difference < 1e-14


def test_a_factor_beside_a_product_keeps_its_digits(tmp_path: Path) -> None:
    """ONNX Runtime would take a single number into the product, as an attribute of 32 bits."""

    def model(x: X, y: X, column: X) -> Any:
        scores = x @ y.mT
        narrow = (x @ column) * 0.1, (x[0] @ column[0, :, 0]) * 0.1
        return scores * 0.3, scores / 8**0.5, (x * 0.7) @ y.mT, F.scaled_dot_product_attention(x, y, y), *narrow

    x, y, column = (torch.randn(2, size, 8, dtype=torch.float64) for size in (5, 5, 1))
    report, _ = exported(tmp_path, model, x, y, column.mT, dynamic=({1: "n"}, {1: "m"}, None))
    assert report.runner == "ONNX Runtime"
    assert report.largest_difference is not None and report.largest_difference < 1e-13


@pytest.mark.parametrize("seed", range(3))
def test_a_deep_model_in_float64(seed: int, tmp_path: Path) -> None:
    """Nothing more exact tells how far torch's own float64 is off: float32 does, in its coarser roundings."""
    torch.manual_seed(seed)
    layers = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())]
    report, _ = exported(tmp_path, nn.Sequential(*layers).double(), torch.randn(4, 64, dtype=torch.float64))
    assert report.largest_difference is not None and report.largest_difference < 1e-13


def test_what_is_in_order_is_drawn_in_order(tmp_path: Path) -> None:
    """At other sizes too: of boundaries that are not, torch and ONNX may say what they like."""
    dynamic = ({0: "n"}, {0: "edges"})
    report, _ = exported(tmp_path, torch.bucketize, torch.randn(4), torch.linspace(-1, 1, 5), dynamic=dynamic)
    assert len(report.differences) == 3


@pytest.mark.parametrize("opset", [18, NEWEST_OPSET])
def test_draws_of_a_single_number(opset: int, tmp_path: Path) -> None:
    report, _ = exported(tmp_path, torch.normal, torch.zeros(()), torch.ones(()), opset=opset)
    assert report.random and report.runner is not None


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_the_largest_of_integers(dtype: torch.dtype, tmp_path: Path) -> None:
    """Kernels have floats alone, which hold integers of up to 32 bits; what is whole is not rounded."""

    def pooled(x: X) -> X:
        return F.max_pool2d(x, 3, 2, 1, ceil_mode=True).floor()

    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = torch.randint(low, high, (2, 3, 9, 8), generator=torch.Generator().manual_seed(0)).to(dtype)
    exported(tmp_path, pooled, x)
