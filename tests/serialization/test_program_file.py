"""save and load: what goes into a file comes out again, the same bytes each time."""

from __future__ import annotations

import copy
import hashlib
import math
import os
import subprocess
import sys
import types
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.utils import _pytree

import ingot
from ingot.errors import (
    InputError,
    SaveError,
)
from ingot.ir import metadata
from ingot.ir.program import PassRecord, Program
from ingot.ir.pytree import ResultRecord
from ingot.serialization import program_file
from ingot.serialization.program_file import load, save
from ingot_runtime import open_container
from tests.frontend.checks import assert_same

SOURCE = Path(program_file.__file__).parents[2]


@torch.library.custom_op("ingot_test_file::double", mutates_args=())
def double(x: torch.Tensor, times: int) -> torch.Tensor:
    return x * 2**times


@double.register_fake
def _(x: torch.Tensor, times: int) -> torch.Tensor:
    return torch.empty_like(x)


@dataclass
class Answer:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...]
    note: str | None = None


class Pair:
    """A container that pytree knows, with a context that is more than its keys."""

    def __init__(self, parts: list[torch.Tensor], settings: Any) -> None:
        self.parts, self.settings = parts, settings


_pytree.register_pytree_node(Pair, lambda p: (p.parts, p.settings), lambda parts, settings: Pair(list(parts), settings))


# ---------------------------------------------------------------------- models, each with a difficulty


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight
        self.alias = nn.Parameter(self.embed.weight.detach())  # another object, the same memory
        self.row = nn.Parameter(self.embed.weight.detach()[2], requires_grad=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids)) + self.alias.sum() * self.row.mean()


class Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("cache", torch.zeros(3, 4), persistent=False)
        self.register_buffer("unused", torch.empty(0, 5), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.cache.copy_(x[:3])
        return self.norm(x) + self.cache.sum() * self.count


class Constants(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.arange(8.0).reshape(2, 4).t()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.table + torch.tensor([1.0, math.inf]).clamp(max=3.0)


class Sizes(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        batch, seq = x.shape
        folded = y.reshape(batch, seq, 2)
        pad = -seq % 4
        found = x.flatten().nonzero()
        product = x.new_ones(batch, 1 + seq // 4, 4, 2 + seq // 4)  # a product that sympy could write in two ways
        return folded.sum(-1) + x, nn.functional.pad(x, (0, pad)), z[: z.shape[0] // 2], found, product.sum(0)


class Flow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        size = x.shape[0]
        chosen = torch.cond(x.sum() > 0, lambda h: self.fc(h) * size, lambda h: h - 1, (x,))
        _, grown = torch.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, h * 1.5), (torch.tensor(0), chosen))
        last, steps = torch._higher_order_ops.scan(lambda h, row: (h + row, h * row), x.new_zeros(4), x)
        return grown, last, steps


class Modes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = self.fc(x)
        with torch.no_grad():
            frozen = self.fc(x)
        return half.float() + double(x, 2), frozen


class Nested(nn.Module):
    def forward(self, x: torch.Tensor, *, pairs: dict[str, Any], pair: Pair, scale: float, name: str) -> Any:
        out = x * pairs["a"][0] + pairs["b"] + pair.parts[0]
        literals = {"nan": scale, "inf": -math.inf, "dtype": torch.bfloat16, "name": name, "i": 2**80, "z": 1 - 2j}
        return Answer(out, (out.sin(), out.cos())), literals, Pair([out], ("x", [1, None]))


class Dtypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.brain = nn.Parameter(torch.randn(3, 4, dtype=torch.bfloat16))
        self.wave = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.wide = nn.Parameter(torch.randn(4, dtype=torch.complex128))
        self.conv = nn.Conv2d(3, 5, 2).to(memory_format=torch.channels_last)
        self.register_buffer("mask", torch.tensor([True, False, True, True]))
        self.register_buffer("small", torch.randn(4).to(torch.float8_e4m3fn))
        self.register_buffer("row", torch.arange(4.0).expand(3, 4))
        self.register_buffer("holes", torch.arange(8.0)[::2])
        self.register_buffer("conjugate", torch.randn(4, dtype=torch.complex64).conj())
        self.register_buffer("bits", torch.tensor([1, 2], dtype=torch.uint16))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        image = self.conv(x.expand(1, 3, 4, 4).contiguous())
        waves = torch.view_as_real(self.wave * self.conjugate * x), torch.view_as_real(self.wide.conj() * x)
        rest = self.small.float() + self.holes + self.row.sum(0) + torch.where(self.mask, x, -x)
        return self.brain.float() @ x.t(), *waves, image, rest + self.bits.to(torch.int32).sum()


def _x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


def _nested_arguments() -> dict[str, Any]:
    pairs = {"a": [_x(2), True], "b": _x(2)}
    return {"pairs": pairs, "pair": Pair([_x(2)], {"n": 1, "t": (1.0, "x")}), "scale": math.nan, "name": "é\u2028"}


CASES: dict[str, Callable[[], Program]] = {
    "tied": lambda: ingot.capture(Tied(), (torch.tensor([0, 2, 5]),)),
    "buffers": lambda: ingot.capture(Buffers().train(), (_x(5, 4),)),
    "constants": lambda: ingot.capture(Constants(), (_x(3, 4),)),
    "sizes": lambda: ingot.capture(
        Sizes(),
        (_x(3, 6), _x(3, 12), _x(8)),
        dynamic_shapes={
            "x": {0: torch.export.Dim("batch", min=1, max=64), 1: "seq"},
            "y": {0: "batch", 1: "2*seq"},
            "z": {0: "auto"},
        },
    ),
    "flow": lambda: ingot.capture(Flow(), (_x(3, 4),), dynamic_shapes={"x": {0: "rows"}}),
    "modes": lambda: ingot.capture(Modes(), (_x(2, 4),), preserve_module_call_signature=["fc"]),
    "nested": lambda: ingot.capture(Nested(), (_x(2),), _nested_arguments()),
    "dtypes": lambda: ingot.capture(Dtypes(), (_x(4),)),
    "concrete": lambda: ingot.capture(
        lambda x, w: x * w, (_x(4), torch.ones(4)), concrete_args={"w": torch.arange(4.0)}
    ),
    "same": lambda: ingot.capture(lambda x, y: x + y, (shared := _x(4), shared)),
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def round_trip(program: Program, folder: Path) -> Program:
    """Saves, loads and compares; saving what was loaded gives the same bytes."""
    first, second = folder / "first.ingot", folder / "second.ingot"
    save(program, first)
    loaded = load(first)
    save(loaded, second)
    assert first.read_bytes() == second.read_bytes()
    assert str(loaded) == str(program)
    for name in ("dims", "constraints", "module_calls", "parameter_names", "training", "dialect"):
        assert getattr(loaded, name) == getattr(program, name), name
    assert repr(loaded.signature) == repr(program.signature)
    _assert_same_state(loaded.state_dict, program.state_dict)
    _assert_same_state(loaded.constants, program.constants)
    loaded.verify()
    return loaded


def _assert_same_state(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    assert list(got) == list(want)
    for name, tensor in want.items():
        mine = got[name]
        assert mine.dtype == tensor.dtype and mine.requires_grad == tensor.requires_grad, name
        assert isinstance(mine, nn.Parameter) == isinstance(tensor, nn.Parameter), name
        assert mine.is_leaf and mine._base is None
        raw = [t.detach().resolve_conj().contiguous().flatten().view(torch.uint8) for t in (mine, tensor)]
        assert torch.equal(*raw) and mine.shape == tensor.shape, name
        if tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last):
            assert mine.stride() == tensor.stride(), name
        assert [n for n in got if got[n] is mine] == [n for n in want if want[n] is tensor], name


@pytest.mark.parametrize("name", CASES)
def test_round_trip(name: str, tmp_path: Path) -> None:
    program = CASES[name]()
    loaded = round_trip(program, tmp_path)
    assert program.example_inputs is not None and loaded.example_inputs is not None
    args, kwargs = program.example_inputs
    mine = loaded.example_inputs
    for _ in range(2):  # the second call sees what the first one wrote
        assert_same(loaded(*mine[0], **mine[1]), program(*copy.deepcopy(args), **kwargs))
    _assert_same_state(loaded.state_dict, program.state_dict)


# ---------------------------------------------------------------------- tensors


def test_memory_is_shared_as_it_was(tmp_path: Path) -> None:
    loaded = round_trip(CASES["tied"](), tmp_path)
    state = loaded.state_dict
    assert state["head.weight"] is state["embed.weight"] and state["alias"] is not state["embed.weight"]
    with torch.no_grad():
        state["embed.weight"][2, 1] = 41.0
    assert state["alias"][2, 1] == 41.0 and state["row"][1] == 41.0
    with zipfile.ZipFile(tmp_path / "first.ingot") as archive:
        stored = safetensors.torch.load(archive.read("weights.safetensors"))
    assert [tensor.shape for tensor in stored.values()] == [(6, 4)]


def test_overlapping_views_share_one_piece_and_holes_are_not_kept(tmp_path: Path) -> None:
    memory = torch.arange(20.0)
    memory[10:] = math.nan  # what lies between the views is nobody's business

    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("low", memory[0:6])
            self.register_buffer("high", memory[4:10])
            self.register_buffer("raw", memory[8:9].view(torch.int32))
            self.register_buffer("far", memory[12:20:4])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.low + self.high + self.raw + self.far.sum().isnan()

    state = round_trip(ingot.capture(Windows(), (_x(6),)), tmp_path).state_dict
    state["low"][5] = -1.0
    state["high"][4] = -2.0
    assert state["high"][1] == -1.0 and state["raw"].view(torch.float32) == -2.0
    assert state["far"].is_contiguous() and state["far"].isnan().all()


def test_weights_are_the_pages_of_the_file_and_writes_stay_private(tmp_path: Path) -> None:
    program = ingot.capture(Buffers().train(), (_x(5, 4),))
    save(program, path := tmp_path / "m.ingot")
    before = path.read_bytes()
    loaded = load(path)
    pointers = [t.data_ptr() for t in loaded.state_dict.values()]
    assert max(pointers) - min(pointers) < len(before)
    loaded(_x(5, 4))
    assert loaded.state_dict["count"] == 1 and path.read_bytes() == before
    assert load(path).state_dict["count"] == 0


def test_strides(tmp_path: Path) -> None:
    state = round_trip(CASES["dtypes"](), tmp_path).state_dict
    assert state["conv.weight"].is_contiguous(memory_format=torch.channels_last)
    assert not state["conv.weight"].is_contiguous()
    assert state["row"].stride() == (0, 1) and state["row"].untyped_storage().nbytes() == 16
    assert state["holes"].is_contiguous()


def test_a_loaded_program_trains(tmp_path: Path) -> None:
    loaded = round_trip(ingot.capture(nn.Linear(4, 1), (_x(3, 4),)), tmp_path)
    loaded(_x(3, 4)).sum().backward()
    weight = loaded.state_dict["weight"]
    assert weight.grad is not None
    torch.optim.SGD([weight], lr=0.1).step()


@torch.no_grad()
def test_a_loaded_program_takes_every_other_form(tmp_path: Path) -> None:
    program = ingot.capture(Flow(), (_x(3, 4),), dynamic_shapes={"x": {0: "rows"}})
    loaded = round_trip(program, tmp_path)
    want = program(_x(5, 4))
    assert_same(loaded.copy()(_x(5, 4)), want)
    assert_same(loaded.module()(_x(5, 4)), want)
    assert_same(loaded.unflatten()(_x(5, 4)), want)
    assert_same(loaded.to_exported().module()(_x(5, 4)), want)


def test_large_examples_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = ingot.capture(nn.Linear(4, 1), (_x(3, 4),))
    monkeypatch.setattr(program_file, "EXAMPLE_LIMIT", 47)
    save(program, tmp_path / "m.ingot")
    assert load(tmp_path / "m.ingot").example_inputs is None
    with open_container(tmp_path / "m.ingot") as container:
        assert container.names == ("graph.json", "weights.safetensors")


# ---------------------------------------------------------------------- dims, classes, history


def test_a_loaded_program_checks_its_calls(tmp_path: Path) -> None:
    loaded = round_trip(CASES["sizes"](), tmp_path)
    with pytest.raises(InputError, match="batch in"):
        loaded(_x(65, 4), _x(65, 8), _x(8))
    with pytest.raises(InputError, match=r"2\*seq"):
        loaded(_x(2, 4), _x(2, 9), _x(8))
    out = loaded(_x(2, 5), _x(2, 10), _x(6))
    assert_same(out, tuple(Sizes()(_x(2, 5), _x(2, 10), _x(6))))


def test_constraints(tmp_path: Path) -> None:
    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] + y.shape[0] < 20 else x - 1

    loaded = round_trip(ingot.capture(forward, (_x(3), _x(4)), dynamic_shapes={"x": {0: "a"}, "y": {0: "b"}}), tmp_path)
    assert len(loaded.constraints) == 1 and "test_program_file.py" in loaded.constraints[0].source
    with pytest.raises(InputError, match="a \\+ b"):
        loaded(_x(12), _x(12))


def test_sources_and_module_stacks(tmp_path: Path) -> None:
    program = CASES["flow"]()
    loaded = round_trip(program, tmp_path)
    for mine, theirs in zip(loaded.graph.nodes, program.graph.nodes, strict=True):
        assert metadata.source_of(mine) == metadata.source_of(theirs)
        assert metadata.module_stack_of(mine) == metadata.module_stack_of(theirs)
        assert metadata.bindings_of(mine) == metadata.bindings_of(theirs)


def test_a_class_that_is_not_imported_comes_back_as_a_record(tmp_path: Path) -> None:
    module = types.ModuleType("ingot_test_departed")
    code = "from dataclasses import dataclass\n@dataclass\nclass Out:\n    y: object\n    n: int\n"
    sys.modules[module.__name__] = module
    exec(code, module.__dict__)
    program = ingot.capture(lambda x: module.Out(x + 1, 3), (_x(2),))
    save(program, tmp_path / "m.ingot")
    assert isinstance(load(tmp_path / "m.ingot")(_x(2)), module.Out)
    del sys.modules[module.__name__]
    out = load(tmp_path / "m.ingot")(_x(2))
    assert type(out) is ResultRecord and torch.equal(out.y, _x(2) + 1) and out.n == 3
    save(load(tmp_path / "m.ingot"), tmp_path / "again.ingot")
    assert (tmp_path / "again.ingot").read_bytes() == (tmp_path / "m.ingot").read_bytes()


def test_history_keeps_everything_but_the_clock(tmp_path: Path) -> None:
    program = CASES["constants"]()
    program.history = (PassRecord("constant_fold", 2, 0.125, 9, 7, (("keep", ("a", 1.5)), ("where", len))),)
    save(program, tmp_path / "m.ingot")
    (step,) = load(tmp_path / "m.ingot").history
    assert step == PassRecord(
        "constant_fold", 2, 0.0, 9, 7, (("keep", ("a", 1.5)), ("where", "<builtin_function_or_method>"))
    )


# ---------------------------------------------------------------------- the same bytes


_SCRIPT = """
import sys, torch
torch.set_num_threads(1)
import ingot
from ingot.serialization.program_file import save

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x, options, **extra):
        self.seen += x.shape[0] * x.shape[1]
        x = torch.cond(x.sum() > 0, lambda x: self.a(x), lambda x: self.b(x) * options["k"], (x,))
        kept = x.flatten().nonzero()
        return {"x": x, "kept": kept, "folded": x.reshape(x.shape[0] * x.shape[1], 4), **extra}

torch.manual_seed(0)
program = ingot.capture(
    Model(), (torch.ones(4, 2, 4), {"k": 2.5, "name": "n"}), {"c": torch.ones(2), "b": torch.ones(2), "d": None},
    dynamic_shapes={"x": {0: "half", 1: "auto"}, "extra": {"c": {0: "c"}, "b": {0: "c"}}},
)
save(program, sys.argv[1])
"""


def test_the_same_bytes_in_another_process_folder_and_hash_seed(tmp_path: Path) -> None:
    script = tmp_path / "model.py"
    script.write_text(_SCRIPT)
    jobs = []
    for seed in ("0", "4242"):
        (tmp_path / seed).mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(SOURCE)}
        command = [sys.executable, str(script), "m.ingot"]
        jobs.append(subprocess.Popen(command, cwd=tmp_path / seed, env=environment))
    assert [job.wait(timeout=120) for job in jobs] == [0, 0]
    files = [tmp_path / seed / "m.ingot" for seed in ("0", "4242")]
    assert len({hashlib.sha256(path.read_bytes()).hexdigest() for path in files}) == 1
    assert len(load(files[0])(torch.ones(4, 2, 4), {"k": 2.5, "name": "n"}, c=_x(2), b=_x(2), d=None)["kept"]) > 0


# ---------------------------------------------------------------------- what cannot be saved


class _Opaque:
    pass


def _sparse() -> Program:
    program = ingot.capture(nn.Linear(2, 2), (_x(1, 2),))
    program.state_dict["weight"] = torch.eye(2).to_sparse()
    return program


def _unknown_function() -> Program:
    program = ingot.capture(torch.sin, (_x(2),))
    next(n for n in program.graph.nodes if n.op == "call_function").target = os.system
    return program


UNSAVABLE: dict[str, tuple[Callable[[], Program], str]] = {
    "literal": (lambda: ingot.capture(lambda x, o: x + 1, (_x(2), _Opaque())), "_Opaque"),
    "context": (lambda: ingot.capture(lambda x: x.parts[0], (Pair([_x(2)], _Opaque()),)), "class .*Pair"),
    "sparse": (_sparse, "the tensor weight"),
    "function": (_unknown_function, "system"),
    "surrogate": (lambda: ingot.capture(lambda x, s: x + 1, (_x(2), "\ud800")), "JSON"),
}


@pytest.mark.parametrize("name", UNSAVABLE)
def test_what_a_file_cannot_hold(name: str, tmp_path: Path) -> None:
    build, message = UNSAVABLE[name]
    program = build()
    (tmp_path / "m.ingot").write_bytes(b"older")
    with pytest.raises(SaveError, match=message):
        save(program, tmp_path / "m.ingot")
    assert [path.name for path in tmp_path.iterdir()] == ["m.ingot"]
    assert (tmp_path / "m.ingot").read_bytes() == b"older"
