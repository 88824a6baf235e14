"""Small models, one for each thing that a capture has to do with shared state."""

from __future__ import annotations

import functools
import math
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import ingot
from ingot.ir.program import Program


@dataclass(frozen=True)
class Case:
    """A model, example arguments and how it is captured."""

    model: Callable[[], Any]
    args: Callable[[], tuple[Any, ...]]
    options: dict[str, Any] = field(default_factory=dict)
    scripted: bool = False

    def capture(self, model: Any, args: tuple[Any, ...]) -> Program:
        if self.scripted:
            return ingot.from_torchscript(model, args, **self.options)
        return ingot.capture(model, args, **self.options)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) / math.sqrt(x.shape[0] * 4) + math.log2(x.shape[1])


class Largest(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(max(x.shape[0], x.shape[1])) + min(2, 3)


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


class Looping(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))[1]


class Casting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = self.linear(x)
        with torch.no_grad():
            z = x.exp()
        return y.float() + z.sum()


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count: torch.Tensor
        self.register_buffer("count", torch.zeros(()))
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.kind = "called"
        return self.norm(x) + self.count


class Telling(nn.Module):
    """Takes another path where it is exported."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] < 1000)
        torch._assert(x.shape[1] == 4, "four")
        return x + 1 if torch.compiler.is_exporting() else x.add(torch.tensor(1.0))


class Sharing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).contiguous()).to(torch.float32)


@functools.lru_cache
def table(size: int) -> torch.Tensor:
    return torch.arange(size).float()


class Remembering(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + table(x.shape[1])


class Compiled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.function = torch.compile(torch.sin, backend="eager")  # Inductor's results differ in the last bit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x) * 2


class Drawing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (2.0 if random.random() < 2 else 1.0)


class Mapped(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: row * row.sum())(x)


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = self.linear(x) / math.sqrt(4.0)
        return x


_scripting = threading.Lock()  # torch does not compile two scripts at a time; a capture may run beside it


def scripted() -> Any:
    with _scripting:
        return torch.jit.script(Scripted())


def rows(n: int = 3) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randn(n, 4),)


OPEN = {"x": {0: "rows"}}
CASES: dict[str, Case] = {
    "static": Case(lambda: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)), rows()),
    "dynamic": Case(Scaled, rows(), {"dynamic_shapes": OPEN}),
    "larger of two sizes": Case(Largest, rows(), {"dynamic_shapes": {"x": {0: "rows", 1: "columns"}}}),
    "cond": Case(Branching, rows()),
    "while_loop": Case(Looping, rows()),
    "autocast": Case(Casting, rows()),
    "autocast, dynamic": Case(Casting, rows(), {"dynamic_shapes": OPEN}),
    "buffers": Case(Counting, rows()),
    "exporting": Case(Telling, rows(), {"dynamic_shapes": OPEN}),
    "shared": Case(Sharing, rows(), {"preserve_module_call_signature": ("first",)}),
    "memory": Case(Remembering, rows()),
    "torch.compile": Case(Compiled, rows()),
    "random": Case(Drawing, rows()),
    "vmap": Case(Mapped, rows()),
    "script": Case(scripted, rows(2), scripted=True),
    "convolution": Case(
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.MaxPool2d(2)).eval(),
        lambda: (torch.randn(2, 2, 8, 8),),
        {"dynamic_shapes": {"input": {0: "n"}}},
    ),
    "lstm": Case(lambda: nn.LSTM(4, 3, batch_first=True).eval(), lambda: (torch.randn(2, 5, 4),)),
    "dropout": Case(lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval(), rows()),
    "embedding": Case(lambda: nn.Embedding(7, 3), lambda: (torch.tensor([[1, 2], [3, 0]]),)),
}
