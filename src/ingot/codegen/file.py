"""One C file a model: prelude, the library functions it uses, its kernels, the run, and the functions it exports.

    emit(module, plan) -> Source(text, weights)

Identical kernels are written once; the run calls them in order, each with the module path and the user's line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources

from ingot.codegen import convolutions, products, routines
from ingot.codegen.attention import NARROW_EXP, attention_kernel, tiles_kernel
from ingot.codegen.ctext import STORED, Statements, size_text
from ingot.codegen.kernels import Kernel, kernel_of
from ingot.errors import UnsupportedOperator, explain
from ingot.lowering.cost import flops, traffic
from ingot.lowering.expr import Expr, Size, largest
from ingot.lowering.ir import (
    Attention,
    Bind,
    Body,
    Check,
    Convolution,
    If,
    Map,
    MaskTiles,
    Module,
    Nest,
    Origin,
    Product,
    Reduce,
    Repeat,
    Routine,
    Step,
    Weight,
    While,
)
from ingot.lowering.memory import ALIGN, Plan, all_steps, byte_size, touched

DTYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "uint16",
    "uint32",
    "uint64",
]


# The C compiler's work, counted in characters of kernels: how much is worth a group, and how many groups there may be;
# what the pool, the run and the exports take, each launch in the run, and a function that kernels share.
GROUP = 12000
GROUPS = 4
RUN_WORK, LAUNCH_WORK, SHARED_WORK = 6000, 60, 6000
_READS = {"bfloat16": "ig_bf16_to_f32", "float16": "ig_f16_to_f32"}


@dataclass(frozen=True, slots=True)
class Placed:
    """A weight and where it lies in the blob."""

    weight: Weight
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Launch:
    """One call of a kernel, for the profiler: what it stands for, and the work that it must do at least."""

    kernel: str
    origin: Origin
    flops: Size
    bytes: Size


@dataclass(frozen=True, slots=True)
class Source:
    """The C text, and the blob of weights that it expects. `groups`: into how many parts it can be compiled."""

    text: str
    weights: tuple[Placed, ...]
    weights_size: int
    launches: tuple[Launch, ...] = ()
    groups: int = 1


def emit(module: Module, plan: Plan, *, title: str = "model") -> Source:
    return _File(module, plan, title).emit()


def emit_apart(module: Module, plan: Plan, used: set[str]) -> Source:
    """The model's own part of its file: kernels, run and exports. What it needs of `head` is added to `used`."""
    return _File(module, plan, "", used=used).own()


def head(used: set[str], group: Callable[[], int] = lambda: 0) -> str:
    """What stands before a model's own part, or before those of several: the parts of the library in `used`."""
    return "\n".join([_resource("prelude.h"), _resource("pool.h"), _library(used, group), _resource("run.h")])


def place_weights(module: Module) -> tuple[tuple[Placed, ...], int]:
    """Every weight that a step reads, one after another at multiples of 64 bytes; the last one's end is the size."""
    read: set[str] = set()
    for step in module.steps:
        r, w = touched(step)
        read |= r | w
    placed, at = [], 0
    for weight in module.weights:
        if weight.buffer in read:
            size = byte_size(module.buffers[weight.buffer])
            assert isinstance(size, int)
            placed.append(Placed(weight, at, size))
            at += -(-size // ALIGN) * ALIGN
    return tuple(placed), placed[-1].offset + placed[-1].size if placed else 0


@dataclass
class _File:
    module: Module
    plan: Plan
    title: str
    used: set[str] = field(default_factory=set)
    kernels: dict[str, str] = field(default_factory=dict)
    comments: dict[str, Origin] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    sites: list[str] = field(default_factory=list)
    scratch: list[Size] = field(default_factory=list)
    known: set[str] = field(default_factory=set)  # sizes that the run has when it begins
    depth: int = 1
    launches: list[Launch] = field(default_factory=list)
    shared_groups: Iterator[int] = field(default_factory=lambda: iter(()))
    kernel_groups: list[int] = field(default_factory=list)

    def emit(self) -> Source:
        own = self.own()
        return replace(own, text="\n".join([self._banner(), head(self.used, self.shared_groups.__next__), own.text]))

    def own(self) -> Source:
        """Kernels, run and exports."""
        weights, size = place_weights(self.module)
        local = {name for step in all_steps(self.module.steps) if isinstance(step, Nest) for name in step.local}
        bound = self._run(weights, local)
        kernels = [self._kernel(text, name) for text, name in self.kernels.items()]
        count = self._share_out(kernels)
        groups: list[list[str]] = [[] for _ in range(count)]
        for kernel, group in zip(kernels, self.kernel_groups, strict=True):
            groups[group].append(kernel)
        parts = ["\n".join([f"#if IG_IN({n})", *group, "#endif"]) for n, group in enumerate(groups) if group]
        names = f"IG_KERNEL ig_kernel {', '.join(self.kernels.values())};\n" if kernels else ""
        rest = "\n".join(["#if IG_IN(0)", *bound, self._exports(size), "#endif\n"])
        return Source("\n".join([names, *parts, rest]), weights, size, tuple(self.launches), count)

    def _share_out(self, kernels: Sequence[str]) -> int:
        """Groups of about the same work for the C compiler: the run and the exports, shared functions, kernels."""
        shared = sum(name.split()[0] in _SHARED for name in self.used)
        work = [RUN_WORK + len(self.launches) * LAUNCH_WORK, *[SHARED_WORK] * shared, *map(len, kernels)]
        count = max(1, min(GROUPS, sum(work) // GROUP))
        groups, before = [], 0
        for one in work:
            groups.append(before * count // sum(work))
            before += one
        self.shared_groups = iter(groups[1 : 1 + shared])
        self.kernel_groups = groups[1 + shared :]
        return count

    def _banner(self) -> str:
        return (
            f"/* {self.title}, compiled by Ingot. One file, nothing but libc and threads.\n\n"
            f"   {len(self.module.inputs)} inputs, {len(self.module.outputs)} outputs, "
            f"{len(self.kernels)} kernels. */\n"
        )

    def _kernel(self, text: str, name: str) -> str:
        origin = self.comments[name]
        return (
            f"/* {origin} */\n"
            f"IG_KERNEL void {name}(void *context, int64_t begin, int64_t end, int worker)\n{{\n"
            f"    const ig_call *const c = context;\n    (void)c, (void)worker;\n{text}\n}}\n"
        )

    # ------------------------------------------------------------------ the run

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def size(self, size: Size) -> str:
        names = {s.name: f"n[{s.name[1:]}]" for s in size.symbols if s.name[0] == "n"} if isinstance(size, Expr) else {}
        return size_text(size, names)

    def _run(self, weights: Sequence[Placed], local: set[str]) -> list[str]:
        module = self.module
        head = [*_signature()]
        steps = list(module.steps)
        early = 0
        used = set().union(*(name for step in steps for name in touched(step)))
        for number, argument in enumerate(module.inputs):
            if argument.buffer in used:
                self.line(f"void *const {argument.buffer} = inputs[{number}].data;")
        while early < len(steps) and isinstance(steps[early], (Bind, Check)):
            self._step(steps[early])
            early += 1
        self.known = set(module.symbols) | {step.symbol for step in steps[:early] if isinstance(step, Bind)}
        for number, argument in enumerate(module.outputs):
            if argument.buffer in used:
                self.line(f"void *const {argument.buffer} = outputs[{number}].data;")
        for placed in weights:
            kind = module.buffers[placed.weight.buffer].kind
            base = "weights" if kind == "weight" else "state"
            self.line(f"void *const {placed.weight.buffer} = (char *)model->{base} + {placed.offset};")
        late = self._arena(self.known)
        place = len(self.lines)
        told = set(self.known)
        for step in steps[early:]:
            for name in sorted(late & set().union(*touched(step))):
                self._check_size(name, told)
                self.line(f"void *const {name} = ig_allocate(run, {self.size(byte_size(module.buffers[name]))});")
                self.line("if (run->status) return;")
                late.discard(name)
            self._step(step)
            told |= {step.symbol} if isinstance(step, Bind) else set()
        total: Size = 0
        for size in self.scratch:
            total = largest(total, size)
        self.lines.insert(place, f"    if (!ig_reserve_scratch(run, {self.size(total)})) return;")
        return [*head, "{", "    (void)n, (void)outputs, (void)inputs, (void)model;", *self.lines, "}", ""]

    def _check_size(self, name: str, told: set[str]) -> None:
        """Memory is taken between steps of the whole run: inside of a branch or loop it is too late."""
        size = byte_size(self.module.buffers[name])
        unknown = {s.name for s in size.symbols} - told if isinstance(size, Expr) else set()
        if unknown:
            raise UnsupportedOperator(
                explain(
                    "A tensor inside of a branch or loop has a size that only the branch or loop itself tells.",
                    fix="compute that size before it, or run the program through torch: program(*args)",
                )
            )

    def _arena(self, known: set[str]) -> set[str]:
        """Declares the temporaries; returns those whose size is not known when the run begins."""
        buffers = self.module.buffers
        if not self.plan.dynamic:
            self.line(f"char *const arena = ig_reserve_arena(run, {self.plan.size});")
            self.line("if (!arena) return;")
            for name, offset in self.plan.offsets.items():
                self.line(f"void *const {name} = arena + {offset};")
            return set()
        late: set[str] = set()
        at: list[str] = []
        sizes: list[str] = []
        for number, slot in enumerate(self.plan.slots):
            size: Size = 0
            for name in slot:
                bytes_ = byte_size(buffers[name])
                if isinstance(bytes_, Expr) and not {s.name for s in bytes_.symbols} <= known:
                    late.add(name)
                else:
                    size = largest(size, bytes_)
                    at.append(f"void *const {name} = arena + slot{number};")
            sizes.append(f"const int64_t slot{number + 1} = slot{number} + ig_round_up({self.size(size)});")
        self.line("const int64_t slot0 = 0;")
        for text in sizes:
            self.line(text)
        self.line(f"char *const arena = ig_reserve_arena(run, slot{len(sizes)});")
        self.line("if (!arena) return;")
        for text in at:
            self.line(text)
        return late

    def _step(self, step: Step) -> None:
        match step:
            case Map() | Reduce() | Nest():
                self._launch(kernel_of(step, self.module.buffers, self.used, self.module.hints), step)
            case Product():
                self._launch(products.product_kernel(step, self.module.buffers, self.used, self.module.hints), step)
            case Convolution():
                kernel = convolutions.convolution_kernel(step, self.module.buffers, self.used, self.module.hints)
                self._launch(kernel, step)
            case Attention():
                self._launch(attention_kernel(step, self.module.buffers, self.used, self.module.hints), step)
            case MaskTiles():
                self._launch(tiles_kernel(step, self.module.buffers, self.used, self.module.hints), step)
            case Routine():
                self._launch(routines.routine_kernel(step, self.module.buffers, self.used, self.module.hints), step)
            case Bind():
                value = self._value(step.body, step.origin)
                self.line(f"n[{step.symbol[1:]}] = {value};")
                self._end_value()
            case Check():
                value = self._value(step.body, step.origin)
                status = "INGOT_INVALID" if step.on_sizes else "INGOT_ASSERTION"
                self.line(f"if (!({value})) ig_fail_run(run, {status}, {self._site(step.message)});")
                self._end_value()
                self.line("if (run->status) return;")
            case If():
                value = self._value(step.condition, step.origin)
                self.line(f"const int taken = {value};")
                self.line("if (taken) {")
                self._nested(step.then)
                self.line("} else {")
                self._nested(step.otherwise)
                self.line("}")
                self._end_value()
            case While():
                self.line("while (!run->status) {")
                self._nested(step.test)
                self.depth += 1
                value = self._value(step.condition, step.origin)
                self.line(f"if (!({value})) break;")
                self._end_value()
                self.depth -= 1
                self._nested(step.steps)
                self.line("}")
            case Repeat():
                number = step.loop.variable[1:]
                at, count = f"n[{number}]", self.size(step.loop.extent)
                self.line(f"for ({at} = 0; {at} < {count} && !run->status; ++{at}) {{")
                self._nested(step.steps)
                self.line("}")
            case _:
                raise NotImplementedError(type(step).__name__)

    def _nested(self, steps: Sequence[Step]) -> None:
        self.depth += 1
        for step in steps:
            self._step(step)
        self.depth -= 1

    def _value(self, body: Body, origin: Origin) -> str:
        """The body's result in a block that `_end_value` closes."""
        names = {name: f"n[{name[1:]}]" for name in self._symbols()}
        code = Statements(body, self._element, self.module.buffers, self.used, names=names)
        self.line("{")
        self.depth += 1
        if code.checks:
            self.line("int bad = 0;")
        if code.zero_checks:
            self.line("int zero = 0;")
        for text in (*code.before, *code.inside):
            self.line(text)
        if code.checks:
            self.line(f"if (bad) ig_fail_run(run, INGOT_INDEX, {self._site(str(origin))});")
        if code.zero_checks:
            self.line(f"if (zero) ig_fail_run(run, INGOT_ZERO_DIVISION, {self._site(str(origin))});")
        return code.results[0]

    def _end_value(self) -> None:
        self.depth -= 1
        self.line("}")

    def _element(self, buffer: str, index: Size) -> str:
        # Statements has given the symbols their names here already.
        return f"((const {STORED[self.module.buffers[buffer].dtype]} *){buffer})[{size_text(index)}]"

    def _launch(self, kernel: Kernel, step: Step) -> None:
        origin = step.origin
        name = self.kernels.get(kernel.text)
        if name is None:
            name = self.kernels[kernel.text] = f"k{len(self.kernels)}"
            self.comments[name] = origin
        if isinstance(kernel.scratch, Expr) and not {s.name for s in kernel.scratch.symbols} <= self.known:
            self.line(f"if (!ig_reserve_scratch(run, ig_max(run->scratch_each, {self.size(kernel.scratch)}))) return;")
        else:
            self.scratch.append(kernel.scratch)
        self.launches.append(Launch(name, origin, flops(step), traffic(step, self.module.buffers)))
        numbers = (self._site(str(origin)), self.size(kernel.total), self.size(kernel.grain))
        arguments = ", ".join([str(len(self.launches) - 1), name, *map(str, numbers), *(kernel.buffers or ["0"])])
        self.line(f"LAUNCH({arguments});  /* {_comment(origin)} */")

    def _site(self, text: str) -> int:
        if text not in self.sites:
            self.sites.append(text)
        return self.sites.index(text)

    # ------------------------------------------------------------------ what the library exports

    def _exports(self, weights_size: int) -> str:
        module = self.module
        numbers = [int(name[1:]) for name in self._symbols()]
        values: Mapping[str, object] = {
            "INPUTS": len(module.inputs),
            "OUTPUTS": len(module.outputs),
            "SYMBOLS": max(numbers, default=-1) + 1,
            "WEIGHTS_SIZE": weights_size,
            "DRAWS": module.draws,
            "STATEFUL": int(any(b.kind == "state" for b in module.buffers.values())),
        }
        text = "".join(f"#define IG_{name} {value}\n" for name, value in values.items())
        text += (
            "static const char *const ig_sites[] = {" + ", ".join(_quoted(site) for site in [*self.sites, ""]) + "};\n"
        )
        text += self._bind() + self._shapes()
        return text + _resource("exports.h")

    def _symbols(self) -> set[str]:
        found = set(self.module.symbols)
        sizes: list[Size] = [size for a in (*self.module.inputs, *self.module.outputs) for size in a.shape]
        sizes += [size for buffer in self.module.buffers.values() for size in buffer.shape]
        for size in sizes:
            if isinstance(size, Expr):
                found |= {s.name for s in size.symbols if s.name[0] == "n"}
        for step in all_steps(self.module.steps):
            if isinstance(step, Bind):
                found.add(step.symbol)
            if isinstance(step, Repeat):
                found.add(step.loop.variable)
        return found

    def _bind(self) -> str:
        lines = [
            "static int ig_bind(const ingot_tensor *inputs, int64_t *n, char *message, size_t size)",
            "{",
            "    (void)n, (void)inputs;",
        ]
        for number, argument in enumerate(self.module.inputs):
            lines.append(
                f"    if (!ig_input(&inputs[{number}], {_quoted(argument.name)}, {DTYPES.index(argument.dtype)}, "
                f"{len(argument.shape)}, message, size)) return INGOT_INVALID;"
            )
        for name, known in self.module.symbols.items():
            told = (
                f"inputs[{known.place}].shape[{known.dim}]"
                if known.dim >= 0
                else f"*(const int64_t *)inputs[{known.place}].data"
            )
            lines.append(f"    n[{name[1:]}] = {told};")
            high = "INT64_MAX" if known.high is None else known.high
            lines.append(
                f"    if (!ig_range({_quoted(known.name)}, n[{name[1:]}], {known.low}, {high}, message, size)) "
                "return INGOT_INVALID;"
            )
        for number, argument in enumerate(self.module.inputs):
            for dim, size in enumerate(argument.shape):
                if isinstance(size, Expr) and not {s.name for s in size.symbols} <= set(self.module.symbols):
                    continue
                lines.append(
                    f"    if (!ig_dim(&inputs[{number}], {_quoted(argument.name)}, {dim}, {self.size(size)}, "
                    "message, size)) return INGOT_INVALID;"
                )
        lines += ["    return INGOT_OK;", "}", ""]
        return "\n".join(lines)

    def _shapes(self) -> str:
        lines = ["static void ig_shapes(const int64_t *n, int64_t *sizes)", "{", "    (void)n, (void)sizes;"]
        at = 0
        ranks = []
        for argument in self.module.outputs:
            for size in argument.shape:
                lines.append(f"    sizes[{at}] = {self.size(size)};")
                at += 1
            ranks.append(len(argument.shape))
        lines += ["}", ""]
        dtypes = [DTYPES.index(a.dtype) for a in self.module.outputs]
        lines.append(f"static const int ig_ranks[] = {{{', '.join(map(str, [*ranks, 0]))}}};")
        lines.append(f"static const int ig_dtypes[] = {{{', '.join(map(str, [*dtypes, 0]))}}};")
        lines.append(f"enum {{ IG_SIZES = {max(at, 1)} }};")
        states = [
            (p, w) for p in place_weights(self.module)[0] if (w := self.module.buffers[p.weight.buffer]).kind == "state"
        ]
        lines.append(
            "static const int64_t ig_states[][2] = {"
            + ", ".join(f"{{{p.offset}, {p.size}}}" for p, _ in states)
            + ("" if states else "{0, 0}")
            + "};\n"
        )
        return "\n".join(lines)


def _library(used: set[str], group: Callable[[], int]) -> str:
    """What kernels call. `group` gives the group of each shared function, in the order in which they stand."""
    from ingot.codegen.mathlib import source_of

    packs = sorted(name for name in used if name.startswith("ig_pack_"))
    functions = {name for name in used if name.startswith("ig_")} - set(packs)
    functions |= {_READS[dtype] for name in packs if (dtype := name.partition("_from_")[2]) in _READS}
    parts = [source_of(sorted(functions)), routines.library(used)]
    asked = [tuple(name.split()) for name in sorted(used) if " " in name and ".h " not in name]
    if asked or packs:
        parts.append(_resource("products.h"))
    parts += [
        f"IG_VECTOR({kind}, {_REALS[kind]})" for kind in sorted({name[1] for name in asked if name[0] != "zeros"})
    ]
    zeros = max((int(name[1]) for name in asked if name[0] == "zeros"), default=0)
    for kind in sorted({name[1] for name in asked if name[0] == "window"}):
        parts.append(f"IG_WINDOWS({kind}, {_REALS[kind]})\nstatic const {_REALS[kind]} ig_zeros_{kind}[{zeros}];")
    for name, header in (("depth", "depthwise.h"), ("attention", "attention.h"), ("winograd", "winograd.h")):
        if any(words[0] == name for words in asked):
            parts.append(_resource(header))
    for words in asked:
        if words[0] in _SHARED:
            parts += _shared(words, group())
    for pack in packs:
        kind, _, dtype = pack.removeprefix("ig_pack_").partition("_from_")
        parts.append(f"IG_PACK({kind}, {_REALS[kind]}, {dtype}, {STORED[dtype]}, {_READS.get(dtype, 'IG_AS_IT_IS')})")
    return "\n".join(parts)


_REALS = {"f32": "float", "f64": "double"}
_SHARED = ("tile", "window", "depth", "attention", "winograd")


def _shared(words: tuple[str, ...], group: int) -> list[str]:
    """A function that kernels of every group call: declared in all, defined in one."""
    name, kind, *more = words
    macro, arguments = f"IG_{name.upper()}", ", ".join([kind, _REALS[kind], *more])
    head = f"{macro}_HEAD({arguments})"
    if name == "attention":
        arguments += f", INF_{kind.upper()}, {NARROW_EXP[kind]}"
    return [head, f"#if IG_IN({group})", f"{macro}({arguments})", "#endif"]


def _signature() -> list[str]:
    return [
        "static void ig_model_run(",
        "    ingot_model *model, ig_run *run, const ingot_tensor *inputs, const ingot_tensor *outputs, int64_t *n)",
    ]


def _resource(name: str) -> str:
    return (resources.files("ingot.codegen") / "c" / name).read_text()


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _comment(origin: Origin) -> str:
    return str(origin).replace("*/", "* /")
