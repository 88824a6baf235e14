"""Runs passes: copies once, runs, verifies, times, records, and on request compares numbers.

    @register(takes=CAPTURED, gives=CAPTURED)
    def my_pass(program: Program, *, limit: int = 10) -> int: ...

    program = ingot.transform(program, [my_pass, (my_pass, {"limit": 3})], check="numerics")

A pass changes the program that it is given and returns the number of changes. It is never given the caller's: if it
raises, or if what it made does not verify, the caller's program is as it was. A function that is not registered is a
pass too: it may take any dialect and must leave the program in the one that it found.

`run_pipeline` is what `transform` runs on its copy; ingot.pipelines lists the pipelines of Ingot itself.
"""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Literal, Protocol

from torch import fx

from ingot.errors import PassError, format_error
from ingot.ir import metadata
from ingot.ir.dialects import Dialect
from ingot.ir.outlining import graph_modules
from ingot.ir.program import PassRecord, Program, check_program
from ingot.ir.verifier import verify
from ingot.registry import Registry

_log = logging.getLogger("ingot.passes")

Check = Literal["structure", "numerics"] | None


@dataclass(frozen=True, slots=True)
class PipelineArgument:
    """An option in a pipeline that gets its value when the pipeline is run: from `arguments`, by this name."""

    name: str


@dataclass(frozen=True, slots=True)
class Stage:
    """A pass in a pipeline with its options; it is left out of a run where `when` does not hold for the program."""

    function: Callable[..., int]
    options: Mapping[str, Any] = field(default_factory=dict)
    when: Callable[[Program], bool] | None = None


PassLike = Callable[..., int] | tuple[Callable[..., int], Mapping[str, Any]] | Stage
# What a PipelineArgument is: a value, or a function that computes it from the program when the pass's turn comes.
Arguments = Mapping[str, Any]
SnapshotHook = Callable[[str, Program], None]


@dataclass(frozen=True, slots=True)
class PassInfo:
    """What a pass takes and gives. `gives` None: the dialect that it was given.

    `computes`: the pass stores numbers that it computed, rounded to the program's dtypes, so in float64 it is compared
    by running it on the float64 program. `retraces`: every node that the pass makes was recorded while its operator ran
    on fakes.
    """

    name: str
    takes: Dialect | None = None
    gives: Dialect | None = None
    exact: bool = True
    computes: bool = False
    retraces: bool = False


REGISTRY: Registry[str, Callable[..., int]] = Registry("pass")
_INFO: dict[Callable[..., int], PassInfo] = {}


class _Register(Protocol):
    def __call__(self, function: Callable[..., int]) -> Callable[..., int]: ...


def register(
    takes: Dialect, gives: Dialect | None = None, *, exact: bool = True, computes: bool = False, retraces: bool = False
) -> _Register:
    """Makes a function a pass under its own name. `exact`: results stay the same bit for bit. A second one raises."""

    def enter(function: Callable[..., int]) -> Callable[..., int]:
        name = function.__name__
        REGISTRY.add(name, function)
        _INFO[function] = PassInfo(name, takes, gives, exact, computes, retraces)
        return function

    return enter


def info_of(function: Callable[..., int]) -> PassInfo:
    known = _INFO.get(function) or getattr(function, "pass_info", None)
    return known or PassInfo(getattr(function, "__name__", type(function).__name__))


def transform(
    program: Program,
    passes: Sequence[PassLike],
    check: Check = "structure",
    *,
    snapshots: SnapshotHook | str | PathLike[str] | None = None,
) -> Program:
    """A new program: this one after the passes. Raises PassError or VerifyError, and changes nothing, if one fails.

    `check` is None, "structure" (the verifier after each pass, and the fake kernels of the nodes that it changed) or
    "numerics" (results before and after as well). `snapshots` is a folder that gets a JSON file of each stage, or a
    function that is called with each pass's name and the program after it.
    """
    check_program(program, "transform")
    if callable(passes):
        raise PassError(
            format_error("The passes are one function.", fix="give a list of passes: [ingot.passes.constant_fold]")
        )
    current = program.copy()
    run_pipeline(current, passes, check, snapshots=snapshots)
    return current


def run_pipeline(
    program: Program,
    pipeline: Sequence[PassLike],
    check: Check = None,
    *,
    arguments: Arguments | None = None,
    snapshots: SnapshotHook | str | PathLike[str] | None = None,
) -> None:
    """Runs passes on the program itself, each checked, timed and recorded as `transform` says.

    `arguments` has the values of the pipeline's PipelineArguments. If a pass fails, the program is left half changed.
    """
    from ingot.passes.instrumentation import differential_check
    from ingot.passes.instrumentation.dump import Snapshots

    show = Snapshots(snapshots) if isinstance(snapshots, str | PathLike) else snapshots
    reference = differential_check.Reference(program.copy()) if check == "numerics" else None
    verified = False
    if isinstance(show, Snapshots):
        show("before", program)
    for stage in map(stage_of, pipeline):
        if stage.when is not None and not stage.when(program):
            continue
        info = info_of(stage.function)
        options = _bind(program, info, stage.options, arguments or {})
        _check_dialect(program, info)
        _check_options(stage.function, info, options)
        previous = program.copy() if reference is not None else None
        states = _node_states(program) if check == "structure" and not info.retraces else {}
        changes = _run_pass(program, stage, info, options)
        same = previous is not None and differential_check.is_unchanged(previous, program)
        if check == "numerics":
            verify(program, fake_run=not (same and changes == 0 and verified))
            verified = True
        elif check == "structure":
            verify(program, fake_run=_find_changed_nodes(program, states) if not info.retraces else False)
        if reference is not None and previous is not None and not same:
            reference.compare(previous, program, info, functools.partial(stage.function, **options))
        if show is not None:
            show(info.name, program)


def stage_of(item: PassLike) -> Stage:
    """One entry of a pipeline, whichever way it is written."""
    if isinstance(item, Stage):
        return item
    return Stage(*item) if isinstance(item, tuple) else Stage(item)


def _run_pass(program: Program, stage: Stage, info: PassInfo, options: dict[str, Any]) -> int:
    """Runs one pass and records it; returns the number of its changes."""
    before = len(program.graph.nodes)
    began = time.perf_counter()
    changes = stage.function(program, **options)
    seconds = time.perf_counter() - began
    if not isinstance(changes, int):
        raise PassError(
            format_error(
                f"The pass {info.name} returned {type(changes).__name__}, not the number of its changes.",
                fix="return how many nodes the pass changed, 0 if none",
            )
        )
    if info.gives is not None and not info.gives.accepts(program.dialect):
        program.dialect = info.gives
    program.graph_module.recompile()
    after = len(program.graph.nodes)
    recorded = tuple(sorted((name, _summarize_option(stage.options[name], value)) for name, value in options.items()))
    program.history = (*program.history, PassRecord(info.name, changes, seconds, before, after, recorded))
    _log.info("%s: changes %d, %.1f ms, nodes %d → %d", info.name, changes, seconds * 1e3, before, after)
    return changes


# A node's operator, arguments and value. They are compared by identity: fx makes new ones of what it changes.
_State = tuple[Any, ...]


def _node_states(program: Program) -> dict[fx.Node, _State]:
    nodes = (node for module in graph_modules(program.graph_module) for node in module.graph.nodes)
    return {node: (node.target, node.args, node.kwargs, metadata.value_of(node)) for node in nodes}


def _find_changed_nodes(program: Program, before: Mapping[fx.Node, _State]) -> set[fx.Node]:
    """The nodes that are new or not what they were, and those that use a value that is not what it was."""
    changed: set[fx.Node] = set()
    for node, state in _node_states(program).items():
        old = before.get(node)
        if old is None or any(a is not b for a, b in zip(state, old, strict=True)):
            changed.add(node)
            if old is None or state[-1] is not old[-1]:
                changed.update(node.users)
    return changed


def _bind(program: Program, info: PassInfo, options: Mapping[str, Any], arguments: Arguments) -> dict[str, Any]:
    """Options with the values of the pipeline's arguments in their places."""
    bound = dict(options)
    for name, value in options.items():
        if not isinstance(value, PipelineArgument):
            continue
        if value.name not in arguments:
            raise PassError(
                format_error(
                    f"The pipeline's argument {value.name} is not given; the pass {info.name} needs it.",
                    fix=f"run the pipeline with arguments={{{value.name!r}: …}}",
                )
            )
        found = arguments[value.name]
        bound[name] = found(program) if callable(found) else found
    return bound


def _summarize_option(given: Any, value: Any) -> Any:
    """An option as the history has it: a pipeline's argument that is longer than a number is recorded by its name."""
    plain = value is None or isinstance(value, bool | int | float | str)
    return given.name if isinstance(given, PipelineArgument) and not plain else value


def _check_dialect(program: Program, info: PassInfo) -> None:
    if info.takes is not None and not info.takes.accepts(program.dialect):
        raise PassError(
            format_error(
                f"The pass {info.name} takes a {info.takes.name} program, but this one is {program.dialect.name}.",
                fix="run it at its place in the default pipeline: ingot.passes.DEFAULT_PIPELINE lists it",
            )
        )


def _check_options(function: Callable[..., int], info: PassInfo, options: Mapping[str, Any]) -> None:
    try:
        known = list(inspect.signature(function).parameters.values())[1:]
    except (TypeError, ValueError):
        return
    names = {p.name for p in known}
    if any(p.kind is p.VAR_KEYWORD for p in known):
        return
    for name in options:
        if name not in names:
            raise PassError(
                format_error(
                    f"The pass {info.name} has no option {name!r}.",
                    why=f"its options are {', '.join(sorted(names)) or 'none'}",
                )
            )
