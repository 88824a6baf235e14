"""Scripts of every kind, each with five sets of arguments."""

from typing import Dict, List, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import nn

from tests.frontend.torchscript import models_quantized
from tests.frontend.torchscript.cases import GROWING, case, module, scripted, several, traced

# TorchScript compiles these functions from their source, and knows fewer words than Python.


# ---------------------------------------------------------------------- plain modules


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 3)

    def forward(self, x):
        return self.second(F.relu(self.first(x)))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4, eps=1e-3), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x).mean([2, 3]))


class Activations(nn.Module):
    """What oneDNN has operators of its own for."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1, groups=4)
        self.third = nn.Conv2d(8, 4, 1)
        self.act = nn.ModuleList([nn.ReLU6(), nn.Hardsigmoid(), nn.Hardswish()])

    def forward(self, x):
        x = self.act[0](self.norm(self.one(x)))
        x = self.act[1](self.two(x)) * 2.0 + x
        return self.act[2](self.third(x)).mean([2, 3])


class TwoNames(nn.Module):
    """A parameter that equals a buffer, which torch's own converter confuses, and one layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(4))
        self.register_buffer("mean", torch.zeros(4))
        self.a = nn.Linear(4, 4)
        self.b = self.a
        self.plain = torch.arange(4.0)

    def forward(self, x):
        self.mean.add_(x.mean(0))
        return self.a(self.b(x)) * (1 + self.scale) - self.mean + self.plain


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 6)
        self.out = nn.Linear(6, 10, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, ids):
        return self.out(self.embed(ids))


class Gru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 5, batch_first=True)

    def forward(self, x):
        y, last = self.gru(x)
        return y, last


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        y, _ = self.attention(x, x, x, need_weights=False)
        return y


case("linear and relu", module(Mlp), ((2, 4),))
case("convolution, batch norm, pooling", module(ConvNet), ((1, 3, 8, 8),))
case("equal parameter and buffer, shared layer", module(TwoNames), ((2, 4),))
case("tied weights", module(Tied), several(*(torch.randint(0, 10, (2, 5)) for _ in range(5))))
case("recurrent layer", module(Gru), ((2, 6, 3),))
case("attention layer", module(Attention), ((2, 5, 8),))
case("frozen net", lambda: torch.jit.freeze(torch.jit.script(ConvNet().eval())), ((1, 3, 8, 8),))
case(
    "net optimized for inference",
    lambda: torch.jit.optimize_for_inference(torch.jit.script(Activations().eval())),
    ((1, 3, 8, 8),),
    within=1e-5,
)
case("traced convolution net", traced(ConvNet, (1, 3, 8, 8)), ((1, 3, 8, 8),))
case(
    "traced mlp, open batch",
    traced(Mlp, (2, 4)),
    [(torch.randn(n, 4),) for n in (2, 3, 5, 7, 1)],
    dynamic={"x": {0: "batch"}},
)


def traced_sizes(x):
    return x.view(x.size(0) // 2, -1) * x.shape[1] + torch.zeros(x.size(0) // 2, x.size(1) * 2)


case(
    "traced arithmetic on sizes",
    traced(lambda: traced_sizes, (4, 3)),
    [(torch.randn(n, 3),) for n in (4, 6, 8, 10, 2)],
    dynamic={"x": {0: "2*half"}},
)


# ---------------------------------------------------------------------- branches


def branch(x):
    if bool(x.sum() > 0):
        y = x + 1
    else:
        y = x * 2
    return y


def branch_one_sided(x):
    y = x * 3
    if bool(x.sum() > 3):
        y = y - x
    return y


def written_after_a_branch(x):
    y = x * 3
    if bool(x.sum() > 3):
        y = y - x
    y += 1
    return y


def branch_numbers(x):
    k = 1
    f = 0.5
    if bool(x.sum() > 0):
        k = 3
        f = 2.5
    elif bool(x.sum() < -3):
        k = 5
    return x * k + f, k, f


def branch_writes(x):
    out = torch.zeros_like(x)
    if bool(x.sum() > 0):
        out.add_(x)
        out[0] = 5.0
    else:
        out[1:].sub_(1.0)
    return out


def branch_in_branch(x):
    if bool(x.sum() > 0):
        if bool(x.max() > 5):
            y = x.clamp(max=5)
        else:
            y = x + 0.25
    else:
        y = -x
    return y


def early_return(x):
    if bool(x.sum() > 0):
        return x * 2
    y = x + 1
    if bool(y.sum() < -2):
        return y * 3
    return y - 1


def and_or(x):
    n = int(x.numel())
    if (bool(x.sum() > 0) and n > 2) or bool(x.min() < -1):
        return x + n
    return x - n


def on_shape(x):
    if x.size(0) > 3:
        y = x.sum(0)
    else:
        y = x.mean(0) * 2
    return y


def guarded(x):
    if bool(torch.isnan(x).any()):
        raise ValueError("there is a nan")
    assert x.size(0) == 3, "three only"
    return x.sqrt()


def branch_on_tuple(x):
    pair = (x, 1)
    if bool(x.sum() > 0):
        pair = (x + 1, 2)
    return pair[0] * pair[1]


def branch_fills_list(x):
    parts = [x, x]
    if bool(x.sum() > 0):
        parts[1] = x + 1
    return torch.cat(parts)


case("branch", scripted(branch), GROWING, "cond")
case("branch with one side", scripted(branch_one_sided), GROWING, "cond")
case("written in place after a branch", scripted(written_after_a_branch), GROWING, "cond")
case("branch that gives numbers", scripted(branch_numbers), GROWING, "cond")
case("branch that writes in place", scripted(branch_writes), GROWING, "cond")
case("branch in a branch", scripted(branch_in_branch), GROWING, "cond")
case("early return", scripted(early_return), GROWING, "cond")
case("and, or", scripted(and_or), GROWING, "cond")
case(
    "branch on a size",
    scripted(on_shape),
    [(torch.randn(n, 2),) for n in (2, 5, 3, 4, 8)],
    "cond",
    dynamic={"x": {0: "n"}},
)
case("assertions", scripted(guarded), several(*(torch.rand(3) for _ in range(5))))
case("branch that gives a tuple", scripted(branch_on_tuple), GROWING, "cond")
case("branch that sets an item of a list", scripted(branch_fills_list), GROWING, "cond")


# ---------------------------------------------------------------------- lists, dicts, optionals, objects


class Pair(NamedTuple):
    value: torch.Tensor
    count: int


@torch.jit.script
class Scaler:
    def __init__(self, by: float):
        self.by = by
        self.seen: List[int] = []

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x.dim())
        return x * self.by


class Attributes(nn.Module):
    table: Dict[str, torch.Tensor]
    limit: Optional[float]

    def __init__(self, limit: Optional[float]) -> None:
        super().__init__()
        self.table = {"a": torch.ones(3), "b": torch.arange(3.0)}
        self.limit = limit
        self.sizes = [1, 2, 3]
        self.name = "two"

    def forward(self, x):
        y = x + self.table["a"] * self.sizes[1]
        limit = self.limit
        if limit is not None:
            y = y.clamp(max=limit)
        if self.name == "two":
            y = y * 2
        return {"y": y, "b": self.table["b"] + x}


def optionals(x, scale: Optional[float] = None, bias: Optional[torch.Tensor] = None):
    if scale is not None:
        x = x * scale
    if bias is not None:
        x = x + bias
    return x


def lists_and_dicts(x):
    d: Dict[str, List[torch.Tensor]] = {}
    d["a"] = [x, x + 1]
    d["b"] = [x * 2]
    d["a"].extend(d["b"])
    total = torch.zeros_like(x)
    for key in d.keys():
        for item in d[key]:
            total = total + item
    if "c" in d:
        total = total * 100
    return total, len(d["a"]), [part.sum() for part in d["a"]]


def named(x):
    pair = Pair(x + 1, 3)
    return Pair(pair.value * pair.count, x.size(0))


def objects(x):
    scaler = Scaler(2.5)
    y = scaler.apply(x)
    z = scaler.apply(y.unsqueeze(0))
    return z, scaler.seen


def text(x, mode: str):
    name = "mode-{}".format(mode)
    if name.startswith("mode-s") and len(name) == 8:
        return x.sum()
    return x.mean()


def helper(x, k: int):
    return x * k


def forks(x):
    one = torch.jit.fork(helper, x, 2)
    two = torch.jit.fork(helper, x + 1, 3)
    return torch.jit.wait(one) + torch.jit.wait(two)


def no_grad(x):
    with torch.no_grad():
        y = x * 2
    return y + x


def autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = torch.outer(x, x) @ x
    return y, y.float() @ x


def largest(x):
    return torch.max(x.reshape(1, 3), 1)


def pick_with_unpacking(x: List[torch.Tensor]):
    a, b = x
    first, second = torch.split(a, [1, 2])
    return torch.cat([second, first]) * b


case("dict, optional, list and text attributes", module(lambda: Attributes(1.5)), ((3,),))
case("optional attribute that is None", module(lambda: Attributes(None)), ((3,),))
case("optional arguments", scripted(optionals), [(torch.randn(3), 2.0, torch.randn(3)) for _ in range(5)])
case("optional arguments left out", scripted(optionals), [(torch.randn(3),) for _ in range(5)])
case("lists and dicts", scripted(lists_and_dicts), ((3,),))
case("named tuples", scripted(named), ((3,),))
case("objects of a script class", scripted(objects), ((3,),))
case("text", scripted(text), [(torch.randn(3), "sum")] * 5)
case("fork and wait", scripted(forks), ((3,),))
case("no_grad", scripted(no_grad), ((3,),))
case("autocast", scripted(autocast), ((3,),))
case("several results of an operator", scripted(largest), ((3,),))
case(
    "list argument, unpacking, split",
    scripted(pick_with_unpacking),
    [([torch.randn(3), torch.randn(3)],) for _ in range(5)],
)


# ---------------------------------------------------------------------- methods and state


class Methods(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        return self.encode(x).sum()

    @torch.jit.export
    def encode(self, x):
        return torch.tanh(self.layer(x))

    @torch.jit.export
    def count(self, x, by: float = 2.0):
        self.steps += by
        return x + self.steps


class Switching(nn.Module):
    """A buffer that is assigned inside a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.zeros(3))

    def forward(self, x):
        if bool(x.sum() > self.largest.sum()):
            self.largest = x.clone()
        return self.largest + 1


class ByModules(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])
        self.by_name = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()})

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x) + i
        for _, act in self.by_name.items():
            x = act(x)
        return x


class Training(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(x) * (2 if self.training else 3)


case("forward that calls a method", module(Methods), ((2, 3),))
case("a method of its own", module(Methods), ((2, 3),), method="encode")
case("a method that counts, with a default", module(Methods), ((3,),), method="count")
case("buffer assigned in a branch", module(Switching), GROWING, "cond")
case("module list and module dict", module(ByModules), ((2, 3),))
case("batch norm that trains", lambda: torch.jit.script(Training()), ((4, 3),))
case("batch norm in eval", module(Training), ((4, 3),))


# ---------------------------------------------------------------------- quantized

IMAGES = ((2, 3, 14, 14),)

case("quantized net, scripted", lambda: torch.jit.script(models_quantized.static()), IMAGES, within=1e-6)
case("quantized net, traced", traced(models_quantized.static, (2, 3, 14, 14)), IMAGES, within=1e-6)
case("dynamically quantized net", lambda: torch.jit.script(models_quantized.dynamic()), ((2, 16),), within=1e-5)
