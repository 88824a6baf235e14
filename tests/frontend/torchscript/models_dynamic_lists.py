"""Scripts with lists that are as long as a run makes them."""

from typing import List

import torch
from torch import nn

from tests.frontend.torchscript.cases import case, module, scripted

STEPS = [(torch.randn(n, 2, 3),) for n in (4, 2, 7, 1, 3)]
OPEN = {"x": {0: "steps"}}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(3, 5)

    def forward(self, x):
        h = torch.zeros(x.size(1), 5)
        c = torch.zeros(x.size(1), 5)
        out: List[torch.Tensor] = []
        for t in range(x.size(0)):
            h, c = self.cell(x[t], (h, c))
            out.append(h)
        return torch.stack(out, dim=1), torch.cat(out, -1), out[0] + out[-1], len(out), h


class Unbound(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        out: List[torch.Tensor] = []
        h = torch.zeros(2, 3)
        for row in x.unbind(0):
            h = torch.tanh(self.layer(row) + h)
            out += [h]
        return torch.stack(out)


def begun_before(x):
    out = [torch.zeros(2, 3)]
    for t in range(x.size(0)):
        out.append(out[-1] * 0.5 + x[t])
    out.append(x.sum(0))
    return torch.stack(out), torch.stack(out[1:]), torch.stack(out[:-1]), len(out)


def backwards(x):
    out: List[torch.Tensor] = []
    h = torch.zeros(2, 3)
    for t in range(x.size(0) - 1, -1, -1):
        h = h * 0.5 + x[t]
        out.append(h)
    out.reverse()
    return torch.stack(out)


def nested(x):
    out: List[torch.Tensor] = []
    for t in range(x.size(0)):
        inner: List[torch.Tensor] = []
        for k in range(x.size(1)):
            inner.append(x[t, k] * k)
        out.append(torch.stack(inner))
    doubled = [2 * item for item in out]
    return torch.stack(doubled)


case("list of an open length", module(Recurrent), STEPS, "while_loop", dynamic=OPEN)
case("unbind of an open dim", module(Unbound), STEPS, "while_loop", dynamic=OPEN)
case("list begun before the loop", scripted(begun_before), STEPS, "while_loop", dynamic=OPEN)
case("list filled backwards", scripted(backwards), STEPS, "while_loop", dynamic=OPEN)
case("lists of open lengths, nested", scripted(nested), STEPS, "while_loop", dynamic=OPEN)


# ---------------------------------------------------------------------- refused


def one_tensor_all_along(x):
    out: List[torch.Tensor] = []
    h = torch.zeros(2, 3)
    for t in range(x.size(0)):
        h += x[t]
        out.append(h)
    return torch.stack(out)


def written_afterwards(x):
    out: List[torch.Tensor] = []
    h = torch.zeros(2, 3)
    for t in range(x.size(0)):
        h = h + x[t]
        out.append(h)
    h.zero_()
    return torch.stack(out)


def rows_written_afterwards(x):
    out: List[torch.Tensor] = []
    for t in range(x.size(0)):
        out.append(x[t])
    x.zero_()
    return torch.stack(out)


def given_out(x):
    out: List[torch.Tensor] = []
    for t in range(x.size(0)):
        out.append(x[t] + 1)
    return out


def two_a_round(x):
    out: List[torch.Tensor] = []
    for t in range(x.size(0)):
        out.append(x[t] + 1)
        out.append(x[t])
    return torch.stack(out)
