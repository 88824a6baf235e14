"""Runs random networks of halves on the emulated GPU, with each pass of products on and off: every form must be right.

    python -m tests.targets.cuda.switch_sweep FIRST END

Networks are drawn so that the passes for bfloat16 and float16 change them, which networks of float32 do not show: rows
from one to more than a tile, norms, gates, residuals, products of one input. A result may be 4 times as far from
float64 as eager's.
"""

from __future__ import annotations

import collections
import copy
import os
import random
import sys
import warnings

import torch
import torch.nn.functional as F
from torch import nn

import ingot
from tests import progress
from tests.support.cuda_emulation.target import EMULATED, open_driver

SWITCHES = (
    "bulk_windows", "bulk_products", "bulk_gates", "bulk_rotations", "streams", "gates", "row_prologues", "chains",
    "chained_attention", "persistent_layers",
    "siblings", "map_groups", "narrow_buffers", "stored_values",
)  # fmt: skip
ROWS = (1, 1, 1, 2, 5, 8, 9, 61, 64, 128, 130)


class Gate(nn.Module):
    def __init__(self, width: int, inner: int, *, joined: bool, bias: bool) -> None:
        super().__init__()
        self.joined = joined
        self.up = nn.Linear(width, 2 * inner if joined else inner, bias=bias)
        self.gate = None if joined else nn.Linear(width, inner, bias=bias)
        self.down = nn.Linear(inner, width, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.up(x).chunk(2, -1) if self.gate is None else (self.gate(x), self.up(x))
        return self.down(F.silu(gate) * up)


class Feed(nn.Module):
    def __init__(self, width: int, inner: int, *, bias: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, inner, bias=bias), nn.Linear(inner, width, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, kind: str) -> torch.Tensor:
    """Heads [head, row, depth], of which columns i and i + depth / 2, or 2 · i and 2 · i + 1, are pairs."""
    if kind == "whole":
        first, second = x.chunk(2, -1)
        return x * torch.cat((cos, cos), -1) + torch.cat((-second, first), -1) * torch.cat((sin, sin), -1)
    first, second = x.chunk(2, -1) if kind == "halves" else (x[..., 0::2], x[..., 1::2])
    made = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat(made, -1) if kind == "halves" else torch.stack(made, -1).flatten(-2)


class Heads(nn.Module):
    """Heads behind one product, of which some are rotated, and attention of them."""

    angles: torch.Tensor

    def __init__(self, draw: random.Random, width: int, rows: int, *, bias: bool) -> None:
        super().__init__()
        self.depth, keys = draw.choice((16, 32, 64, 64, 128)), draw.choice((1, 2, 3))
        self.heads = (keys * draw.choice((1, 2, 4)), keys, keys)
        self.kind = draw.choice(("whole", "whole", "halves", "neighbours"))
        self.rotates = draw.choice(((True, True, False), (True, True, False), (True, False, False), (True, True, True)))
        self.keeps_keys, self.is_causal = draw.random() < 0.2, draw.random() < 0.6
        self.qkv = nn.Linear(width, sum(self.heads) * self.depth, bias=bias)
        self.out = nn.Linear(self.heads[0] * self.depth, width, bias=bias)
        self.register_buffer("angles", torch.randn(rows, self.depth // 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cos, sin = self.angles.cos(), self.angles.sin()
        parts = self.qkv(x).view(len(x), -1, self.depth).transpose(0, 1).split(self.heads, 0)
        parts = [rotate(one, cos, sin, self.kind) if on else one for one, on in zip(parts, self.rotates, strict=True)]
        q, k, v = (part[None] for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal, enable_gqa=True)
        y = self.out(y[0].transpose(0, 1).flatten(1))
        return y + k.sum() if self.keeps_keys else y


class Network(nn.Module):
    """Blocks with a norm before and a residual behind, the last one with a product of its own behind it."""

    def __init__(self, draw: random.Random, rows: int) -> None:
        super().__init__()
        width = draw.choice((256, 512, 1024))
        inner = draw.choice((512, 768, 1000, 1024))
        self.blocks = nn.ModuleList()
        self.norms = nn.ModuleList()
        for _ in range(draw.randint(1, 2)):
            bias = draw.random() < 0.5
            is_gate = draw.random() < 0.5
            gate = Gate(width, inner, joined=draw.random() < 0.6, bias=bias)
            other = Heads(draw, width, rows, bias=bias) if draw.random() < 0.6 else Feed(width, inner, bias=bias)
            self.blocks.append(gate if is_gate else other)
            self.norms.append(nn.RMSNorm(width) if draw.random() < 0.7 else nn.LayerNorm(width))
        self.keeps_norm = draw.random() < 0.3
        self.head = nn.Linear(width, draw.choice((7, 64, 520, 1031)))
        self.width = width

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        seen = x
        for norm, block in zip(self.norms, self.blocks, strict=True):
            seen = norm(x)
            x = x + block(seen)
        return (self.head(x), seen) if self.keeps_norm else (self.head(x),)


def check(seed: int, changed: collections.Counter[str]) -> list[str]:
    """What is wrong, for all passes and with each one off."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    dtype = draw.choice((torch.bfloat16, torch.float16))
    rows = draw.choice(ROWS)
    model = Network(draw, rows).eval().to(dtype)
    x = torch.randn(rows, model.width).to(dtype)
    exact = copy.deepcopy(model).double()(x.double())
    eager = model(x)
    wrong, texts = [], {}
    for switch in (None, *SWITCHES):
        compiled = ingot.compile(model, (x,), target=EMULATED, disable_passes=() if switch is None else (switch,))
        found = compiled(x)
        texts[switch] = compiled.source
        for number, (mine, theirs, right) in enumerate(zip(found, eager, exact, strict=True)):
            error, allowed = ((one.double() - right).abs().max() for one in (mine, theirs))
            if not error <= 4 * allowed + 1e-6 * right.abs().max():
                wrong.append(f"{seed} without {switch}: result {number} is off by {error:.2g}, eager by {allowed:.2g}")
        compiled.close()
    changed.update(str(switch) for switch, text in texts.items() if text != texts[None])
    return wrong


def main() -> int:
    first, end = map(int, sys.argv[1:])
    os.environ["INGOT_CUDA_DRIVER"] = str(open_driver().path)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    changed: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    with torch.no_grad():
        for seed in progress.count_done("networks", range(first, end)):
            wrong += check(seed, changed)
            print(f"{seed}: {len(wrong)} wrong so far", flush=True)
    print(f"{end - first} networks, {len(SWITCHES) + 1} schedules each, {len(wrong)} wrong")
    print(f"other texts without: {dict(changed)}")
    print(*wrong, sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
