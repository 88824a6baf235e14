"""Random modules with state that they read and write, in every order.

make(7) -> a module and its arguments
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

ROWS, WIDTH = 5, 4

# Statements: {s} and {o} are two states, {v} and {w} values of the same shape, {i} an index of {n} rows, {r} rows.
_WRITES = (
    "{s}.index_copy_(0, {i}, {r})",
    "{s}[{i}] = {r}",
    "{s}[{i}] += {r}",
    "{s}.index_put_(({i},), {r}, accumulate=True)",
    "{s}[1:3] = {v}[:2]",
    "{s}[:, 2] = {v}[:, 0]",
    "{s}.add_({v})",
    "{s}.mul_(0.5)",
    "{s}.copy_({v})",
    "{s}.copy_({o})",
    "{s}.copy_({s}.flip(0))",
    "{s}.copy_(torch.roll({s}, 1, 0) + {v})",
    "{s}.copy_({s} * 0.5 + {o}.flip(1))",
    "{s}.copy_({v} @ torch.eye(4) + {s})",
    "{s}.copy_(torch.softmax({s} + {v}, -1))",
)
_VALUES = (
    "{s} + {v}",
    "{s}.clone()",
    "{s}.flip(0)",
    "{s} * {o}",
    "{s} - {s}.mean()",
    "torch.softmax({s}, -1)",
    "{v} @ {s}.T @ {s}",
    "torch.relu({v}) - {w}",
    "{s}[many].mean(0) + {v}",
)


@dataclass(frozen=True)
class StateProgram:
    seed: int
    text: str

    def model(self) -> nn.Module:
        torch.manual_seed(self.seed)
        scope: dict[str, Any] = {"torch": torch, "nn": nn}
        exec(compile(self.text, f"<state program {self.seed}>", "exec"), scope)
        made: nn.Module = scope["Net"]().eval()
        return made

    def arguments(self, draw: int = 0) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(31 * self.seed + draw)
        places = torch.randperm(ROWS, generator=generator)
        return torch.randn(ROWS, WIDTH, generator=generator), places[:1], places[1:4]


def make(seed: int) -> StateProgram:
    rng = random.Random(seed)
    values = ["x"]
    lines = []
    for _ in range(rng.randint(2, 7)):
        s, o = rng.sample(("self.a", "self.b"), 2)
        v, w = rng.choice(values), rng.choice(values)
        at, count = rng.choice((("one", 1), ("many", 3)))
        names = {"s": s, "o": o, "v": v, "w": w, "i": at, "r": f"{rng.choice((v, w))}[:{count}]"}
        if rng.random() < 0.6:
            lines.append(rng.choice(_WRITES).format(**names))
        else:
            name = f"v{len(lines)}"
            lines.append(f"{name} = {rng.choice(_VALUES).format(**names)}")
            values.append(name)
    results = rng.sample(values, min(len(values), 2)) + rng.sample(["self.a + 0", "self.b", "x"], 1)
    text = "\n".join(
        [
            "class Net(nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
            f"        self.register_buffer('a', torch.randn({ROWS}, {WIDTH}))",
            f"        self.register_buffer('b', torch.randn({ROWS}, {WIDTH}))",
            "    def forward(self, x, one, many):",
            *(f"        {line}" for line in lines),
            f"        return {', '.join(results)},",
        ]
    )
    return StateProgram(seed, text)
