"""Scripts that leave loops and branches early, and ways into a script besides `forward`."""

from typing import NamedTuple, Tuple

import torch
from torch import nn

from tests.frontend.torchscript.cases import GROWING, case, module, scripted, several

MIXED = several(*(torch.tensor(v) for v in ([1.0, 2, 3], [3, -2.5, 7], [0.0, 0, 0], [-9, 4, 1.5], [100.0, -3, 2])))


class Found(NamedTuple):
    value: torch.Tensor
    at: int


def without_condition(x):
    n = 0
    while True:
        x = x * 0.5
        n += 1
        if bool(x.abs().max() < 0.01):
            break
        if n > 6:
            break
    return x, n


def two_exits(x):
    total = torch.zeros(3)
    found = -1
    for i in range(4):
        for j in range(3):
            if bool(total.sum() > 20):
                break
            if bool((x[j] * i) < -4):
                found = i * 10 + j
                continue
            total = total + x * j
        if found > 12:
            break
    return total, found


def tuple_out_of_loops(x):
    for i in range(3):
        for j in range(3):
            if bool(x[i] < x[j]):
                return x[i] - x[j], i, j
    return x.sum(), -1, -1


def named_out_of_a_loop(x):
    i = 0
    while i < 3:
        if bool(x[i] < 0):
            return Found(x * 2, i)
        i += 1
    return Found(x * 3, 7)


def dict_out_of_a_loop(x):
    for i in range(3):
        if bool(x[i] < 0):
            return {"a": [x * i, x + 1]}
    y = x.exp()
    if bool(y.max() > 2):
        return {"a": [y, x]}
    return {"a": [y - 1, y]}


class Decoding(nn.Module):
    """A method that is not forward, and calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x)

    @torch.jit.export
    def decode(self, x, n: int):
        for _ in range(n):
            x = self.forward(x)
        return x


def turned_in_every_round(x):
    n = 0
    while bool(x.sum() < 30):
        x = x.transpose(0, 1) + 1 if bool(x[0, 1] > 0) else x.transpose(0, 1) * 0.5 + 2
        n += 1
    return x, n


def tripled(self, input: Tuple[torch.Tensor]) -> Tuple[torch.Tensor]:
    return (input[0] * 3,)


def raised(self, input: Tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
    return output + 10 * input[0]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = hooked()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * 2


def hooked() -> nn.Module:
    made = Layer()
    made.register_forward_pre_hook(tripled)
    made.register_forward_hook(raised)
    return made


case("while True", scripted(without_condition), MIXED, "while_loop")
case("loops with two exits", scripted(two_exits), MIXED, "while_loop")
case("tuple returned inside loops", scripted(tuple_out_of_loops), MIXED, "while_loop")
case("named tuple returned inside a loop", scripted(named_out_of_a_loop), MIXED, "while_loop")
case("dict of lists returned inside a loop", scripted(dict_out_of_a_loop), MIXED, "while_loop")
case("a method that calls forward", module(Decoding), [(torch.randn(3), 2) for _ in range(5)], method="decode")
case("hooks of the script itself", module(hooked), ((3,),))
case("hooks of a module inside", module(Around), GROWING)
case("transposed in every round", scripted(turned_in_every_round), ((3, 3),), "while_loop", "cond")
