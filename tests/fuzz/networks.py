"""Random networks: residuals, branches, shared layers and values used across distance, of every kind of layer.

    network = make(7)
    print(network)                  # Python text of the module, with how it is compiled
    for seed, verdict in check(range(100)): ...

Most networks share a C file with others, so that the C compiler starts once for many; one in PUBLIC is compiled as
users do, by `ingot.compile` with full optimization. Every network is compiled with all scheduling passes on, and many
again with some or all of them off.
"""

from __future__ import annotations

import random
import re
import tempfile
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import ingot
from ingot.compiler import OPTIONAL_PASSES
from ingot.errors import CompilerFailed, IngotError
from tests.fuzz import networks_native as native
from tests.fuzz.grammars.networks_drawing import Draft, Rejected, Value
from tests.fuzz.grammars.networks_rules import RULES
from tests.fuzz.networks_judge import compare_outputs
from tests.fuzz.verdict import Verdict

# Networks that share a C file, and of how many one is compiled as users do.
BATCH = 40
PUBLIC = 50
MODES = ("float32",) * 10 + ("bfloat16",) * 2 + ("products in bfloat16",) * 2
MODES += ("int8_static",) * 3 + ("int8_dynamic", "int8_weight_only", "int4_weight_only")
LARGEST = 11


@dataclass(frozen=True)
class Network:
    """`inputs` are name, kind and dims; a dim is a size or the name of one. `sizes` are the example's, `dynamic` the
    names that are dynamic, from `least` on. `variants` are the passes that are switched off, one compilation each."""

    seed: int
    mode: str
    inputs: tuple[tuple[str, str, tuple[int | str, ...]], ...]
    sizes: dict[str, int]
    dynamic: tuple[str, ...]
    least: int
    layers: tuple[str, ...]
    lines: tuple[str, ...]
    outputs: tuple[str, ...]
    variants: tuple[frozenset[str], ...]
    threads: int

    def __str__(self) -> str:
        dims = ", ".join(f"{name} = {size}" for name, size in self.sizes.items())
        off = "; ".join(", ".join(sorted(variant)) or "nothing" for variant in self.variants)
        return "\n".join(
            [
                f"# seed {self.seed}: {self.mode}, {dims}, dynamic from {self.least} on: "
                f"{', '.join(self.dynamic) or 'nothing'}, "
                f"{self.threads} threads, switched off: {off}",
                *(f"# {name}: {kind} {list(shape)}" for name, kind, shape in self.inputs),
                self.text,
            ]
        )

    @property
    def text(self) -> str:
        return "\n".join(
            [
                "class Net(nn.Module):",
                "    def __init__(self):",
                "        super().__init__()",
                *(f"        {layer}" for layer in self.layers),
                "",
                f"    def forward(self, {', '.join(name for name, _, _ in self.inputs)}):",
                *(f"        {line}" for line in self.lines),
                f"        return {', '.join(self.outputs)},",
            ]
        )

    def model(self) -> nn.Module:
        made = self._build(self.text)
        return made.to(torch.bfloat16) if self.mode == "bfloat16" else made

    def wide_model(self) -> nn.Module:
        """The model in float64. Numbers beside tensors are those that the model's own dtype makes of them."""
        if self.mode != "bfloat16":
            return self._build(self.text).double()

        def rounded(match: re.Match[str]) -> str:
            return repr(float(torch.tensor(float(match[0])).bfloat16()))

        text = re.sub(r"(?<![\w.])\d\.\d+(?![\w.])", rounded, self.text)
        return self._build(text).bfloat16().double()

    def _build(self, text: str) -> nn.Module:
        torch.manual_seed(self.seed)
        scope: dict[str, Any] = {"torch": torch, "nn": nn, "F": F}
        exec(compile(text, f"<network {self.seed}>", "exec"), scope)
        made: nn.Module = scope["Net"]().eval()
        randomize_statistics(made)
        return made

    def arguments(self, sizes: dict[str, int], draw: int = 0) -> tuple[torch.Tensor, ...]:
        dtype = torch.bfloat16 if self.mode == "bfloat16" else torch.float32
        generator = torch.Generator().manual_seed(self.seed * 31 + draw)
        return tuple(draw_input(kind, dims, sizes, generator, dtype) for _, kind, dims in self.inputs)

    @property
    def every_size(self) -> list[dict[str, int]]:
        """The example's sizes, and those at the bounds and between."""
        if not self.dynamic:
            return [self.sizes]
        bounds = sorted({self.least, 1, 2, LARGEST})
        others = [{**self.sizes, **dict.fromkeys(self.dynamic, size)} for size in bounds]
        mixed = {name: (1 if place else 3) for place, name in enumerate(self.dynamic)}
        return [self.sizes, *others, {**self.sizes, **mixed}]

    @property
    def dynamic_shapes(self) -> Any:
        if not self.dynamic:
            return None
        dims = {name: torch.export.Dim(name, min=self.least, max=LARGEST) for name in self.dynamic}
        return {
            name: {place: dims[dim] for place, dim in enumerate(shape) if dim in dims} or None
            for name, _, shape in self.inputs
        }


def randomize_statistics(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            assert module.running_var is not None
            nn.init.uniform_(module.running_mean, -0.3, 0.3)
            nn.init.uniform_(module.running_var, 0.5, 2.0)


def draw_input(
    kind: str, dims: Sequence[int | str], sizes: dict[str, int], generator: torch.Generator, dtype: torch.dtype
) -> torch.Tensor:
    shape = [dim if isinstance(dim, int) else sizes[dim] for dim in dims]
    if kind == "tokens":
        return torch.randint(0, 11, shape, generator=generator)
    # Tenths, so that numbers in the text are met exactly, and some are equal.
    return ((torch.randn(shape, generator=generator) * 10).round() / 10).to(dtype)


# ---------------------------------------------------------------------- drawing


def make(seed: int) -> Network:
    """The network of this seed."""
    rng = random.Random(f"network {seed}")
    mode = rng.choice(MODES)
    # Of buffers that exceed a core's cache: a few networks only, since they take the time of many.
    large = rng.random() < 0.04
    draft = Draft(rng, wide=large or rng.random() < 0.35)
    inputs = draw_inputs(draft, large)
    names = sorted({dim for _, _, dims in inputs for dim in dims if isinstance(dim, str)})
    sizes = {name: rng.choice((1, 2, 3, 4, 5)) for name in names}
    dynamic = tuple(name for name in names if rng.random() < 0.6) if rng.random() < 0.3 and not large else ()
    # What is computed from the example's sizes is rarely 1: torch takes that for a constant.
    sizes |= {name: rng.choice((5, 6, 7) if name in "hw" else (3, 4, 5)) for name in dynamic}
    least = rng.choice((1, 1, 1, 0))
    network = Network(seed, mode, inputs, sizes, dynamic, least, (), (), (), (), rng.choice((1, 1, 1, 2)))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        for name, kind, dims in inputs:
            at = [draw_input(kind, dims, tried, generator, torch.float32) for tried in network.every_size]
            draft.values.append(Value(name, kind, at))
        draw_lines(draft, 3 if large else rng.randrange(3, 9))
    made = [value for value in draft.values if value.name.startswith("v")]
    read = set(re.findall(r"\bv\d+\b", "\n".join(line.partition(" = ")[2] for line in draft.lines)))
    unread = [value for value in made if value.name not in read]
    chosen = [*rng.sample(unread, min(len(unread), 4)), *rng.sample(made, min(len(made), rng.choice((0, 0, 1, 2))))]
    outputs = {made[-1].name, *(value.name for value in chosen)}
    network = Network(
        seed, mode, inputs, sizes, dynamic, least, tuple(draft.layers), tuple(draft.lines), tuple(sorted(outputs)),
        draw_variants(rng), network.threads,
    )  # fmt: skip
    return network if runs_in_eager(network) else replace(network, mode="float32")


def runs_in_eager(network: Network) -> bool:
    """Whether torch has its operators in bfloat16 too."""
    if network.mode != "bfloat16":
        return True
    try:
        with torch.no_grad():
            network.model()(*network.arguments(network.sizes))
    except (NotImplementedError, RuntimeError):
        return False
    return True


def draw_inputs(draft: Draft, large: bool) -> tuple[tuple[str, str, tuple[int | str, ...]], ...]:
    rng = draft.random
    if large:
        side = rng.choice((40, 48, 52))
        return (("x0", "image", (1, rng.choice((16, 24, 32)), side, side)),)
    dims: dict[str, Any] = {
        "image": lambda: (
            "n",
            draft.channels(),
            *rng.choice(((8, 8), (7, 5), (9, 9), (14, 14), (14, 12), (4, 4), (6, 6), ("h", "w"))),
        ),
        "sequence": lambda: ("n", "l", draft.channels()),
        "vector": lambda: ("n", draft.channels()),
        "signal": lambda: ("n", draft.channels(), rng.choice((9, 16, "l"))),
        "volume": lambda: ("n", rng.choice((1, 3, 8)), 4, 5, 4),
        "tokens": lambda: ("n", "l"),
    }
    kinds = rng.choices(tuple(dims), weights=(9, 6, 4, 1.5, 1, 1.5), k=rng.choice((1, 1, 2)))
    if set(kinds) == {"tokens"}:  # something must be a number
        kinds.append("sequence")
    return tuple((f"x{place}", kind, dims[kind]()) for place, kind in enumerate(kinds))


def draw_lines(draft: Draft, count: int) -> None:
    """So many rules that were kept, of any number tried."""
    for value in list(draft.values):
        if value.kind == "tokens":
            draft.line(f"{draft.layer(f'nn.Embedding(11, {draft.channels()})')}({value.name})", "sequence")
    weights, rules = zip(*RULES, strict=True)
    kept = 0
    for _ in range(20 * count):
        (rule,) = draft.random.choices(rules, weights)
        try:
            rule(draft)
        except Rejected:
            continue
        kept += 1
        if kept == count or len(draft.lines) > 40:
            return
    if not draft.lines:
        value = draft.values[0]
        draft.line(f"{value.name} + 1", value.kind)


def draw_variants(rng: random.Random) -> tuple[frozenset[str], ...]:
    """All passes on, and in some networks a second time: without some, or without any."""
    everything: frozenset[str] = frozenset()
    chance = rng.random()
    some = frozenset(name for name in OPTIONAL_PASSES if rng.random() < 0.5)
    if chance < 0.08:
        return everything, frozenset(OPTIONAL_PASSES)
    return (everything, some) if chance < 0.25 else (everything,)


# ---------------------------------------------------------------------- checking


@dataclass
class Candidate:
    """A network on its way: captured, and lowered once for each variant."""

    network: Network
    model: nn.Module
    wide: nn.Module  # in float64
    program: ingot.Program
    parts: list[native.Part]


def check(seeds: Iterable[int]) -> Iterator[tuple[int, Verdict]]:
    """The verdict of each seed."""
    torch.set_num_threads(1)
    waiting: list[Candidate] = []
    for seed in seeds:
        network = make(seed)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            found = check_publicly(network) if seed % PUBLIC == PUBLIC - 1 else prepare(network)
        if isinstance(found, Verdict):
            yield seed, found
            continue
        waiting.append(found)
        if len(waiting) == BATCH:
            yield from check_batch(waiting)
            waiting = []
    yield from check_batch(waiting)


def failure(network: Network, error: Exception, doing: str) -> Verdict:
    """What an exception means: a named error is a refusal, unless it is the C compiler's or a bug of our own."""
    ours = type(error).__name__ == "ScheduleError" or isinstance(error, CompilerFailed)
    if isinstance(error, IngotError) and not ours:
        return Verdict("refused", f"{type(error).__name__}: {reason_of(error)}")
    return Verdict("wrong", f"{doing}: {type(error).__name__}: {error}\n{traceback.format_exc(limit=-4)}\n{network}")


def reason_of(error: Exception) -> str:
    """The error's first lines without what belongs to this network."""
    text = " ".join(line.strip() for line in str(error).splitlines()[:3])
    text = re.sub(r"<network \d+>:?\d*|in l\d+[\w.]*|\bv\d+\b|\bx\d+\b", "", text)
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "…", text)
    return re.sub(r"\d+", "N", text)[:160]


def capture(network: Network) -> tuple[nn.Module, ingot.Program]:
    model, args = network.model(), network.arguments(network.sizes)
    program = ingot.capture(model, args, dynamic_shapes=network.dynamic_shapes)
    if network.mode.startswith("int"):
        prepared = ingot.quantize.prepare(program, getattr(ingot.quantize, network.mode)())
        batches = [network.arguments(network.sizes, draw) for draw in range(2)]
        program = ingot.quantize.convert(ingot.quantize.calibrate(prepared, batches, progress=False))
    return model, program


def prepare(network: Network) -> Candidate | Verdict:
    try:
        model, program = capture(network)
        precision = "bfloat16" if network.mode == "products in bfloat16" else "float32"
        parts = [native.lower_part(program, precision, variant) for variant in network.variants]
    except Exception as error:
        return failure(network, error, "compiling")
    return Candidate(network, model, network.wide_model(), program, parts)


def check_batch(waiting: Sequence[Candidate]) -> Iterator[tuple[int, Verdict]]:
    with tempfile.TemporaryDirectory() as folder:
        parts = [part for one in waiting for part in one.parts]
        first = waiting[0].network.seed if waiting else 0
        native.compile_parts(parts, Path(folder), optimize=first // BATCH % native.OPTIMIZED == 0)
        for one in waiting:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                yield one.network.seed, run(one)


def run(one: Candidate) -> Verdict:
    network = one.network
    for variant, part in zip(network.variants, one.parts, strict=True):
        off = f"switched off: {', '.join(sorted(variant)) or 'nothing'}"
        if part.error:
            return Verdict("wrong", f"the C compiler, {off}: {part.error}\n{network}")
        for number, sizes in enumerate(network.every_size):
            args = network.arguments(sizes, number)
            before = [arg.clone() for arg in args]
            try:
                got = native.call(part, args, network.threads)
            except Exception as error:
                if 0 in sizes.values():  # which may be refused
                    continue
                return Verdict("wrong", f"running at {sizes}, {off}: {error}\n{network}")
            problem = problem_at(sizes, one.model, one.wide, one.program, network.mode, before, got)
            if not problem and any(not torch.equal(a, b) for a, b in zip(args, before, strict=True)):
                problem = "an argument was written to"
            if problem:
                return Verdict("wrong", f"{problem}; at {sizes}, {off}\n{network}")
    return Verdict("right")


def check_publicly(network: Network) -> Verdict:
    """Through `ingot.compile`, as users do."""
    variant = network.variants[-1]
    options: dict[str, Any] = {"disable_passes": variant}
    try:
        model, program = capture(network)
        precision: Any = "bfloat16" if network.mode == "products in bfloat16" else "float32"
        compiled = ingot.compile(program, threads=network.threads, precision=precision, cache=False, **options)
    except Exception as error:
        return failure(network, error, "compiling")
    wide = network.wide_model()
    for number, sizes in enumerate(network.every_size):
        args = network.arguments(sizes, number)
        try:
            got = list(compiled(*args))
        except Exception as error:
            if isinstance(error, IngotError) and 0 in sizes.values():
                continue
            return Verdict("wrong", f"running at {sizes}: {type(error).__name__}: {error}\n{network}")
        problem = problem_at(sizes, model, wide, program, network.mode, args, got)
        if problem:
            return Verdict("wrong", f"{problem}; at {sizes}, by ingot.compile\n{network}")
    return Verdict("right")


def problem_at(sizes: dict[str, int], *compared: Any) -> str:
    """What `compare_outputs` says. Eager itself cannot do all without elements: dynamic quantization asks for the
    largest of no values."""
    try:
        return compare_outputs(*compared)
    except RuntimeError:
        if 0 in sizes.values():
            return ""
        raise
