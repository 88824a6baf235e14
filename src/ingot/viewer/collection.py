"""Collects a view of a program while it is compiled: every pass, every scheduling step, and the emitted text."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ingot import _gc, pipelines
from ingot import torch_internals as internals
from ingot.artifacts.compiled_model import CompiledModel
from ingot.codegen.build.page_prefault import Pages
from ingot.codegen.native_source import NativeSource
from ingot.compiler import resolve_disabled
from ingot.errors import IngotError, UnknownTarget, UnsupportedPrecision, format_error
from ingot.ir.dialects import CAPTURED
from ingot.ir.program import Program
from ingot.lowering.loop_module import Module, Precision
from ingot.passes.manager import info_of, run_pipeline, stage_of
from ingot.targets.base import NativeTarget
from ingot.targets.registry import find_target
from ingot.viewer.assembly.assembly_texts import add_assembly, add_assembly_of
from ingot.viewer.measured.gpu_counters import count_model
from ingot.viewer.measured.memory_data import describe_memory
from ingot.viewer.measured.numeric_checks import SAME, NumericChecks
from ingot.viewer.measured.profile_data import describe_profile
from ingot.viewer.stages.code_stages import add_code
from ingot.viewer.stages.links import link_origins
from ingot.viewer.stages.loop_stages import LoopStages
from ingot.viewer.stages.program_stages import ProgramStages, describe_program
from ingot.viewer.stages.program_text import mask_sources
from ingot.viewer.summary import name_of
from ingot.viewer.view_data import NOWHERE, ViewData
from ingot.viewer.weights.tensor_pool import TensorPool
from ingot_runtime.device_model import DeviceModel

# Called with what is done next; what it gives is entered while that is done.
Progress: TypeAlias = Callable[[str], AbstractContextManager[object]]

_NO_EXAMPLE = "The program has no example inputs, so nothing was run: there are no numbers and no profile."


def ignore_progress(doing: str) -> AbstractContextManager[object]:
    return nullcontext()


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """What a view shows besides the stages. `numerics`: every stage runs and is compared. `profile`: the compiled model
    runs. Both need the program's example inputs. `weights`: the values of weights are kept, to be asked for.
    `disassembly`: the code is built, and taken apart. `counters`: a GPU's counters are read, on the example."""

    target: str = "cpu"
    precision: Precision = "float32"
    disabled: Collection[str] = ()
    threads: int | None = None
    numerics: bool = False
    profile: bool = False
    weights: bool = False
    disassembly: bool = False
    counters: bool = False
    progress: Progress = field(default=ignore_progress)

    @property
    def runs_kernels(self) -> bool:
        return self.profile or self.counters


def collect_program(
    program: Program,
    options: ViewOptions,
    *,
    reference: str = "",
    origin: str = "program",
    title: str = "",
    seconds: float | None = None,
) -> ViewData:
    """A view of a program. What cannot be compiled is shown as far as it comes, with a note that says why. `seconds`:
    how long the capture took."""
    tensors = TensorPool() if options.weights else None
    view = ViewData(title or name_of(program), reference, origin, options.target, tensors=tensors)
    with _gc.pause(), internals.real_tensors():  # as compile() has it
        made = _StageCollector(view, program.copy(), options).collect()
    made.stages[0]["seconds"] = seconds
    return made


def collect_compiled_model(
    compiled: CompiledModel,
    module: Module,
    source: NativeSource,
    *,
    profile: bool = False,
    disassembly: bool = False,
) -> ViewData:
    """A view of a model that is compiled: what its code was made of, not how that came about."""
    view = ViewData(name_of(compiled.program), "", "compiled", compiled.isa, tensors=TensorPool())
    program = compiled.program.copy()
    mask_sources(program.graph_module, view.files.hides)
    graphs = ProgramStages(view)
    describe_program(view, graphs, program)
    graphs.add("lowered", "passes", program)
    LoopStages(view).add("scheduled", "schedule", module)
    add_code(view, source, module)
    if disassembly:
        add_assembly_of(view, compiled.libraries)
    link_origins(view, graphs.listed)
    view.memory = describe_memory(module, source.weights_size, _step_origins(view))
    if profile and program.example_inputs is not None:
        view.profile = describe_profile(view, compiled, source)
    elif profile:
        view.notes.append(_NO_EXAMPLE)
    describe_facts(view, program)
    return view


def _step_origins(view: ViewData) -> list[int]:
    """The origin of each step of the last loop IR stage."""
    steps = view.steps_of(view.last_stage("loop_ir"))
    return [step["origins"][0] if step["origins"] else NOWHERE for step in steps]


def _find_machine(options: ViewOptions) -> NativeTarget[Any]:
    """The target of the options. Raises UnknownTarget, UnsupportedPrecision."""
    found = find_target(options.target)
    if not isinstance(found, NativeTarget):
        why = f"the target {found.name!r} has no code to show"
        raise UnknownTarget(
            format_error("This view cannot be made.", why=why, fix='give target="cpu" or target="cuda"')
        )
    if options.precision not in found.precisions:
        known = " or ".join(map(repr, found.precisions))
        raise UnsupportedPrecision(f"precision is {options.precision!r}: give {known} for the target {found.name!r}")
    return found


class _StageCollector:
    def __init__(self, view: ViewData, program: Program, options: ViewOptions) -> None:
        self.view, self.program, self.options = view, program, options
        self.target = _find_machine(options)
        self.disabled = resolve_disabled(options.disabled)
        self.graphs, self.loops = ProgramStages(view), LoopStages(view)
        self.checks: NumericChecks | None = None
        mask_sources(program.graph_module, view.files.hides)
        if (options.numerics or options.runs_kernels) and program.example_inputs is None:
            view.notes.append(_NO_EXAMPLE)
        elif options.numerics:
            self.checks = NumericChecks(view, program)

    def collect(self) -> ViewData:
        try:
            self._run_passes()
            module = self._schedule(self._lower())
            source = self._emit(module)
            if (self.options.runs_kernels or self.checks is not None) and self.program.example_inputs is not None:
                self._run(module, source)
        except IngotError as error:
            self.view.notes.append(f"{type(error).__name__}: {error}")
        link_origins(self.view, self.graphs.listed)
        describe_facts(self.view, self.program)
        return self.view

    # ------------------------------------------------------------------ stages

    def _run_passes(self) -> None:
        program = self.program
        describe_program(self.view, self.graphs, program)
        exact = {
            info_of(stage_of(item).function).name: info_of(stage_of(item).function).exact for item in pipelines.NATIVE
        }
        self._add_program("captured" if program.dialect is CAPTURED else "program", "capture", True)

        def show(name: str, made: Program) -> None:
            self._add_program(name, "passes", exact.get(name, False))

        pipeline = pipelines.omit_passes(pipelines.NATIVE, self.disabled)
        arguments = {pipelines.PRESERVED_OPS.name: self.target.preserved_ops(self.disabled)}
        with self.options.progress("running passes"):
            run_pipeline(program, pipeline, arguments=arguments, snapshots=show)

    def _add_program(self, name: str, group: str, exact: bool) -> None:
        step = self.program.history[-1] if group == "passes" else None
        stage = self.graphs.add(
            name,
            group,
            self.program,
            seconds=None if step is None else step.seconds,
            changes=None if step is None else step.changes,
            options={} if step is None else {key: str(value) for key, value in step.options},
        )
        if self.checks is not None:
            delta = stage["delta"]
            same = delta is not None and not any(delta.values())
            stage["check"] = SAME if same else self.checks.check_program(self.program, self.graphs.indexes, exact)

    def _lower(self) -> Module:
        begin = time.perf_counter()
        with self.options.progress("lowering to loops"):
            module = self.target.lower(self.program, self.options.precision, self.disabled)
        self._add_module("lower", "lowering", module, time.perf_counter() - begin)
        return module

    def _schedule(self, module: Module) -> Module:
        begin = time.perf_counter()

        def observe(name: str, before: Module, after: Module) -> None:
            nonlocal begin
            self._add_module(name, "schedule", after, time.perf_counter() - begin)
            begin = time.perf_counter()

        with self.options.progress("scheduling loops"):
            return self.target.schedule(module, self.disabled, observe=observe)

    def _add_module(self, name: str, group: str, module: Module, seconds: float) -> None:
        stage = self.loops.add(name, group, module, seconds=seconds)
        if self.checks is not None:
            delta = stage["delta"]
            same = delta is not None and not any(delta.values())
            stage["check"] = SAME if same else self.checks.check_module(self.target, self.program, module)

    def _emit(self, module: Module) -> NativeSource:
        begin = time.perf_counter()
        with self.options.progress("writing code"):
            source: NativeSource = self.target.emit(module, title=self.view.title)
        add_code(self.view, source, module, seconds=time.perf_counter() - begin)
        if self.options.disassembly:
            with self.options.progress("disassembling"):
                add_assembly(self.view, source)
        self.view.memory = describe_memory(module, source.weights_size, _step_origins(self.view))
        return source

    def _run(self, module: Module, source: NativeSource) -> None:
        """Builds the model and runs it."""
        with self.options.progress("compiling"), Pages(0) as pages, contextlib.ExitStack() as models:
            blob = self.target.pack_weights(self.program, module, source, pages)

            libraries = self.target.build(source)
            compiled = CompiledModel(self.program, module, source, blob, libraries, self.target, self.options.threads)
            models.callback(compiled.close)
            self.view.facts += [("instruction set", compiled.isa), ("threads", str(compiled.threads))]
            if self.checks is not None:
                self.view.last_stage("code")["check"] = self.checks.check_call(compiled, self.program, module)
            if self.options.profile:
                self.view.profile = describe_profile(self.view, compiled, source)
            if self.options.counters:
                with self.options.progress("counting on the GPU"):
                    self._count(compiled)

    def _count(self, compiled: CompiledModel) -> None:
        if isinstance(compiled.model, DeviceModel):
            self.view.counters = count_model(compiled)
        else:
            self.view.notes.append("Counters are those of a GPU, and this view is of code for the CPU.")


def describe_facts(view: ViewData, program: Program) -> None:
    """Sizes of the program, for the page's head."""
    parameters = program.parameters().values()
    count = sum(tensor.numel() for tensor in parameters)
    size = sum(tensor.numel() * tensor.element_size() for tensor in parameters)
    view.facts.append(("parameters", f"{count:,}, {size:,} bytes"))
    first = next((stage for stage in view.stages if stage["kind"] == "graph"), None)
    if first is not None:
        view.facts.append(
            ("nodes", f"{first['counts']['nodes']:,} captured, {view.last_stage('graph')['counts']['nodes']:,} lowered")
        )
    if view.memory is not None:
        arena = "by the sizes of a call" if view.memory["dynamic"] else f"{view.memory['size']:,} bytes"
        view.facts += [("arena", arena), ("weights", f"{view.memory['weights']:,} bytes, packed")]
    if view.target is not None:
        view.facts.append(("target", view.target))
