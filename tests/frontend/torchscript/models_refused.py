"""Scripts that cannot be programs, and why."""

from typing import List, Optional

import torch
from torch import nn


def grows(x):
    parts: List[torch.Tensor] = []
    while bool(x.sum() < 10):
        x = x + 1
        parts.append(x)
    return torch.stack(parts)


def grows_a_tensor(x):
    while bool(x.sum() < 10):
        x = torch.cat([x, x])
    return x


def picks_from_a_list(x):
    parts = [x, x + 1, x + 2, x + 3]
    return parts[int(x.sum())]


def one_side_is_none(x):
    y: Optional[torch.Tensor] = None
    if bool(x.sum() > 0):
        y = x + 1
    if y is not None:
        return y
    return x


def always_raises(x):
    if x.dim() == 1:
        raise ValueError("the model is out of order")
    return x


def writes_one_of_two(x):
    y = x
    if bool(x.sum() > 0):
        y = x + 1
    y.add_(1)
    return x, y


def a_tuple_or_none(x):
    while True:
        x = x * 0.5
        if bool(x.sum() < 1):
            return x, 1


@torch.jit.ignore
def left_to_python(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def calls_python(x):
    return left_to_python(x) + 1


def named_by_a_value(x):
    found = {"none": x}
    found["item {}".format(int(x.sum()))] = x
    return found


def fails(x):
    y = x + 1
    return y.view(2, 5)


def casts_in_a_branch(x):
    if bool(x.sum() > 0):
        with torch.autocast("cpu"):
            x = torch.outer(x, x) @ x
    return x


def only_defaults(by: float = 2.0):
    return torch.ones(3) * by


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x):
        self.count = self.count + 1
        return x * self.count


class Remembering(nn.Module):
    seen: List[int]

    def __init__(self) -> None:
        super().__init__()
        self.seen = [0]

    def forward(self, x):
        if bool(x.sum() > 0):
            self.seen[0] = self.seen[0] + 1
        return x * self.seen[0]
