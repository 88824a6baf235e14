"""Models with one difficulty of torch.export each, and comparisons of programs with them."""

from __future__ import annotations

import copy
import io
import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram, export
from torch.utils import _pytree as pytree

from ingot.ir.program import Program

Pair = namedtuple("Pair", ["first", "second"])


@dataclass
class Known:
    """Registered with torch, as torch.export asks of a class it returns."""

    hidden: torch.Tensor
    extra: torch.Tensor | None = None
    pair: tuple[torch.Tensor, ...] | None = None


torch.export.register_dataclass(Known, serialized_type_name="tests.interop.exported_models.Known")


@dataclass
class Unknown:
    """Never registered by its author: to_exported does it."""

    hidden: torch.Tensor
    extra: torch.Tensor | None = None
    scale: int = 2


class State(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("offset", torch.randn(4))
        self.register_buffer("factor", torch.randn(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x + self.offset) * self.factor


class MutatedBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("last", torch.zeros(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        self.last.copy_(x[0])
        return self.norm(x) + self.count


class MutatedInput(nn.Module):
    def forward(self, x: torch.Tensor, cache: dict[str, torch.Tensor]) -> torch.Tensor:
        cache["keys"][:, 1] = x[:, 0]
        return cache["keys"] + x


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids))


class Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.randn(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table + torch.tensor([1.0, 2.0, 3.0, 4.0])


class Literals(nn.Module):
    def forward(self, x: torch.Tensor, bias: None, times: int, mode: str, *, flag: bool, rate: float) -> Any:
        y = x * times if mode == "mul" else x + times
        return y * rate if flag else y, times, None, mode


class Keywords(nn.Module):
    def forward(self, x: torch.Tensor, *rest: torch.Tensor, scale: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
        return x * scale + sum(rest) - more["shift"]


class Nested(nn.Module):
    def forward(self, x: torch.Tensor, pair: Pair) -> dict[str, Any]:
        return {
            "list": [x + pair.first, (x, None, 3)],
            "ordered": OrderedDict(b=x * pair.second, a=x),
            "pair": Pair(x - 1, x + 1),
            "int": {7: x},
        }


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.fc(x), lambda x: x - 1, (x,))


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.fc(x) @ x.t()
            with torch.autocast("cpu", enabled=False):
                z = self.fc(x)
        return (y + 1).float(), z


class NoGrad(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            y = self.fc(x)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                z = self.fc(y)
        return self.fc(y), z


class Repeated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.inner(self.fc(x)))


class Dataclass(nn.Module):
    def forward(self, x: torch.Tensor, given: Known) -> Known:
        return Known(x + given.hidden, None, (x, x * 2))


class Related(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
        return x[1:] + y, z.repeat(2), x.shape[0] * 2


class Guarded(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] % 2 == 0 and x.shape[0] > 3:
            return x.view(x.shape[0] // 2, -1)
        return x


class DynamicInt(nn.Module):
    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        return x.new_ones(n + 1, 4).sum(0) + x * n


class Unbacked(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = x.nonzero()
        return found + 1, x[x > 0]


@dataclass(frozen=True)
class Case:
    """A module, its arguments, and other arguments that fit its dynamic shapes."""

    build: Callable[[], nn.Module]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] | None = None
    dynamic: Any = None
    others: tuple[tuple[Any, ...], ...] = ()
    options: dict[str, Any] | None = None


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X = numbers(3, 4)
batch = Dim("batch", min=2, max=64)
CASES: dict[str, Case] = {
    "state": Case(State, (X,)),
    "mutated-buffer": Case(MutatedBuffer, (X,)),
    "mutated-buffer-eval": Case(lambda: MutatedBuffer().eval(), (X,)),
    "mutated-input": Case(MutatedInput, (X, {"keys": numbers(3, 4)})),
    "tied": Case(Tied, (torch.tensor([[1, 2, 3]]),)),
    "constant": Case(Constant, (X,)),
    "literals": Case(Literals, (X, None, 3, "mul"), {"flag": True, "rate": 0.5}),
    "keywords": Case(Keywords, (X, X, X), {"scale": X, "shift": X}),
    "nested": Case(Nested, (X, Pair(X, X))),
    "cond": Case(Branch, (X,), others=((X - 10,),)),
    "autocast": Case(Autocast, (X,), dynamic=({0: batch},), others=((numbers(5, 4),),)),
    "no-grad": Case(NoGrad, (X,)),
    "repeated": Case(Repeated, (X,), options={"preserve_module_call_signature": ("fc", "inner")}),
    "dataclass": Case(Dataclass, (X, Known(X, None, None))),
    "named-dim": Case(State, (X,), dynamic=({0: batch},), others=((numbers(2, 4),), (numbers(7, 4),))),
    "derived-dim": Case(
        Related,
        (numbers(8), numbers(7), numbers(14)),
        dynamic=({0: batch + 1}, {0: batch}, {0: 2 * batch}),
        others=((numbers(6), numbers(5), numbers(10)),),
    ),
    "auto-dim": Case(Guarded, (numbers(6, 4),), dynamic=({0: Dim.AUTO, 1: Dim.AUTO},), others=((numbers(8, 6),),)),
    "dynamic-int": Case(DynamicInt, (X, 5), dynamic=(None, Dim.DYNAMIC), others=((X, 8),)),
    "unbacked": Case(Unbacked, (X,)),
}
FORMS = ("strict", "non-strict", "decomposed")


def exported(case: Case, model: nn.Module, form: str) -> ExportedProgram:
    args, kwargs = copy.deepcopy((case.args, case.kwargs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own parts, and of tensors that are not buffers
        options = {"dynamic_shapes": case.dynamic, **(case.options or {})}
        ep = export(model, args, kwargs, strict=form == "strict", **options)
        return ep.run_decompositions() if form == "decomposed" else ep


def check(run: Callable[..., Any], model: nn.Module, case: Case) -> None:
    """Two calls of each give the same results, and leave arguments the same."""
    for args in (case.args, case.args, *case.others):
        ours, theirs = copy.deepcopy(args), copy.deepcopy(args)
        got = run(*ours, **(case.kwargs or {}))
        expected = model(*theirs, **(case.kwargs or {}))
        same(got, expected)
        same(ours, theirs)


def same(got: Any, expected: Any) -> None:
    got_leaves, got_spec = pytree.tree_flatten(got)
    leaves, spec = pytree.tree_flatten(expected)
    assert got_spec == spec
    for a, b in zip(got_leaves, leaves, strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=2e-2 if b.dtype is torch.bfloat16 else 1e-5, atol=1e-5)
        else:
            assert a == b


def same_state(program: Program, model: nn.Module) -> None:
    for name, buffer in model.named_buffers():
        for held in (program.state_dict, program.constants):
            if name in held:
                torch.testing.assert_close(held[name], buffer)


def reloaded(ep: ExportedProgram) -> ExportedProgram:
    file = io.BytesIO()
    torch.export.save(ep, file)
    file.seek(0)
    with warnings.catch_warnings():
        # Before torch 2.13 it makes its tensors of bytes that are read only.
        warnings.filterwarnings("ignore", message="The given buffer is not writable", category=UserWarning)
        return torch.export.load(file)
