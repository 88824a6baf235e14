"""The road a model takes, one function a destination, one line a stage."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeAlias, get_args, overload

import torch
from torch import nn

from ingot import collector, passes
from ingot import torch_internals as internals
from ingot.codegen.cache import Cache
from ingot.codegen.compiled import Compiled
from ingot.codegen.file import Source, emit
from ingot.codegen.isa import by_name, host
from ingot.codegen.loaded import Loaded
from ingot.codegen.pages import Pages
from ingot.codegen.toolchain import find
from ingot.codegen.weights import fill
from ingot.entry import capture
from ingot.errors import MissingMember, PassError, explain
from ingot.lowering.ir import Precision
from ingot.lowering.lower import lower
from ingot.lowering.making import KERNELS
from ingot.lowering.memory import plan
from ingot.lowering.schedule import SCHEDULE, schedule
from ingot.passes.split_complex import has_complex
from ingot.program import file
from ingot.program.modes import warn_of_train_mode
from ingot.program.program import Program
from ingot.settings import Settings
from ingot.training import Trained
from ingot_runtime import Trust, open_container
from ingot_runtime.container import skip_nothing, skip_program
from ingot_runtime.machine import cores
from ingot_runtime.model import check_threads, model_of
from ingot_runtime.signing import check_trust

# C compilers that may work on one model at the same time. The C text does not depend on it; the library's bytes do.
PARTS = 8

# Told the name of each stage; what it gives is entered while the stage runs.
Watch: TypeAlias = Callable[[str], AbstractContextManager[object]]


def _unwatched(stage: str) -> AbstractContextManager[object]:
    return nullcontext()


# Optimizations of the graph: without them a program computes the same.
GRAPH_PASSES = ("fold", "fold_batch_norm", "remove_noops", "cse")
# Everything that `compile` can do without, in order: passes over the graph, choices of kernels, passes over loops.
OPTIONAL_PASSES = (*GRAPH_PASSES, *KERNELS, *dict.fromkeys(name for name, _ in SCHEDULE))

# Operators that lowering has better code for than for their parts.
WHOLE = (
    *("linear", "matmul", "scaled_dot_product_attention", "layer_norm", "_softmax", "_log_softmax", "gelu", "silu"),
    *(getattr(torch.ops.aten, name).input for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")),
    *("pad", "histogram"),
    # What torch makes of these takes negative indices that they refuse, or refuses those that they take.
    *("index_add", "index_copy", "index_fill"),
)


@overload
def compile(
    model: nn.Module | Callable[..., Any] | Program,
    args: Sequence[Any] = ...,
    kwargs: Mapping[str, Any] | None = ...,
    *,
    dynamic_shapes: Any = ...,
    threads: int | None = ...,
    cache: bool = ...,
    isa: str | Sequence[str] | None = ...,
    precision: Precision = ...,
    disable_passes: Collection[str] = ...,
    training: Literal[False] = ...,
    watch: Watch = ...,
) -> Compiled: ...


@overload
def compile(
    model: nn.Module | Callable[..., Any] | Program,
    args: Sequence[Any] = ...,
    kwargs: Mapping[str, Any] | None = ...,
    *,
    threads: int | None = ...,
    cache: bool = ...,
    disable_passes: Collection[str] = ...,
    training: Literal[True],
    watch: Watch = ...,
) -> Trained: ...


def compile(
    model: nn.Module | Callable[..., Any] | Program,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    threads: int | None = None,
    cache: bool = True,
    isa: str | Sequence[str] | None = None,
    precision: Precision = "float32",
    disable_passes: Collection[str] = (),
    training: bool = False,
    watch: Watch = _unwatched,
) -> Compiled | Trained:
    """The model, or a Program of it, as native code that is called like the model.

    `threads` None is one for each core. `cache` False compiles the C text even if it was compiled before. `isa` names
    the instruction sets to build for; the default is this machine's own, and it is built in any case. `precision`
    "bfloat16" keeps the weights of matrix products and convolutions in it and multiplies in it, where the machine has
    an instruction for that with it; sums and everything else stay as they are. `disable_passes` names optimizations to
    leave out, of `OPTIONAL_PASSES`; INGOT_DISABLE_PASSES may name others. The result computes the same, slower. `watch`
    is told of each stage: it is called with the stage's name and gives a context manager that the stage runs in.

    With `training`, forward and backward both become native code, and autograd goes through the call: gradients reach
    the model's own parameters and the arguments. The sizes are then those of the example.
    """
    check_threads(threads)
    _check_precision(precision)
    disabled = resolve_disabled(disable_passes)
    if training:
        return _trained(model, args, kwargs, dynamic_shapes, threads, cache, disabled, watch)
    with collector.paused(), internals.real_tensors(), Pages(_state_bytes(model)) as pages:
        with watch("capture"):
            program = (
                model if isinstance(model, Program) else capture(model, args, kwargs, dynamic_shapes=dynamic_shapes)
            )
        warn_of_train_mode(program, stacklevel=3)
        return _compiled(program, type(model).__name__, threads, cache, isa, precision, disabled, watch, pages)


def resolve_disabled(names: Collection[str]) -> frozenset[str]:
    """The passes to leave out: those given, and those that the environment names. Raises PassError for unknown ones."""
    given = {names} if isinstance(names, str) else set(names)
    disabled = given | set(Settings.from_environment().disabled_passes)
    unknown = sorted(disabled - set(OPTIONAL_PASSES))
    if unknown:
        raise PassError(
            explain(
                f"There is no optional pass {', '.join(map(repr, unknown))}.",
                why=f"those that can be left out are {', '.join(OPTIONAL_PASSES)}",
                fix="give disable_passes, or INGOT_DISABLE_PASSES, names among these",
            )
        )
    return frozenset(disabled)


def _check_precision(precision: str) -> None:
    known = get_args(Precision)
    if precision not in known:
        raise ValueError(f"precision is {precision!r}: give {' or '.join(map(repr, known))}")


def _compiled(
    program: Program,
    title: str,
    threads: int | None,
    cache: bool,
    isa: str | Sequence[str] | None,
    precision: Precision,
    disabled: frozenset[str],
    watch: Watch,
    pages: Pages,
) -> Compiled:
    with watch("passes"):
        program = for_native(program, disabled)
    with watch("lower"):
        module = schedule(lower(program, precision, disabled), disabled)
    with watch("emit"):
        source = emit(module, plan(module), title=title)
    with watch("cc"), ThreadPoolExecutor(1) as aside:  # the C compiler works while the weights are packed
        libraries = aside.submit(build, source, isa, cache=cache)
        blob = fill(program, module, source, pages)
    return Compiled(program, module, source, blob, libraries.result(), host(), threads)


def _state_bytes(model: nn.Module | Callable[..., Any] | Program) -> int:
    """About what the weights will take. Shared ones may be counted twice; nothing hangs on it but time."""
    if isinstance(model, Program):
        tensors = [*model.state_dict.values(), *model.constants.values()]
    else:
        tensors = [*model.parameters(), *model.buffers()] if isinstance(model, nn.Module) else []
    return sum(x.numel() * x.element_size() for x in tensors if isinstance(x, torch.Tensor))


def _trained(
    model: nn.Module | Callable[..., Any] | Program,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    threads: int | None,
    cache: bool,
    disabled: frozenset[str],
    watch: Watch,
) -> Trained:
    if dynamic_shapes is not None or (isinstance(model, Program) and model.dims):
        raise PassError(
            explain(
                "A model that trains is compiled for the sizes of its example only.",
                fix="leave dynamic_shapes out, and compile once for each size",
            )
        )

    def build(half: nn.Module, inputs: Sequence[torch.Tensor]) -> Compiled:
        with watch("capture"):
            program = capture(half, inputs)
        with Pages(0) as pages:
            compiled = _compiled(program, type(half).__name__, threads, cache, None, "float32", disabled, watch, pages)
        compiled.program.example_inputs = None  # tensors as large as the model's own, that nobody reads
        return compiled

    with watch("capture"):
        program = model if isinstance(model, Program) else capture(model, args, kwargs)
    with watch("passes"):
        program = passes.transform(program, [p for p in passes.ROAD if p not in _AFTER_DECOMPOSE], check=None)
        if has_complex(program):  # else the forward half hands complex numbers to the backward one
            passes.decompose(program, keep=WHOLE)
            passes.split_complex(program, keep=WHOLE)
    return Trained(program, build)


def load(path: str | os.PathLike[str], *, native: bool = True, trust: Trust = True) -> Program | Loaded:
    """What a `.ingot` file holds: a Program, or, of a compiled model, something to call on torch tensors.

    Loading a compiled file runs native code that it holds. `native` False gives the Program that it was compiled from,
    and runs nothing of the file: `ingot.compile` makes native code of it here.

    `trust` is as in `ingot_runtime.load`: True, whoever wrote the file; public keys, whose holder must have signed it;
    False, nobody: no native code, and a Program may only call operators that torch or Ingot define.

    Raises a FileError for what is wrong with the file, VerifyError for a Program that breaks its invariants, OSError
    where the file cannot be opened.
    """
    with open_container(path, skip=skip_program if native else skip_nothing) as container:
        if native and "native" in container.manifest:
            return Loaded(model_of(container, trust=trust))
        check_trust(container, trust)
        if file.GRAPH not in container.names and "native" in container.manifest:
            raise MissingMember(
                "the file holds no program",
                why="it was compiled, and saved without the program",
                fix="save it with the program: compiled.save(path, program=True)",
                path=container.path,
            )
        return file.read(container, custom_operators=trust is not False)


def for_native(program: Program, disabled: Collection[str] = ()) -> Program:
    """The program as lowering takes it: functional, core operators and those in WHOLE, effects in order. Passes of
    GRAPH_PASSES that are `disabled` are left out."""
    program = passes.transform(program, [p for p in passes.ROAD if p not in _AFTER_DECOMPOSE], check=None)
    passes.settle_sizes(program)  # what lies behind a branch or a loop may have sizes that are known
    _fold(program, disabled)  # a batch norm that is gone need not be decomposed
    passes.decompose(program, keep=WHOLE)
    passes.expand(program, keep=WHOLE)
    if passes.split_complex(program, keep=WHOLE, parameters=True):
        passes.expand(program, keep=WHOLE)
    _fold(program, disabled)
    for name, clean in (("remove_noops", passes.remove_noops), ("cse", passes.cse)):
        if name not in disabled:
            clean(program)
    passes.dce(program)
    passes.order_effects(program)
    return program


def _fold(program: Program, disabled: Collection[str]) -> None:
    if "fold" not in disabled:
        passes.fold(program, batch_norm="fold_batch_norm" not in disabled)


_AFTER_DECOMPOSE = (passes.decompose, passes.fold, passes.cse, passes.dce)


def build(source: Source, isa: str | Sequence[str] | None, *, cache: bool) -> dict[str, bytes]:
    """A library of the source for this machine, and for each instruction set named."""
    names = [isa] if isinstance(isa, str) else list(isa or ())
    wanted = {host().name: host(), **{name: by_name(name) for name in names}}
    tools = find()
    parts = 1 + min(source.groups, cores(), PARTS)
    store = Cache.from_settings(Settings.from_environment()) if cache else Cache(None)
    return {
        name: store.read_library(source.text, one, tools, extra_flags=(f'-DIG_ISA="{name}"',), parts=parts)
        for name, one in wanted.items()
    }
