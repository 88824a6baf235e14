"""Small models with each kind of kernel, on the GPU of this machine.

python -m tests.targets.cuda.gpu.cases [NAME …]         a line for each; also under compute-sanitizer
"""

from __future__ import annotations

import contextlib
import copy
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import ingot
from benchmarks.support import cuda_models
from ingot.lowering.loop_module import Precision
from tests.support.weight_only_layers import Coded, quantized
from tests.targets.cuda.streams.decoder_layers import CachedLayer, DecoderSizes

DTYPES = (torch.float32, torch.bfloat16)
# Cases that are run in float32 with products in tf32, too.
TF32 = (
    "linear", "linear, deep", "conv", "conv by two", "conv of an image", "products of many blocks",
    "products of rows that fill no tile", "two products of 61 rows", "products of one input", "a gate",
)  # fmt: skip


class Function(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.function(*args)


class GatedLayer(nn.Module):
    """Of one row: a norm and a gate in the kernel of a streamed product, and a residual in that of another."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = cuda_models.RmsNorm(width)
        self.up, self.down = nn.Linear(width, 2 * hidden, bias=False), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.up(self.norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class RotatedHeads(nn.Module):
    """Of one row: heads that are rotated in the kernel of the product."""

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.norm, self.heads, self.q = cuda_models.RmsNorm(width), heads, nn.Linear(width, heads * depth, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return cuda_models.rotate(self.q(self.norm(x)).view(1, self.heads, -1), cos, sin)


class RotatedRows(nn.Module):
    """Of many rows: queries and keys that are rotated in the kernel of the product, which copies the values."""

    def __init__(self, width: int, heads: tuple[int, int, int], depth: int) -> None:
        super().__init__()
        self.heads, self.depth, self.qkv = heads, depth, nn.Linear(width, sum(heads) * depth, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(1, len(x), -1, self.depth).transpose(1, 2).split(self.heads, 1)
        q, k = cuda_models.rotate(q, cos, sin), cuda_models.rotate(k, cos, sin)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2) + 0


class TokenLayers(nn.Module):
    """Of one token: layers whose products and attention are one kernel."""

    at: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        sizes = DecoderSizes(width=1024, heads=16, key_heads=4, length=600, hidden=1024, layers=4)
        self.layers = nn.ModuleList(CachedLayer(sizes) for _ in range(sizes.layers))
        for name, cache in self.layers.named_buffers():
            cache.copy_(torch.randn(cache.shape, generator=torch.Generator().manual_seed(len(name))))
        self.register_buffer("at", torch.tensor([500]))

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        mask = (torch.arange(600, device=x.device) <= self.at[:, None])[None, None]
        for layer in self.layers:
            x = layer(x, cos, sin, self.at, mask)
        return x


def attend_in_groups(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def attend_causally(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class Projections(nn.Module):
    """Products of one input; with a gate, what the first one lets through of the second one."""

    def __init__(self, terms: int, *columns: int, gated: bool = False) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(terms, n) for n in columns)
        self.gated = gated

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = [part(x) for part in self.parts]
        return F.silu(made[0]) * made[1] if self.gated else torch.cat(made, -1)


class CodedLinear(Coded):
    """A layer with a weight of integers, whose numbers are of the dtype of its rows: in float64, exact ones."""

    def _apply(self, *args: Any, **kwargs: Any) -> CodedLinear:
        super()._apply(*args, **kwargs)
        self.scales = self.scales.float()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype is torch.float64:
            groups = self.scales.reshape(self.codes.shape[0], -1).shape[1]
            scales, zeros = (
                one.double().reshape(-1, groups).repeat_interleave(self.codes.shape[1] // groups, 1)
                for one in (self.scales, self.zeros)
            )
            return F.linear(x, (self.codes.double() - zeros) * scales, self.bias)
        given = (self.codes, self.scales, self.zeros)
        rounded = {} if x.dtype is torch.float32 else {"out_dtype": x.dtype}
        if self.group is None:
            weight = quantized.dequantize_per_channel(*given, 0, self.low, self.high, self.dtype, **rounded)
        else:
            ends = (self.low, self.high, self.dtype)
            weight = quantized.dequantize_per_channel_group(*given, *ends, self.group, x.dtype)
        return F.linear(x, weight, self.bias)


def coded_cases() -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    r = torch.randn
    return {
        "4 bits, one row": (CodedLinear(2048, 3072, 32), (r(1, 2048),)),
        "4 bits, eight rows": (CodedLinear(5632, 2048, 128, zeros=True, bias=True), (r(8, 5632),)),
        "4 bits, nine rows": (CodedLinear(2048, 2048, 64), (r(9, 2048),)),
        "4 bits, odd": (CodedLinear(1029, 2053, 7, zeros=True), (r(3, 1029),)),
        "4 bits, groups of three fragments": (CodedLinear(1536, 1024, 48, dtype=torch.uint8), (r(2, 1536),)),
        "4 bits, many rows": (CodedLinear(2048, 2048, 32), (r(512, 2048),)),
        "8 bits, one row": (CodedLinear(2048, 11264, None, bits=8), (r(1, 2048),)),
        "8 bits, eight rows": (CodedLinear(2048, 2048, 32, bits=8, zeros=True), (r(8, 2048),)),
        "8 bits, 32 rows": (CodedLinear(2048, 2048, None, bits=8, bias=True), (r(32, 2048),)),
        "8 bits, primes": (CodedLinear(1031, 2053, None, bits=8, dtype=torch.uint8, zeros=True), (r(1, 1031),)),
        "8 bits, many rows": (CodedLinear(2048, 2048, None, bits=8), (r(512, 2048),)),
    }


def cases() -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    r = torch.randn
    return {
        "pointwise": (Function(lambda x, y: torch.sin(x) * y.t() + torch.erf(x)), (r(70, 50), r(50, 70))),
        "softmax": (Function(lambda x: x.softmax(-1)), (r(300, 1000),)),
        "sum of all": (Function(lambda x: x.sum()), (r(3000, 100),)),
        "sum over the first dim": (Function(lambda x: x.sum(0)), (r(3000, 100),)),
        "layer norm": (nn.LayerNorm(768), (r(64, 768),)),
        "sort": (Function(lambda x: x.sort(-1).values), (r(10, 1000),)),
        "cumsum": (Function(lambda x: x.cumsum(-1)), (r(10, 1000),)),
        "linear": (nn.Linear(256, 512), (r(100, 256),)),
        "linear, one row": (nn.Linear(2048, 512), (r(1, 2048),)),
        "linear, streamed": (nn.Linear(2048, 3072), (r(1, 2048),)),
        "linear, streamed, odd": (nn.Linear(2056, 2053), (r(3, 2056),)),
        "linear, streamed, eight rows": (nn.Linear(5632, 2048), (r(8, 5632),)),
        "gated layer, streamed": (GatedLayer(2048, 5632), (r(1, 2048),)),
        "gated layers, in one kernel": (
            nn.Sequential(GatedLayer(2048, 5632), GatedLayer(2048, 1000), GatedLayer(2048, 5632)),
            (r(1, 2048),),
        ),
        "gated layer, four rows": (GatedLayer(768, 1016), (r(4, 768),)),
        "layers of a token": (TokenLayers(), (r(1, 1, 1024), r(1, 64), r(1, 64))),
        "rotated heads, streamed": (RotatedHeads(2048, 32, 64), (r(1, 2048), r(1, 64), r(1, 64))),
        "rotated heads, many rows": (RotatedRows(2048, (32, 8, 8), 64), (r(512, 2048), r(512, 64), r(512, 64))),
        "rotated heads, odd rows": (RotatedRows(768, (6, 2, 2), 128), (r(301, 768), r(301, 128), r(301, 128))),
        "rotated heads, 2048 rows": (RotatedRows(2048, (32, 8, 8), 64), (r(2048, 2048), r(2048, 64), r(2048, 64))),
        "linear, deep": (nn.Linear(4096, 64), (r(32, 4096),)),
        "conv": (nn.Conv2d(64, 64, 3, padding=1), (r(2, 64, 28, 28),)),
        "conv by two": (nn.Conv2d(64, 128, 3, stride=2, padding=1), (r(3, 64, 29, 28),)),
        "conv of every other pixel": (nn.Conv2d(256, 512, 1, stride=2), (r(4, 256, 14, 14),)),
        "conv, deep": (nn.Conv2d(512, 512, 3, padding=1), (r(5, 512, 7, 7),)),
        "conv of an image": (nn.Conv2d(3, 64, 7, stride=2, padding=3), (r(2, 3, 224, 224),)),
        "depthwise": (nn.Conv2d(64, 64, 3, padding=1, groups=64), (r(2, 64, 28, 28),)),
        "attention": (Function(F.scaled_dot_product_attention), (r(2, 4, 200, 64), r(2, 4, 200, 64), r(2, 4, 200, 64))),
        "attention, one query": (
            Function(F.scaled_dot_product_attention),
            (r(1, 8, 1, 64), r(1, 8, 900, 64), r(1, 8, 900, 64)),
        ),
        "attention of many blocks": (
            Function(F.scaled_dot_product_attention),
            (r(4, 16, 512, 64), r(4, 16, 512, 64), r(4, 16, 512, 64)),
        ),
        "ALiBi of many blocks": (
            cuda_models.FlexAttention(cuda_models.alibi),
            (r(2, 16, 1024, 64), r(2, 16, 1024, 64), r(2, 16, 1024, 64)),
        ),
        "attention, one token": (Function(attend_in_groups), (r(1, 32, 1, 64), r(1, 8, 1000, 64), r(1, 8, 1000, 64))),
        "attention, one token, deep": (
            Function(attend_in_groups),
            (r(1, 32, 1, 128), r(1, 8, 3000, 128), r(1, 8, 3000, 128)),
        ),
        "attention, long": (
            Function(F.scaled_dot_product_attention),
            (r(1, 48, 4096, 64), r(1, 48, 4096, 64), r(1, 48, 4096, 64)),
        ),
        "ALiBi, long": (
            cuda_models.FlexAttention(cuda_models.alibi),
            (r(1, 24, 4096, 64), r(1, 24, 4096, 64), r(1, 24, 4096, 64)),
        ),
        "attention, causal": (Function(attend_causally), (r(1, 32, 500, 64), r(1, 8, 500, 64), r(1, 8, 500, 64))),
        "attention, deep": (Function(attend_causally), (r(2, 16, 2050, 128), r(2, 4, 2050, 128), r(2, 4, 2050, 128))),
        "attention, deep, few": (Function(attend_causally), (r(1, 16, 500, 128), r(1, 4, 500, 128), r(1, 4, 500, 128))),
        "products of many blocks": (nn.Linear(768, 3072), (r(4096, 768),)),
        "products of rows that fill no tile": (nn.Linear(768, 2304), (r(4001, 768),)),
        "two products of many rows": (_feed_forward(768, 3072), (r(4095, 768),)),
        "two products of 128 rows": (_feed_forward(768, 3072), (r(128, 768),)),
        "two products of 61 rows": (_feed_forward(768, 3072), (r(61, 768),)),
        "products of one input": (Projections(768, 768, 768, 768), (r(4096, 768),)),
        "products of one input, 128 rows": (Projections(768, 768, 768, 768), (r(128, 768),)),
        "products of one input, unlike": (Projections(2048, 2048, 256, 256), (r(512, 2048),)),
        "a gate": (Projections(2048, 5632, 5632, gated=True), (r(512, 2048),)),
        "shared terms of 512 rows": (nn.Linear(5632, 2048), (r(512, 5632),)),
        **coded_cases(),
        "ALiBi": (cuda_models.FlexAttention(cuda_models.alibi), (r(1, 4, 256, 64), r(1, 4, 256, 64), r(1, 4, 256, 64))),
    }


def _feed_forward(width: int, inner: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))


def judge(name: str, dtype: torch.dtype, precision: Precision = "float32") -> tuple[float, float, float]:
    """The largest errors of compiled code and of eager against float64, and the largest value."""
    model, args = cases()[name]
    mine = copy.deepcopy(model).eval().to("cuda", dtype)
    given = tuple(arg.to("cuda", dtype) for arg in args)
    with torch.no_grad(), warnings.catch_warnings(), multiply_in(precision):
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        exact = copy.deepcopy(mine).double()(*[arg.double() for arg in given])
        eager = float((mine(*given).double() - exact).abs().max())
        compiled = ingot.compile(mine, given, target="cuda", precision=precision)
        ours = float((compiled(*given).double() - exact).abs().max())
    return ours, eager, float(exact.abs().max())


@contextlib.contextmanager
def multiply_in(precision: Precision) -> Iterator[None]:
    """Has torch multiply float32 in this precision."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=precision == "tf32"):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def uses_tensor_cores(ours: float, largest: float) -> bool:
    """Whether an error is one of products in tf32: those of float32 are far nearer."""
    return ours > 2e-5 * largest


def is_right(ours: float, eager: float, largest: float) -> bool:
    return ours <= 4 * eager + 2e-6 * largest


def main() -> int:
    warnings.simplefilter("ignore")
    wrong = 0
    for name in sys.argv[1:] or cases():
        forms: list[tuple[torch.dtype, Precision]] = [(dtype, "float32") for dtype in DTYPES]
        for dtype, precision in [*forms, *([(torch.float32, "tf32")] if name in TF32 else [])]:
            shown = f"{name} {precision if precision == 'tf32' else dtype}"
            try:
                errors = judge(name, dtype, precision)
            except Exception as error:
                wrong += 1
                print(f"{shown}: FAILED {type(error).__name__}: {str(error)[:1500]}")
                traceback.print_exc(limit=-3)
                continue
            right = is_right(*errors) and (precision != "tf32" or uses_tensor_cores(errors[0], errors[2]))
            wrong += not right
            found = "right" if right else "WRONG"
            print(f"{shown}: {found} ours {errors[0]:.3g} eager {errors[1]:.3g}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main() > 0)
