"""One C file per model: prelude, the library functions it uses, its kernels, the run, and the functions it exports.

    emit(module, plan) -> Source(text, weights)

Identical kernels are written once; the run calls them in order, each with the module path and the user's line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ingot.codegen.c_expressions import STORED, CBodyEmitter, size_text
from ingot.codegen.checked_sizes import MOST_BYTES, check_static_sizes, is_run_size
from ingot.codegen.entry_points import PlacedWeight, export_tables, place_weights, run_size, size_names
from ingot.codegen.native_source import KernelLaunch
from ingot.codegen.run_text import RunText
from ingot.lowering.cost_model import bytes_moved
from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.index_expr import Expr, Size, largest, size_number
from ingot.lowering.loop_ir import (
    Assert,
    Attention,
    AttentionBackward,
    BindSymbol,
    Body,
    ClassifyMaskBlocks,
    ExternKernel,
    For,
    Gemm,
    If,
    LoopNest,
    Map,
    Reduce,
    Scan,
    SourceLocation,
    Stmt,
    While,
)
from ingot.lowering.loop_module import Module
from ingot.registry import Registry
from ingot.scheduling.buffer_planning import MemoryPlan, byte_size
from ingot.targets.cpu.codegen.attention import attention_kernel, tiles_kernel
from ingot.targets.cpu.codegen.attention_backward import gradient_kernel
from ingot.targets.cpu.codegen.builtin_kernels import routine_kernel
from ingot.targets.cpu.codegen.convolution import convolution_kernel
from ingot.targets.cpu.codegen.dual_gemm import pair_kernel
from ingot.targets.cpu.codegen.gemm import product_kernel, siblings_kernel
from ingot.targets.cpu.codegen.headers import resource
from ingot.targets.cpu.codegen.kernel_writer import CKernelWriter, Kernel
from ingot.targets.cpu.codegen.loop_nests import flag_declarations, index_reports, loop_kernel
from ingot.targets.cpu.codegen.runtime_library import RuntimeLibrary
from ingot.targets.cpu.codegen.scan import scan_kernel
from ingot.targets.cpu.codegen.strip_mined import strips_kernel
from ingot.targets.cpu.schedule.cost_model import flops, weighted_flops
from ingot.targets.cpu.schedule.statements import (
    AmxAttention,
    DualGemm,
    GemmGroup,
    PackedGemm,
    StripMined,
    TiledConvolution,
)

# The C compiler's work, counted in characters of kernels: how much is worth a group, and how many groups there may be;
# what a function takes that kernels share.
GROUP = 4000
GROUPS = 4
SHARED_WORK = 4000
_KERNEL = re.compile(r"^IG_KERNEL void k\d+\(", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CSource:
    """The C text, and the blob of weights that it expects. `groups`: how many parts can be made of its kernels."""

    text: str
    weights: tuple[PlacedWeight, ...]
    weights_size: int
    launches: tuple[KernelLaunch, ...] = ()
    groups: int = 1

    @property
    def files(self) -> Mapping[str, str]:
        return {"model.c": self.text}

    @property
    def kernel_count(self) -> int:
        return len(_KERNEL.findall(self.text))


def emit(module: Module, plan: MemoryPlan, *, title: str = "model") -> CSource:
    return ModuleEmitter(module, plan, title).emit()


def emit_body(module: Module, plan: MemoryPlan, library: RuntimeLibrary) -> CSource:
    """The model's own part of its file: kernels, run and exports. What it calls is added to the library."""
    return ModuleEmitter(module, plan, "", library).emit_kernels()


@dataclass
class ModuleEmitter(RunText):
    title: str
    library: RuntimeLibrary = field(default_factory=RuntimeLibrary)
    kernels: dict[str, str] = field(default_factory=dict)
    comments: dict[str, SourceLocation] = field(default_factory=dict)
    launches: list[KernelLaunch] = field(default_factory=list)
    shared_groups: Iterator[int] = field(default_factory=lambda: iter(()))
    kernel_groups: list[int] = field(default_factory=list)

    def emit(self) -> CSource:
        own = self.emit_kernels()
        return replace(own, text="\n".join([self._banner(), self.library.text(self.shared_groups.__next__), own.text]))

    def emit_kernels(self) -> CSource:
        """Kernels, run and exports."""
        weights, size = place_weights(self.module)
        bound = self._run(weights)
        kernels = [self._kernel(text, name) for text, name in self.kernels.items()]
        count = self._share_out(kernels)
        groups: list[list[str]] = [[] for _ in range(count)]
        for kernel, group in zip(kernels, self.kernel_groups, strict=True):
            groups[group].append(kernel)
        parts = ["\n".join([f"#if IG_IN({n})", *group, "#endif"]) for n, group in enumerate(groups) if group]
        names = f"IG_KERNEL ig_kernel {', '.join(self.kernels.values())};\n" if kernels else ""
        fits = self.limits.split(self.module.symbols)[0].function()
        exports = export_tables(self.module, list(self.sites), size) + resource("exports.h")
        rest = "\n".join(["#if IG_IN_RUN", *fits, *bound, exports, "#endif\n"])
        return CSource("\n".join([names, *parts, rest]), weights, size, tuple(self.launches), count)

    def _share_out(self, kernels: Sequence[str]) -> int:
        """Groups of about the same work for the C compiler: shared functions, then kernels."""
        shared = self.library.shared
        work = [*[SHARED_WORK] * shared, *map(len, kernels)]
        count = max(1, min(GROUPS, sum(work) // GROUP))
        groups, before = [], 0
        for one in work:
            groups.append((2 * before + one) * count // (2 * sum(work)))  # where its middle lies
            before += one
        self.shared_groups = iter(groups[:shared])
        self.kernel_groups = groups[shared:]
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

    def _run(self, weights: Sequence[PlacedWeight]) -> list[str]:
        module = self.module
        head = [*_signature()]
        steps = list(module.steps)
        early = 0
        used: set[str] = set().union(*(name for step in steps for name in reads_and_writes(step)))
        self.known = set(module.symbols)
        self.size_names = {name: f"n[{size_number(name)}]" for name in size_names(module)}
        check_static_sizes(module, used)
        for number, argument in enumerate(module.inputs):
            if argument.buffer in used:
                self._declare(argument.buffer, f"inputs[{number}].data")
        while early < len(steps) and isinstance(steps[early], (BindSymbol, Assert)):
            self._step(steps[early])
            early += 1
        self.known = set(module.symbols) | {step.symbol for step in steps[:early] if isinstance(step, BindSymbol)}
        for number, argument in enumerate(module.outputs):
            if argument.buffer in used:
                self._declare(argument.buffer, f"outputs[{number}].data")
        for placed in weights:
            kind = module.buffers[placed.weight.buffer].kind
            base = "weights" if kind == "weight" else "state"
            self._declare(placed.weight.buffer, f"(char *)model->{base} + {placed.offset}")
        self._write_steps(steps[early:])
        return [*head, "{", "    (void)n, (void)outputs, (void)inputs, (void)model;", *self.lines, "}", ""]

    def _declare(self, name: str, address: str) -> None:
        self.line(f"void *const {name} = {address};")

    def _arena(self) -> set[str]:
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
                if isinstance(bytes_, Expr) and not {s.name for s in bytes_.symbols} <= self.known:
                    late.add(name)
                else:
                    size = largest(size, bytes_)
                    at.append(f"void *const {name} = arena + slot{number};")
            bytes_text = f"ig_round_up({run_size(size)})"
            sizes.append(f"const int64_t slot{number + 1} = ig_checked_add(slot{number}, {bytes_text}, &over);")
        self.line("int over = 0;")
        self.line("const int64_t slot0 = 0;")
        for text in sizes:
            self.line(text)
        self.line(f"char *const arena = ig_reserve_arena(run, over ? IG_MOST_BYTES : slot{len(sizes)});")
        self.line("if (!arena) return;")
        for text in at:
            self.line(text)
        return late

    def _step(self, step: Stmt) -> None:
        write = _KERNELS.get(type(step))
        if write is not None:
            writer = CKernelWriter(self.module.buffers, self.library, self.module.hints)
            self._launch(write(writer, step), step)
            return
        match step:
            case BindSymbol():
                value = self._value(step.body, step.origin)
                self.line(f"n[{size_number(step.symbol)}] = {value};")
                self._end_value()
            case Assert():
                value = self._value(step.body, step.origin)
                status = "INGOT_INVALID" if step.on_sizes else "INGOT_ASSERTION"
                self.line(f"if (!({value})) ig_fail_run(run, {status}, {self._site(step.message)});")
                self._end_value()
                self.line("if (run->status) return;")
            case If():
                value = self._value(step.condition, step.origin)
                self.line(f"const int taken = {value};")
                self.line("if (taken) {")
                self._emit_nested(step.then)
                self.line("} else {")
                self._emit_nested(step.otherwise)
                self.line("}")
                self._end_value()
            case While():
                self.line("while (!run->status) {")
                self._emit_nested(step.test)
                self.depth += 1
                value = self._value(step.condition, step.origin)
                self.line(f"if (!({value})) break;")
                self._end_value()
                self.depth -= 1
                self._emit_nested(step.steps)
                self.line("}")
            case For():
                at, count = f"n[{size_number(step.loop.variable)}]", run_size(step.loop.extent)
                self.line(f"for ({at} = 0; {at} < {count} && !run->status; ++{at}) {{")
                self._emit_nested(step.steps)
                self.line("}")
            case _:
                raise AssertionError(f"{type(step).__name__} has no kernel")

    def _value(self, body: Body, origin: SourceLocation) -> str:
        """The body's result in a block that `_end_value` closes."""
        names = self.size_names
        for op in body.ops:
            if isinstance(op.attribute, Expr) and is_run_size(op.attribute):
                self._limit(op.attribute, origin)
        code = CBodyEmitter(
            body, self._element, self.module.buffers, self.library.functions, names=names, finds_indices=True
        )
        self.line("{")
        self.depth += 1
        for text in flag_declarations(code):
            self.line(text)
        for text in (*code.before, *code.inside):
            self.line(text)
        for text in index_reports(code, "run", str(self._site(str(origin))) if code.checks else ""):
            self.line(text)
        if code.zero_checks:
            self.line(f"if (zero) ig_fail_run(run, INGOT_ZERO_DIVISION, {self._site(str(origin))});")
        return code.results[0]

    def _element(self, buffer: str, index: Size) -> str:
        # Statements has given the symbols their names here already.
        return f"((const {STORED[self.module.buffers[buffer].dtype]} *){buffer})[{size_text(index)}]"

    def _launch(self, kernel: Kernel, step: Stmt) -> None:
        origin = step.origin
        name = self.kernels.get(kernel.text)
        if name is None:
            name = self.kernels[kernel.text] = f"k{len(self.kernels)}"
            self.comments[name] = origin
        self._limit(kernel.scratch, origin, MOST_BYTES)
        if isinstance(kernel.scratch, Expr) and not {s.name for s in kernel.scratch.symbols} <= self.known:
            self.line(f"if (!ig_reserve_more_scratch(run, {run_size(kernel.scratch)})) return;")
        else:
            self.scratch.append(kernel.scratch)
        for size in (*kernel.sizes, kernel.total):
            self._limit(size, origin, MOST_BYTES if size is kernel.total else None)
        self.launches.append(
            KernelLaunch(name, origin, flops(step), weighted_flops(step), bytes_moved(step, self.module.buffers))
        )
        numbers = (self._site(str(origin)), run_size(kernel.total), run_size(kernel.grain))
        arguments = ", ".join([str(len(self.launches) - 1), name, *map(str, numbers), *(kernel.buffers or ["0"])])
        self.line(f"LAUNCH({arguments});  /* {_comment(origin)} */")


def _signature() -> list[str]:
    return [
        "IG_CALLS static void ig_model_run(",
        "    ingot_model *model, ig_run *run, const ingot_tensor *inputs, const ingot_tensor *outputs, int64_t *n)",
    ]


def _comment(origin: SourceLocation) -> str:
    return str(origin).replace("*/", "* /")


_KERNELS: Registry[type[Stmt], Callable[[CKernelWriter, Any], Kernel]] = Registry("kernel writer")
_KERNELS.register(Map, Reduce, LoopNest)(loop_kernel)
_KERNELS.register(Gemm, PackedGemm)(product_kernel)
_KERNELS.register(GemmGroup)(siblings_kernel)
_KERNELS.register(DualGemm)(pair_kernel)
_KERNELS.register(TiledConvolution)(convolution_kernel)
_KERNELS.register(StripMined)(strips_kernel)
_KERNELS.register(Attention, AmxAttention)(attention_kernel)
_KERNELS.register(ClassifyMaskBlocks)(tiles_kernel)
_KERNELS.register(AttentionBackward)(gradient_kernel)
_KERNELS.register(Scan)(scan_kernel)
_KERNELS.register(ExternKernel)(routine_kernel)
