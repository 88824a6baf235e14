"""Hashes of the emitted C text and of the packed weights, to show that a change leaves both as they were.

    python -m tests.support.source_hashes --write BEFORE.json [--only PREFIX ...] [--every N]
    python -m tests.support.source_hashes --write AFTER.json --compare BEFORE.json

Names are `small:…` (models that use every kind of kernel), `sample:…` (the operator samples of `make test`),
`zoo:static:…`, `zoo:dynamic:…` and `bench:…`. What the file has already is left out, so that a run goes on where the
last one stopped; `--every` takes each N-th model of the zoo. With `--compare` only what the other file has is hashed,
and the exit code is 1 where anything differs.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import flex_attention as flex

from ingot.api import capture
from ingot.autograd.trainable_model import TrainableModel
from ingot.compiler import OPTIONAL_PASSES, _run_pipeline, run_cpu_pipeline
from ingot.ir.metadata import value_of
from ingot.ir.program import Program
from ingot.pipelines import TRAINING
from ingot.targets.cpu.target import CPU
from tests import progress
from tests.support import int8_layers
from tests.support.kernel_functions import ATTENDING, COMBINING, HEADS, LENGTH, combine_along, masking, scoring
from tests.support.kernel_models import CASES, model_of, x
from tests.support.pipeline_fixtures import emit_program
from tests.support.weight_only_layers import Coded, Several

# Programs to hash as one item; a model that trains is two.
Capture = Callable[[], list[Program]]
KERNELS = ("int8", "packed_codes", "depthwise", "winograd")


@dataclass(frozen=True, slots=True)
class Item:
    name: str
    programs: Capture
    options: dict[str, Any] = field(default_factory=dict)


def hash_program(program: Program, *, precision: Any = "float32", disabled: Sequence[str] = ()) -> str:
    """The hashes of the text and of the weights of a program that `run_cpu_pipeline` gave, shortened."""
    text, weights = emit_program(program, precision=precision, disabled=disabled)
    text = re.sub(r"(support/\w+\.py):\d+", r"\1", text)  # lines of the models here, which say nothing about the text
    return f"{hashlib.sha256(text.encode()).hexdigest()[:24]} {hashlib.sha256(weights).hexdigest()[:24]}"


def capture_model(
    make: Callable[[], Any], args: Callable[[], Any], kwargs: dict[str, Any] | None = None, dynamic_shapes: Any = None
) -> Capture:
    """What captures a model once, however often it is asked."""

    @functools.cache
    def programs() -> list[Program]:
        torch.manual_seed(0)
        return [run_cpu_pipeline(capture(make(), tuple(args()), kwargs, dynamic_shapes=dynamic_shapes))]

    return programs


# ---------------------------------------------------------------------- small models


class Flex(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        case = ATTENDING[name]
        self.tables = nn.ParameterList(nn.Parameter(t, t.is_floating_point()) for t in case.tables())
        self.case = case

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        tables = list(self.tables)
        blocks = None
        if self.case.mask is not None:
            blocks = flex.create_block_mask(
                masking(self.case, tables), q.shape[0], HEADS, q.shape[2], LENGTH, device="cpu"
            )
        return flex.flex_attention(q, k, v, scoring(self.case, tables), blocks)


class Scanned(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.case = COMBINING[name]
        self.tables = nn.ParameterList(torch.rand(6) + 0.5 for _ in range(self.case.learned))

    def forward(self, *xs: torch.Tensor) -> Any:
        return combine_along(self.case, xs, list(self.tables), 1, False)


class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 20, 70))

    def forward(self, a: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        import transformers.integrations.moe  # noqa: F401  registers the operator

        made: torch.Tensor = torch.ops.transformers.grouped_mm_fallback(a, self.weight, ends)
        return made


class Chain(nn.Module):
    """Products of the same rows, a residual of two branches, few rows and many."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(width, 100), nn.Linear(width, 100), nn.Linear(100, width)

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        q, k, v = self.q(a), self.k(a), self.v(a)
        a = a + self.o(torch.softmax(q @ k.mT, -1) @ v)
        return self.down(F.silu(self.gate(a)) * self.up(a)) + self.q(a)


CONVOLUTIONS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "3x3 many": (lambda: nn.Conv2d(32, 48, 3, padding=1), (1, 32, 17, 19)),
    "3x3 uneven": (lambda: nn.Conv2d(80, 80, 3, padding=2, bias=False), (2, 80, 14, 14)),
    "3x3 wide": (lambda: nn.Conv2d(256, 256, 3, padding=1), (1, 256, 14, 14)),
    "3x3 few": (lambda: nn.Conv2d(12, 20, 3, padding=1), (1, 12, 9, 9)),
    "stem": (lambda: nn.Conv2d(3, 64, 7, 2, 3), (1, 3, 32, 32)),
    "stem dilated": (lambda: nn.Conv2d(3, 16, 3, dilation=2), (1, 3, 32, 32)),
    "grouped": (lambda: nn.Conv2d(24, 36, 3, padding=1, groups=3), (1, 24, 12, 12)),
    "depthwise": (lambda: nn.Conv2d(48, 48, 5, padding=2, groups=48), (1, 48, 20, 20)),
    "depthwise odd": (lambda: nn.Conv2d(10, 20, 3, stride=2, groups=10), (1, 10, 20, 20)),
    "depthwise stride": (lambda: nn.Conv2d(32, 32, 3, stride=2, padding=1, groups=32), (1, 32, 20, 20)),
    "pointwise": (lambda: nn.Conv2d(30, 70, 1), (2, 30, 9, 9)),
    "pointwise stride": (lambda: nn.Conv2d(30, 70, 1, stride=2), (2, 30, 9, 9)),
    "line": (lambda: nn.Conv1d(20, 40, 3, padding=1), (2, 20, 31)),
    "line depthwise": (lambda: nn.Conv1d(32, 32, 4, padding=3, groups=32), (2, 32, 31)),
    "transposed": (lambda: nn.ConvTranspose2d(8, 12, 3, stride=2), (1, 8, 7, 7)),
    "volume": (lambda: nn.Conv3d(4, 6, 3), (1, 4, 6, 6, 6)),
    "inverted twice": (
        lambda: nn.Sequential(
            nn.Conv2d(16, 96, 1), nn.ReLU6(), nn.Conv2d(96, 96, 3, 1, 1, groups=96), nn.ReLU6(), nn.Conv2d(96, 16, 1)
        ),
        (1, 16, 56, 56),
    ),
}
ROWS: dict[str, tuple[int, ...]] = {"one row": (1, 72), "few rows": (5, 72), "rows": (130, 72), "batch": (2, 9, 72)}
INTEGERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: int8_layers.Layer(72, 50), (9, 72)),
    "linear int8": (lambda: int8_layers.Layer(70, 48, dtype=torch.int8, zero=-5, per_channel=False), (1, 70)),
    "windows": (lambda: int8_layers.layer(20, 40, 3, {"padding": 1}, 5), (1, 20, 11, 11)),
    "stem": (lambda: int8_layers.layer(3, 16, 3, {"stride": 2, "padding": 1}, 128), (1, 3, 21, 21)),
    "depthwise": (lambda: int8_layers.layer(32, 32, 3, {"groups": 32, "padding": 1}, 3), (1, 32, 12, 12)),
    "depthwise odd": (lambda: int8_layers.layer(10, 10, 3, {"groups": 10}, 3), (1, 10, 12, 12)),
    "line": (lambda: int8_layers.Layer(12, 24, (3,), options={"padding": 1}), (2, 12, 20)),
}


def _small() -> Iterator[Item]:
    for name, case in CASES.items():
        yield from _variants(name, lambda n=name: model_of(n), case.args, case.dynamic_shapes)
    for name, (make, shape) in CONVOLUTIONS.items():
        yield from _variants(f"convolution {name}", make, lambda s=shape: (x(*s),))
        yield from _variants(f"convolution {name} batch", make, lambda s=shape: (x(*s),), ({0: "batch"},))
        yield from _variants(
            f"convolution {name} half", lambda m=make: m().bfloat16(), lambda s=shape: (x(*s).bfloat16(),)
        )
    for name, shape in ROWS.items():
        yield from _variants(f"products {name}", lambda: Chain(72), lambda s=shape: (x(*s),))
        yield from _variants(f"products {name} double", lambda: Chain(72).double(), lambda s=shape: (x(*s).double(),))
    yield from _variants("products rows dynamic", lambda: Chain(72), lambda: (x(130, 72),), ({0: "rows"},))
    for name, (make, shape) in INTEGERS.items():
        yield from _variants(f"integers {name}", make, lambda s=shape: (x(*s),))
    for bits in (4, 8):
        for group in (None, 8, 12):
            for rows in (1, 40):
                yield from _variants(
                    f"weights of {bits} bits {group} {rows}",
                    lambda b=bits, g=group: Several(Coded(72, 50, g, b, zeros=g == 8), Coded(72, 50, g, b)),
                    lambda r=rows: (x(r, 72), x(r, 72, seed=1)),
                )
    yield from _variants("grouped", Grouped, lambda: (x(9, 20), torch.tensor([2, 2, 7], dtype=torch.int32)))
    for name in ATTENDING:
        yield from _variants(f"attention {name}", lambda n=name: Flex(n), _queries)
    yield from _variants("attention decoding", lambda: Flex("alibi"), lambda: (x(2, HEADS, 1, 24), *_queries()[1:]))
    for name, combining in COMBINING.items():
        yield from _variants(
            f"scan {name}",
            lambda n=name: Scanned(n),
            lambda c=combining: [x(4, 9, 6, seed=n).sigmoid() for n in range(c.count)],
        )
    for name in ATTENDING:
        yield Item(f"small:attention {name} trained", lambda n=name: _trained(Flex(n), _queries()))
    yield Item("small:products trained", lambda: _trained(Chain(24), (x(5, 24).requires_grad_(),)))
    yield Item("small:convolution trained", lambda: _trained(nn.Conv2d(6, 9, 3), (x(1, 6, 9, 9).requires_grad_(),)))


def _variants(
    name: str, make: Callable[[], nn.Module], args: Callable[[], Any], dynamic_shapes: Any = None
) -> Iterator[Item]:
    programs = capture_model(lambda: make().eval(), args, dynamic_shapes=dynamic_shapes)
    yield Item(f"small:{name}", programs)
    yield Item(f"small:{name} in bfloat16", programs, {"precision": "bfloat16"})
    yield Item(f"small:{name} without kernels", programs, {"disabled": KERNELS})
    others = [optional for optional in OPTIONAL_PASSES if optional not in KERNELS]
    yield Item(f"small:{name} unscheduled", programs, {"disabled": others})


def _queries() -> tuple[torch.Tensor, ...]:
    shapes = ((2, HEADS, LENGTH, 24), (2, HEADS, LENGTH, 24), (2, HEADS, LENGTH, 20))
    return tuple(x(*shape, seed=n).requires_grad_() for n, shape in enumerate(shapes))


def _trained(model: nn.Module, args: Sequence[torch.Tensor]) -> list[Program]:
    """The forward and the backward half. Halves give zeros: only their text matters."""
    found: list[Program] = []

    def build(half: nn.Module, inputs: Sequence[torch.Tensor]) -> Any:
        program = capture(half, inputs)
        found.append(run_cpu_pipeline(program))
        results: Any = program.graph.output_node().args[0]
        types = [value_of(result) for result in results]
        return lambda *_: [torch.zeros(tuple(t.shape), dtype=t.dtype) for t in types]

    TrainableModel(model, build, lambda program: _run_pipeline(program, TRAINING, CPU), (args, {}))
    return found


# ---------------------------------------------------------------------- the other kinds


def _samples() -> Iterator[Item]:
    from tests.e2e.test_operator_samples import SLICE
    from tests.support.operator_samples.samples import cases, fresh

    for name in SLICE:
        for case in cases([name], most=1, kinds=("plain", "scalar")):
            yield Item(f"sample:{case.name}", capture_model(lambda c=case: c.module, lambda c=case: fresh(c)))


def _zoo() -> Iterator[Item]:
    from tests.e2e.test_zoo import every
    from tests.support.zoo import entry

    for name in every():
        kind, _, model = name.partition(":")
        item = entry(model)
        yield Item(
            f"zoo:{name}",
            lambda i=item, k=kind: capture_model(
                i.build, tuple, i.inputs(i.sizes), i.dynamic if k == "dynamic" else None
            )(),
        )


def _bench() -> Iterator[Item]:
    from benchmarks.models import SUBJECTS

    for subject in SUBJECTS:
        programs = capture_model(lambda s=subject: s.build().eval(), lambda s=subject: s.inputs(1))
        yield Item(f"bench:{subject.name}", programs)
        yield Item(f"bench:{subject.name} in bfloat16", programs, {"precision": "bfloat16"})


KINDS: dict[str, Callable[[], Iterator[Item]]] = {
    "small": _small,
    "sample": _samples,
    "zoo": _zoo,
    "bench": _bench,
}


def everything(only: Sequence[str] = (), every: int = 1) -> Iterator[Item]:
    """Items whose names begin with one of `only`."""
    for kind, make in KINDS.items():
        if only and not any(prefix.startswith(kind) or kind.startswith(prefix) for prefix in only):
            continue
        for number, item in enumerate(make()):
            if only and not any(item.name.startswith(prefix) for prefix in only):
                continue
            if kind != "zoo" or number % every == 0:
                yield item


def hash_item(item: Item) -> str:
    """The hashes of an item's programs, or the first line of the error that refuses it."""
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return " ".join(hash_program(program, **item.options) for program in item.programs())
    except Exception as error:  # what is refused stays refused, for the same reason
        first = (str(error).splitlines() or [""])[0]
        return f"{type(error).__name__}: {first[:160]}"


def hash_everything(items: Iterable[Item], path: Path, wanted: set[str] | None) -> dict[str, str]:
    """Hashes what the file does not have yet, and keeps the file up to date."""
    found: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for item in progress.count_done("programs", items):
        if item.name in found or (wanted is not None and item.name not in wanted):
            continue
        found[item.name] = hash_item(item)
        path.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=())
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--compare", type=Path)
    options = parser.parse_args()
    before = json.loads(options.compare.read_text(encoding="utf-8")) if options.compare else None
    wanted = set(before) if before is not None else None
    found = hash_everything(everything(options.only, options.every), options.write, wanted)
    if before is None:
        print(f"{len(found)} hashed")
        return 0
    both = [name for name in found if name in before]
    different = [name for name in both if found[name] != before[name]]
    for name in different:
        print(f"{name}\n  before  {before[name]}\n  after   {found[name]}")
    print(f"{len(both)} compared, {len(different)} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
