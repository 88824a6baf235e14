"""The host's text: tables of inputs, outputs and sizes, the run that records launches, and the exported functions.

Control flow is the host's. A value that only sizes decide is computed in C; one that lies in the device's memory is
computed by a kernel of one thread, which writes it to memory that both see, and the host waits for it. Such a run
launches its kernels immediately; every other run becomes a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ingot.codegen.c_expressions import CBodyEmitter
from ingot.codegen.checked_sizes import MOST_BYTES, check_static_sizes, is_run_size
from ingot.codegen.entry_points import PlacedWeight, export_tables, run_size, size_names
from ingot.codegen.headers import HeaderSet
from ingot.codegen.math_library import source_of
from ingot.codegen.run_text import RunText
from ingot.lowering.dependence import all_steps, body_reads, reads_and_writes
from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import Expr, Size, largest, size_number
from ingot.lowering.loop_ir import Assert, BindSymbol, Body, For, If, Stmt, While
from ingot.lowering.loop_module import Module
from ingot.scheduling.buffer_planning import byte_size
from ingot.targets.cuda.codegen.device_parts import split_kernels
from ingot.targets.cuda.codegen.kernel import CudaKernel, Grid, map_words
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter, StepScratch
from ingot.targets.cuda.codegen.products.stream_kernel import BARRIER

HEADERS = HeaderSet(("ingot.codegen", "ingot.targets.cuda.codegen"))
# What a kernel takes for the address of the value that it computes for the host.
RESULT = "result:"


@dataclass
class KernelTable:
    """The kernels so far: what each is, the dynamic shared memory that it needs, -1 where sizes decide, and that of its
    text for older GPUs, -1 where it is the same; whether it waits for the kernel before it, whether its blocks
    wait for each other, how many maps of tensors it takes, and how many words its table of layers has."""

    numbers: dict[tuple[str, tuple[str, ...], int, int], int] = field(default_factory=dict)
    shared: list[int] = field(default_factory=list)
    plain_shared: list[int] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)
    together: list[int] = field(default_factory=list)
    maps: list[int] = field(default_factory=list)
    tables: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)  # of their texts
    words: int = 0  # arguments that a kernel has at most, a table as one, without maps

    def find(self, kernel: CudaKernel) -> int | None:
        """The number of a kernel with the same text; the table remembers what this one needs."""
        number = self.numbers.get(_key_of(kernel))
        if number is not None:
            self._need(number, kernel.shared)
        return number

    def add(self, kernel: CudaKernel) -> int:
        number = self.numbers[_key_of(kernel)] = len(self.shared)
        self.shared.append(0)
        self.plain_shared.append(-1 if kernel.plain_shared is None else kernel.plain_shared)
        self.maps.append(len(kernel.maps))
        self.tables.append(kernel.table_words)
        self.waits.append(int(kernel.waits))
        self.together.append(int(kernel.together))
        self.lengths.append(len(kernel.text))
        self._need(number, kernel.shared)
        self.words = max(self.words, len(kernel.buffers) + len(kernel.sizes) + bool(kernel.table))
        return number

    def parts(self) -> list[list[int]]:
        """The kernels that are compiled together."""
        return split_kernels(self.lengths)

    def _need(self, number: int, shared: Size) -> None:
        before = self.shared[number]
        self.shared[number] = max(before, shared) if isinstance(shared, int) and before >= 0 else -1


def _key_of(kernel: CudaKernel) -> tuple[str, tuple[str, ...], int, int]:
    return kernel.text, kernel.signature, kernel.block, kernel.cluster


@dataclass
class HostText(RunText):
    """The host's text as it is written. `write_step` gives the kernels of a step, `add_kernel` enters one of them, and
    `writer` makes what writes another one."""

    table: KernelTable
    write_step: Callable[[Stmt], tuple[Sequence[CudaKernel], StepScratch]]
    add_kernel: Callable[[CudaKernel, Stmt, bool], tuple[int, int]]
    writer: Callable[[], CudaKernelWriter]
    functions: set[str] = field(default_factory=set)  # of the math library, that the host calls

    def write(self, weights: Sequence[PlacedWeight], weights_size: int) -> str:
        run = self._run(weights)
        fits = self.limits.split(self.module.symbols)[0].function()
        tables = [export_tables(self.module, list(self.sites), weights_size), self._tables()]
        before = ("host_includes.h", "prelude.h", "index_arithmetic.h", "checked_sizes.h", "abi.h", "argument_checks.h")
        device = ("driver.h", "launches.h", "images.h", "device_run.h")
        parts = [*map(HEADERS.read, before), source_of(sorted(self.functions)), *tables, *map(HEADERS.read, device)]
        return "\n".join([*parts, *fits, *run, HEADERS.read("device_exports.h")])

    def _tables(self) -> str:
        used: set[str] = set().union(*(names for step in self.module.steps for names in reads_and_writes(step)))
        uses = [2 if argument.mutated else int(argument.buffer in used) for argument in self.module.inputs]
        places = [known.place for known in self.module.symbols.values() if known.dim < 0]
        parts = self.table.parts()
        part_of = {kernel: number for number, part in enumerate(parts) for kernel in part}
        lists = {
            "unsigned char ig_input_uses": [*uses, 0],  # 1: read, 2: written
            "int ig_size_inputs": [*sorted(set(places)), -1],
            "int ig_kernel_shared": [*self.table.shared, 0],
            "int ig_plain_shared": [*self.table.plain_shared, 0],
            "unsigned char ig_kernel_waits": [*self.table.waits, 0],
            "unsigned char ig_kernel_together": [*self.table.together, 0],
            "unsigned char ig_kernel_maps": [*self.table.maps, 0],
            "int ig_kernel_tables": [*self.table.tables, 0],
            "unsigned char ig_kernel_parts": [*(part_of[kernel] for kernel in sorted(part_of)), 0],
        }
        macros = {
            "KERNELS": len(self.table.shared),
            "IMAGE_PARTS": len(parts),
            "MOST_WORDS": self.table.words,
            "MOST_MAPS": max(self.table.maps, default=0),
            "AT_ONCE": int(waits(self.module)),
            "TOGETHER": int(any(self.table.together)),
        }
        text = "".join(f"#define IG_{name} {value}\n" for name, value in macros.items())
        return text + "".join(
            f"static const {name}[] = {{{', '.join(map(str, values))}}};\n" for name, values in lists.items()
        )

    # ------------------------------------------------------------------ the run

    def _run(self, weights: Sequence[PlacedWeight]) -> list[str]:
        module = self.module
        steps = list(module.steps)
        used: set[str] = set().union(*(names for step in steps for names in reads_and_writes(step)))
        self.known = set(module.symbols)
        self.size_names = {name: f"n[{size_number(name)}]" for name in size_names(module)}
        check_static_sizes(module, used)
        for number, argument in enumerate(module.inputs):
            if argument.buffer in used:
                self._declare(argument.buffer, f"run->inputs[{number}]")
        for number, argument in enumerate(module.outputs):
            if argument.buffer in used:
                self._declare(argument.buffer, f"run->outputs[{number}]")
        for placed in weights:
            self._declare(placed.weight.buffer, f"model->weights + {placed.offset}")
        early = 0
        while early < len(steps) and isinstance(steps[early], (BindSymbol, Assert)):
            self._step(steps[early])
            early += 1
        self.known |= {step.symbol for step in steps[:early] if isinstance(step, BindSymbol)}
        self._write_steps(steps[early:])
        head = "static void ig_model_run(ingot_model *model, ig_run *run, int64_t *n)"
        return [head, "{", "    (void)n, (void)model;", *self.lines, "}", ""]

    def _declare(self, name: str, address: str) -> None:
        self.line(f"const ig_address {name} = {address};")

    def _arena(self) -> set[str]:
        """Declares the temporaries; returns those whose size is not known when the run begins."""
        buffers = self.module.buffers
        if not self.plan.dynamic:
            if self.plan.offsets:
                self.line(f"const ig_address arena = ig_reserve_arena(run, {self.plan.size});")
                self.line("if (!arena) return;")
            for name, offset in self.plan.offsets.items():
                self.line(f"const ig_address {name} = arena + {offset};")
            return set()
        late: set[str] = set()
        at: list[str] = []
        self.line("int over = 0;")
        self.line("const int64_t slot0 = 0;")
        for number, slot in enumerate(self.plan.slots):
            size: Size = 0
            for name in slot:
                bytes_ = byte_size(buffers[name])
                if isinstance(bytes_, Expr) and not {s.name for s in bytes_.symbols} <= self.known:
                    late.add(name)
                else:
                    size = largest(size, bytes_)
                    at.append(f"const ig_address {name} = arena + (ig_address)slot{number};")
            bytes_text = f"ig_round_up({run_size(size)})"
            self.line(f"const int64_t slot{number + 1} = ig_checked_add(slot{number}, {bytes_text}, &over);")
        self.line(f"const ig_address arena = ig_reserve_arena(run, over ? IG_MOST_BYTES : slot{len(self.plan.slots)});")
        self.line("if (!arena) return;")
        for text in at:
            self.line(text)
        return late

    # ------------------------------------------------------------------ steps

    def _step(self, step: Stmt) -> None:
        match step:
            case BindSymbol():
                self.line(f"n[{size_number(step.symbol)}] = {self._value(step.body, step)};")
                self._end_value()
                self.line("if (run->status) return;")
            case Assert():
                self._assert(step)
            case If():
                self.line(f"const int taken = (int){self._value(step.condition, step)};")
                self.line("if (run->status) return;")
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
                value = self._value(step.condition, step)
                self.line(f"if (!({value}) || run->status) break;")
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
                self._launch(step)

    def _launch(self, step: Stmt) -> None:
        kernels, scratch = self.write_step(step)
        self._limit(scratch.size, step.origin, MOST_BYTES)
        if isinstance(scratch.size, Expr) and not {s.name for s in scratch.size.symbols} <= self.known:
            self.line(f"if (!ig_reserve_scratch(run, {run_size(scratch.size)})) return;")
        else:
            self.scratch.append(scratch.size)
        for place, kernel in enumerate(kernels):
            self._launch_kernel(kernel, step, place == 0, scratch)

    def _launch_kernel(
        self, kernel: CudaKernel, step: Stmt, is_first: bool, scratch: StepScratch, site: str = ""
    ) -> None:
        map_sizes = [size for made in kernel.maps for size in (made.offset, *made.sizes, *made.steps)]
        for size in (*kernel.computed, kernel.grid.x, kernel.grid.y, kernel.grid.z, kernel.shared, *map_sizes):
            self._limit(size, step.origin)
        number, launch = self.add_kernel(kernel, step, is_first)
        grid = (kernel.grid.x, kernel.grid.y, kernel.grid.z)
        draws = int("context.seed" in kernel.text)
        head = [launch, number, self._site(site or str(step.origin)), *map(run_size, grid), kernel.block]
        words: list[str] = []
        for made in kernel.maps:
            begin = f"{run_size(made.offset)} * {BYTES[made.dtype]}"
            words.append(f"{self._address(made.buffer, scratch)} + (uint64_t)({begin})")
            words += [f"(uint64_t)({run_size(size)})" for size in map_words(made)]
        words += [self._address(buffer, scratch) for layer in kernel.table for buffer in layer]
        words += [self._address(buffer, scratch) for buffer in kernel.buffers]
        words += [f"(uint64_t)n[{size_number(name)}]" for name in kernel.sizes]
        arguments = ", ".join(map(str, [*head, run_size(kernel.shared), draws, *(words or ["0"])]))
        self.line(f"LAUNCH({arguments});  /* {str(step.origin).replace('*/', '* /')} */")

    def _address(self, buffer: str, scratch: StepScratch) -> str:
        if buffer == RESULT:
            return "run->value_address"
        if buffer == BARRIER:
            return "run->barrier"
        if buffer in scratch.offsets:
            return f"run->scratch + (uint64_t)({run_size(scratch.offsets[buffer])})"
        return buffer

    # ------------------------------------------------------------------ values

    def _assert(self, step: Assert) -> None:
        if not body_reads(step.body):
            status = "INGOT_INVALID" if step.on_sizes else "INGOT_ASSERTION"
            value = self._value(step.body, step)
            self.line(f"if (!({value})) ig_fail_run(run, {status}, {self._site(step.message)});")
            self._end_value()
            self.line("if (run->status) return;")
            return
        # Nobody waits: the kernel reports.
        out = self.writer()
        code = out.statements(step.body, ())
        self._write_statements(out, code)
        out.line(f"if (!({code.results[0]})) ig_fail(context, INGOT_ASSERTION);")
        self._launch_kernel(out.finish(Grid(1), 1), step, True, out.scratch, step.message)

    def _value(self, body: Body, step: Stmt) -> str:
        """The body's result in a block that `_end_value` closes."""
        self.line("{")
        self.depth += 1
        if body_reads(body):
            out = self.writer()
            code = out.statements(body, ())
            self._write_statements(out, code)
            pointer = out.scratch_pointer(RESULT, "int64_t", written=True)
            out.line(f"*{pointer} = (int64_t)({code.results[0]});")
            self._launch_kernel(out.finish(Grid(1), 1), step, True, out.scratch)
            return "ig_read_value(run)"
        for op in body.ops:
            if isinstance(op.attribute, Expr) and is_run_size(op.attribute):
                self._limit(op.attribute, step.origin)
        code = CBodyEmitter(body, _no_place, self.module.buffers, self.functions, names=self.size_names)
        if code.checks:
            self.line("int bad = 0;")
        if code.zero_checks:
            self.line("int zero = 0;")
        for text in (*code.before, *code.inside):
            self.line(text)
        if code.checks:
            self.line(f"if (bad) ig_fail_run(run, INGOT_INDEX, {self._site(str(step.origin))});")
        if code.zero_checks:
            self.line(f"if (zero) ig_fail_run(run, INGOT_ZERO_DIVISION, {self._site(str(step.origin))});")
        return f"({code.results[0]})"

    def _write_statements(self, out: CudaKernelWriter, code: CBodyEmitter) -> None:
        out.declare_flags(code)
        for text in (*code.before, *code.inside):
            out.line(text)
        out.report_flags(code)


def waits(module: Module) -> bool:
    """Whether the host waits for values of the device while the module runs."""
    for step in all_steps(module.steps):
        match step:
            case BindSymbol():
                if body_reads(step.body):
                    return True
            case If() | While():
                if body_reads(step.condition):
                    return True
    return False


def _no_place(buffer: str, index: Size) -> str:
    raise AssertionError(f"the host reads {buffer}")
