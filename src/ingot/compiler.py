"""compile() and load(), one line per stage."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal, TypeAlias, overload

import torch
from torch import nn

from ingot import _gc, pipelines
from ingot import torch_internals as internals
from ingot.api import capture
from ingot.artifacts.compiled_model import CompiledModel, find_device
from ingot.artifacts.loaded_model import LoadedModel
from ingot.autograd.trainable_model import TrainableModel
from ingot.codegen.build.page_prefault import Pages
from ingot.config import Settings
from ingot.errors import MissingMember, PassError, UnknownTarget, UnsupportedPrecision, UntrustedFile, format_error
from ingot.interop.torch_export import is_archive, read_archive
from ingot.interop.train_eval import warn_of_train_mode
from ingot.ir.program import Program
from ingot.lowering.loop_module import Module, Precision
from ingot.passes.manager import Check, run_pipeline
from ingot.serialization import program_file
from ingot.targets.base import NativeTarget, Target
from ingot.targets.cpu.target import CPU
from ingot.targets.reference.interpreted_model import InterpretedModel
from ingot.targets.reference.schedule_check import schedule_checked
from ingot.targets.reference.target import ReferenceTarget
from ingot.targets.registry import TARGETS, find_target
from ingot_runtime import Trust, open_container
from ingot_runtime.container import skip_nothing, skip_program
from ingot_runtime.container.signing import check_trust
from ingot_runtime.model import check_threads, model_of

# Told the name of each stage; what it gives is entered while the stage runs. Where that is a function, it is called
# with the name of each part of the stage that is done: of each pass.
StageHook: TypeAlias = Callable[[str], AbstractContextManager[object]]


def _ignore_stage(stage: str) -> AbstractContextManager[object]:
    return nullcontext()


# Everything that `compile` can do without, in order: passes over the graph, choices of kernels, passes over loops.
OPTIONAL_PASSES = (*pipelines.OPTIONAL, *CPU.optional_passes)


@overload
def compile(  # type: ignore[overload-overlap]  # a string that is not known ahead may be that of this target, too
    model: nn.Module | Callable[..., Any] | Program,
    args: Sequence[Any] = ...,
    kwargs: Mapping[str, Any] | None = ...,
    *,
    dynamic_shapes: Any = ...,
    target: Literal["reference"],
    precision: Precision = ...,
    disable_passes: Collection[str] = ...,
    check: Check = ...,
    on_stage: StageHook = ...,
) -> InterpretedModel: ...


@overload
def compile(
    model: nn.Module | Callable[..., Any] | Program,
    args: Sequence[Any] = ...,
    kwargs: Mapping[str, Any] | None = ...,
    *,
    dynamic_shapes: Any = ...,
    target: str | Target[Any] = ...,
    threads: int | None = ...,
    cache: bool = ...,
    isa: str | Sequence[str] | None = ...,
    precision: Precision = ...,
    disable_passes: Collection[str] = ...,
    training: Literal[False] = ...,
    check: Check = ...,
    on_stage: StageHook = ...,
) -> CompiledModel: ...


@overload
def compile(
    model: nn.Module | Callable[..., Any] | Program,
    args: Sequence[Any] = ...,
    kwargs: Mapping[str, Any] | None = ...,
    *,
    target: str | Target[Any] = ...,
    threads: int | None = ...,
    cache: bool = ...,
    disable_passes: Collection[str] = ...,
    training: Literal[True],
    check: Check = ...,
    on_stage: StageHook = ...,
) -> TrainableModel: ...


def compile(
    model: nn.Module | Callable[..., Any] | Program,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    target: str | Target[Any] = "cpu",
    threads: int | None = None,
    cache: bool = True,
    isa: str | Sequence[str] | None = None,
    precision: Precision = "float32",
    disable_passes: Collection[str] = (),
    training: bool = False,
    check: Check = None,
    on_stage: StageHook = _ignore_stage,
) -> CompiledModel | TrainableModel | InterpretedModel:
    """The model, or a Program of it, as native code that is called like the model.

    `target` is the machine to compile for: a name or a Target. `threads` defaults to one per core. `cache=False` runs
    the C compiler even if this C text was compiled before. `isa` names instruction sets to build for besides this
    machine's own; "portable" stands for x86-64 with AVX2, AVX-512, bfloat16 and AMX. `precision="bfloat16"`
    stores the weights of matrix products and convolutions in bfloat16 and multiplies in it; sums and all other values
    keep their dtype, and attention multiplies in bfloat16 on AMX alone. `disable_passes` names optional passes to leave
    out, among `OPTIONAL_PASSES`, besides those in INGOT_DISABLE_PASSES; the result computes the same, more slowly.
    `on_stage` is called with the name of each stage and returns a context manager that the stage runs in; if that gives
    a function, the function is called with the name of each pass that is done.

    `target` "cuda" compiles for NVIDIA's GPUs, and needs none: without one the model can be saved, and a call raises
    DeviceUnavailable. `isa` then names architectures of GPUs ("sm_90a", "sm_80") in place of the default ones, and
    "ptx" adds text that those to come compile for themselves. Without `isa`, a model whose tensors lie on a GPU is
    compiled for that GPU, and for the other default architectures when it is saved. Arguments may lie on the GPU or on
    the host. `precision="tf32"` multiplies float32 on tensor cores, operands rounded to 10 bits of fraction, with sums
    in float32; without it float32 stays float32, whatever torch.backends says.

    `target` "reference" interprets the model's loops with NumPy, slowly: the result is an InterpretedModel, which is
    called in the same way and has no file. With `check` "numerics" the loops are interpreted on the example before and
    after every scheduling step, and ScheduleError names the first that changes what they compute, or says that they do
    not compute what torch does; "structure" runs every rule of the loop IR's verifier after every step.

    With `training`, forward and backward both become native code, and autograd goes through the call: gradients reach
    the model's own parameters and the arguments. The result is an nn.Module that shares the model's state. It takes no
    `dynamic_shapes`: every other size, mode or dtype is compiled when it is first met, and the latest 32 are kept.
    """
    found = find_target(target)
    machine = found if isinstance(found, ReferenceTarget) and not training else _check_native(found)
    check_threads(threads)
    check_precision(precision, machine)
    _validate_check(check)
    disabled = resolve_disabled(disable_passes)
    if training:
        assert isinstance(machine, NativeTarget)
        return _compile_training(
            machine, model, args, kwargs, dynamic_shapes, threads, cache, disabled, check, on_stage
        )
    with _gc.pause(), internals.real_tensors(), Pages(_state_bytes(model)) as pages:
        with on_stage("capture"):
            program = (
                model if isinstance(model, Program) else capture(model, args, kwargs, dynamic_shapes=dynamic_shapes)
            )
        warn_of_train_mode(program, stacklevel=3)
        if isinstance(machine, ReferenceTarget):
            program, module = _lower_program(machine, program, precision, disabled, check, on_stage)
            return InterpretedModel(machine, program, module)
        return _compile_program(
            machine, program, type(model).__name__, threads, cache, isa, precision, disabled, check, on_stage, pages
        )


def resolve_disabled(names: Collection[str]) -> frozenset[str]:
    """The passes to leave out: those given, and those that the environment names. Raises PassError for unknown ones."""
    given = {names} if isinstance(names, str) else set(names)
    disabled = given | set(Settings.from_environment().disabled_passes)
    unknown = disabled - set(OPTIONAL_PASSES)
    if unknown:  # or of another target, which is imported for that only
        unknown -= {name for target in TARGETS for name in find_target(target).optional_passes}
    if unknown:
        raise PassError(
            format_error(
                f"There is no optional pass {', '.join(map(repr, sorted(unknown)))}.",
                why=f"those that can be left out are {', '.join(OPTIONAL_PASSES)}",
                fix="give disable_passes, or INGOT_DISABLE_PASSES, names among these",
            )
        )
    return frozenset(disabled)


def choose_target(tensors: Iterable[Any]) -> str:
    """The name of the target whose code takes these tensors where they lie."""
    return "cuda" if any(isinstance(x, torch.Tensor) and x.is_cuda for x in tensors) else "cpu"


def _check_native(target: Target[Any]) -> NativeTarget[Any]:
    """The target, which must be one whose libraries this process can load."""
    if not isinstance(target, NativeTarget):
        raise UnknownTarget(
            format_error(
                f"A model cannot be compiled and called for the target {target.name!r}.",
                why="a compiled model runs on the CPU or on a GPU",
                fix='give target="cpu" or target="cuda", or call the target itself: lower, schedule, emit, build',
            )
        )
    return target


def check_precision(precision: str, target: Target[Any]) -> None:
    """Raises UnsupportedPrecision, which names the target that has it, for one that this target does not have."""
    if precision in target.precisions:
        return
    others = [name for name in TARGETS if precision in find_target(name).precisions and name != "reference"]
    where = f", which the target {' or '.join(map(repr, others))} has" if others else ""
    known = " or ".join(map(repr, target.precisions))
    raise UnsupportedPrecision(f"precision is {precision!r}{where}: give {known} for the target {target.name!r}")


def _validate_check(check: str | None) -> None:
    if check not in (None, "structure", "numerics"):
        raise ValueError(f"check is {check!r}: give None, 'structure' or 'numerics'")


def _lower_program(
    target: Target[Any],
    program: Program,
    precision: Precision,
    disabled: frozenset[str],
    check: Check,
    on_stage: StageHook,
) -> tuple[Program, Module]:
    """The program after its passes, and its scheduled loops."""
    with on_stage("passes") as step:
        program = run_cpu_pipeline(program, disabled, target, on_pass=step if callable(step) else None)
    with on_stage("lower"):
        module = target.lower(program, precision, disabled)
        if check == "numerics":
            return program, schedule_checked(target, program, module, disabled)
        return program, target.schedule(module, disabled, verify=check is not None)


def _compile_program(
    target: NativeTarget[Any],
    program: Program,
    title: str,
    threads: int | None,
    cache: bool,
    isa: str | Sequence[str] | None,
    precision: Precision,
    disabled: frozenset[str],
    check: Check,
    on_stage: StageHook,
    pages: Pages,
) -> CompiledModel:
    program, module = _lower_program(target, program, precision, disabled, check, on_stage)
    with on_stage("emit"):
        source = target.emit(module, title=title)
    # A model that lies on a GPU is compiled for that one; what a file has for others, `save` compiles.
    machines = isa or target.choose_machines(find_device(program))
    with on_stage("cc"), ThreadPoolExecutor(1) as aside:  # the C compiler works while the weights are packed
        libraries = aside.submit(target.build, source, machines, cache=cache)
        blob = target.pack_weights(program, module, source, pages)
    complete = None if isa else partial(target.build_rest, source, cache=cache)
    return CompiledModel(program, module, source, blob, libraries.result(), target, threads, complete=complete)


def _state_bytes(model: nn.Module | Callable[..., Any] | Program) -> int:
    """Estimated weight size in bytes. Tied weights may count twice; used only to size the pre-allocation."""
    if isinstance(model, Program):
        tensors = [*model.state_dict.values(), *model.constants.values()]
    else:
        tensors = [*model.parameters(), *model.buffers()] if isinstance(model, nn.Module) else []
    return sum(x.numel() * x.element_size() for x in tensors if isinstance(x, torch.Tensor))


def _compile_training(
    target: NativeTarget[Any],
    model: nn.Module | Callable[..., Any] | Program,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    threads: int | None,
    cache: bool,
    disabled: frozenset[str],
    check: Check,
    on_stage: StageHook,
) -> TrainableModel:
    if dynamic_shapes is not None:
        raise PassError(
            format_error(
                "A model that trains takes no dynamic_shapes.",
                why="it is compiled for the sizes of each call that has new ones",
                fix="leave dynamic_shapes out, and call the model with any sizes",
            )
        )

    def build(half: nn.Module, inputs: Sequence[torch.Tensor]) -> CompiledModel:
        with on_stage("capture"):
            program = capture(half, inputs if check != "numerics" else _draw(inputs))
        with Pages(0) as pages:
            compiled = _compile_program(
                target, program, type(half).__name__, threads, cache, None, "float32", disabled, check, on_stage, pages
            )
        compiled.program.example_inputs = None  # tensors as large as the model's own, which are not read
        return compiled

    def functionalize(program: Program) -> Program:
        with on_stage("passes"):
            return _run_pipeline(program, pipelines.TRAINING, target, disabled)

    with _gc.pause():
        example = model.example_inputs if isinstance(model, Program) else (args, kwargs or {})
        return TrainableModel(model, build, functionalize, example)


def _draw(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Random numbers in place of the zeros that the halves of a model are captured on: with those, all is right."""
    draws = torch.Generator().manual_seed(0)
    return [
        torch.randn(x.shape, generator=draws, dtype=x.dtype).to(x.device) if x.is_floating_point() else x.clone()
        for x in inputs
    ]


def load(
    path: str | os.PathLike[str], *, native: bool = True, trust: Trust = True, device: int = 0
) -> Program | LoadedModel:
    """Loads a `.ingot` file: a saved Program, or a compiled model, which takes and returns torch tensors.

    A `.pt2` file that torch.export.save wrote is loaded as a Program. Reading one may run code that the file names, so
    it takes `trust=True`.

    Loading a compiled file runs its native code. `native=False` returns the Program that it was compiled from and runs
    nothing from the file; `ingot.compile` then compiles it on this machine.

    `trust` says whose files may run, as in `ingot_runtime.load`. True: anybody's. One or more public keys: those that a
    holder of one of them signed. False: nobody's; a saved Program may then call only operators of torch and Ingot.

    A model that was compiled for a GPU runs on the one with the number `device`.

    Raises a FileError if the file is not valid, VerifyError if a Program breaks its invariants, OSError if the file
    cannot be opened.
    """
    if is_archive(path):
        if trust is not True:
            raise UntrustedFile(
                "the file is an archive of torch.export",
                why="torch runs code that such a file names, and the file carries no signature",
                fix="load it with trust=True if you trust it, and save the program as a .ingot file",
                path=str(path),
            )
        return read_archive(path)
    with open_container(path, skip=skip_program if native else skip_nothing) as container:
        if native and "native" in container.manifest:
            return LoadedModel(model_of(container, trust=trust, device=device))
        check_trust(container, trust)
        if program_file.GRAPH not in container.names and "native" in container.manifest:
            raise MissingMember(
                "the file holds no program",
                why="it was compiled, and saved without the program",
                fix="save it with the program: compiled.save(path, program=True)",
                path=container.path,
            )
        return program_file.read(container, custom_operators=trust is not False)


def run_cpu_pipeline(
    program: Program,
    disabled: Collection[str] = (),
    target: Target[Any] = CPU,
    *,
    on_pass: Callable[[str], object] | None = None,
) -> Program:
    """The program as lowering takes it: functional, core operators and those that the target keeps whole, effects in
    order. Passes of `pipelines.OPTIONAL` that are `disabled` are left out. `on_pass` is called
    with the name of each pass that is done."""
    return _run_pipeline(program, pipelines.omit_passes(pipelines.NATIVE, disabled), target, disabled, on_pass)


def _run_pipeline(
    program: Program,
    pipeline: pipelines.Pipeline,
    target: Target[Any],
    disabled: Collection[str] = (),
    on_pass: Callable[[str], object] | None = None,
) -> Program:
    made = program.copy()

    def notify(name: str, _: Program) -> None:
        if on_pass is not None:
            on_pass(name)

    arguments = {pipelines.PRESERVED_OPS.name: target.preserved_ops(disabled)}
    run_pipeline(made, pipeline, arguments=arguments, snapshots=notify)
    return made
