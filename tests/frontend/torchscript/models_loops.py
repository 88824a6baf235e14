"""Scripts with loops, each with five sets of arguments."""

from typing import List

import torch
from torch import nn

from tests.frontend.torchscript.cases import GROWING, case, module, scripted, several

# TorchScript compiles these functions from their source, and knows fewer words than Python.


def counted(x, n: int):
    for i in range(n):
        x = x * 0.5 + i
    return x


def until(x):
    i = 0
    while bool(x.sum() < 100) and i < 20:
        x = x * 2
        i += 1
    return x, i


def data_count(x):
    n = int(x.abs().sum()) % 7
    y = torch.zeros_like(x)
    for i in range(n):
        y = y + x * i
    return y, n


def early_exit(x):
    total = torch.zeros(())
    for i in range(5):
        for j in range(4):
            total = total + x[0] * i + j
            if bool(total > 10):
                break
        if bool(total > 40):
            break
    return total


def continues(x):
    total = torch.zeros_like(x)
    for i in range(6):
        if bool((x * i).sum() > 8):
            continue
        total = total + x * i
    return total


def return_in_loop(x):
    for i in range(10):
        x = x + 1
        if bool(x.sum() > 12):
            return x * i
    return x - 100


def preallocated(x):
    out = torch.zeros(5, 3)
    for i in range(5):
        out[i] = x * i
        if bool(out.sum() > 20):
            break
    return out


def table(x):
    n = x.size(0)
    best = torch.zeros(n + 1)
    for i in range(1, n + 1):
        for j in range(i):
            best[i] = torch.maximum(best[i], best[j] + x[i - 1] / (j + 1))
    return best


def newton(x):
    y = x
    steps = 0
    while bool((y * y - x).abs().max() > 1e-3) and steps < 50:
        y = 0.5 * (y + x / y)
        steps += 1
    return y


def collatz(x):
    n = int(x[0])
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return torch.tensor(steps)


def running_float(x):
    decay = 1.0
    while bool(x.max() > 1):
        x = x * decay
        decay = decay * 0.75
    return x, decay


def in_place_carry(x):
    y = x.clone()
    for i in range(4):
        y += i
        y *= 2
    return y


def list_in_constant_loop(x):
    parts: List[torch.Tensor] = []
    for i in range(4):
        parts.append(x * i)
    return torch.stack(parts)


def over_a_list(x):
    total = x
    for k in [3, 1, 2]:
        total = total * k + k
    return total


def fixed_list_in_loop(x):
    pair = [x, x + 1]
    while bool(pair[0].sum() < 50):
        pair[0] = pair[0] + pair[1].abs() + 1
        pair[1] = pair[1] * 0.5
    return pair[0] - pair[1]


def nested_while(x):
    outer = 0
    while outer < 3:
        inner = 0
        while inner < outer + 1 and bool(x.sum() < 1000):
            x = x + inner
            inner += 1
        outer += 1
    return x


class Decoder(nn.Module):
    """Greedy decoding until an end token, as scripted models do it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 8)
        self.cell = nn.GRUCell(8, 8)
        self.out = nn.Linear(8, 7)

    def forward(self, state):
        token = torch.zeros(1, dtype=torch.long)
        tokens = torch.full((12,), -1, dtype=torch.long)
        length = 0
        finished = False
        while not finished and length < 12:
            state = self.cell(self.embed(token), state)
            token = self.out(state).argmax(1)
            tokens[length] = token[0]
            length += 1
            finished = bool(token[0] == 3)
        return tokens, length


def sequence(x):
    state = torch.zeros(x.size(1))
    for t in range(x.size(0)):
        state = torch.tanh(state + x[t])
    return state


case("loop over an int", scripted(counted), [(torch.randn(3), 4) for _ in range(5)], "while_loop")
case("while on values", scripted(until), GROWING, "while_loop")
case("number of rounds from values", scripted(data_count), GROWING, "while_loop")
case("nested loops, early exit", scripted(early_exit), GROWING, "while_loop")
case("continue", scripted(continues), GROWING, "while_loop", "cond")
case("return inside a loop", scripted(return_in_loop), GROWING, "while_loop", "cond")
case("loop that fills a tensor", scripted(preallocated), GROWING, "while_loop")
case("table filled by nested loops", scripted(table), ((4,),), "while_loop")
case("Newton's method", scripted(newton), several(*(torch.rand(3) + 0.1 for _ in range(5))), "while_loop")
case(
    "arithmetic on an int at run time",
    scripted(collatz),
    several(*(torch.tensor([k]) for k in (1, 2, 3, 6, 7))),
    "while_loop",
)
case(
    "float that a loop carries",
    scripted(running_float),
    several(*(torch.rand(3) * k for k in (1, 3, 9, 27, 0))),
    "while_loop",
)
case("in-place updates in a loop", scripted(in_place_carry), ((3,),), "while_loop")
case("list built in a constant loop", scripted(list_in_constant_loop), ((3,),))
case("loop over a list of ints", scripted(over_a_list), ((3,),))
case("list of fixed length in a loop", scripted(fixed_list_in_loop), GROWING, "while_loop")
case("nested while", scripted(nested_while), GROWING, "while_loop")
case("greedy decoder", module(Decoder), ((1, 8),), "while_loop")
case(
    "loop over an open dim",
    scripted(sequence),
    [(torch.randn(n, 3),) for n in (4, 2, 7, 3, 9)],
    "while_loop",
    dynamic={"x": {0: "steps"}},
)
