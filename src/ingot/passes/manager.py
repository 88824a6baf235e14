"""Runs passes: copies once, runs, verifies, times, records, and on request compares numbers.

    @register(takes=CAPTURED, gives=CAPTURED)
    def my_pass(program: Program, *, limit: int = 10) -> int: ...

    program = ingot.transform(program, [my_pass, (my_pass, {"limit": 3})], check="numerics")

A pass changes the program that it is given and returns the number of changes. It is never given the caller's: if it
raises, or if what it made does not verify, the caller's program is as it was. A function that is not registered is a
pass too: it may take any dialect and must leave the program in the one that it found.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal, Protocol

from ingot.errors import PassError, format_error
from ingot.ir.dialects import Dialect
from ingot.ir.program import PassRecord, Program, check_program
from ingot.ir.verifier import verify

Check = Literal["structure", "numerics"] | None
PassLike = Callable[..., int] | tuple[Callable[..., int], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class PassInfo:
    """What a pass takes and gives. `gives` None: the dialect that it was given.

    `computes`: the pass stores numbers that it computed, rounded to the program's dtypes, so in float64 it is compared
    by running it on the float64 program.
    """

    name: str
    takes: Dialect | None = None
    gives: Dialect | None = None
    exact: bool = True
    computes: bool = False


REGISTRY: dict[str, Callable[..., int]] = {}
_INFO: dict[Callable[..., int], PassInfo] = {}


class _Register(Protocol):
    def __call__(self, function: Callable[..., int]) -> Callable[..., int]: ...


def register(takes: Dialect, gives: Dialect | None = None, *, exact: bool = True, computes: bool = False) -> _Register:
    """Makes a function a pass under its own name. `exact`: results stay the same bit for bit. A second one raises."""

    def enter(function: Callable[..., int]) -> Callable[..., int]:
        name = function.__name__
        if name in REGISTRY:
            raise ValueError(f"the pass {name} is registered already")
        REGISTRY[name] = function
        _INFO[function] = PassInfo(name, takes, gives, exact, computes)
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
    snapshots: Callable[[str, Program], None] | str | PathLike[str] | None = None,
) -> Program:
    """A new program: this one after the passes. Raises PassError or VerifyError, and changes nothing, if one fails.

    `check` is None, "structure" (the verifier after each pass) or "numerics" (results before and after as well).
    `snapshots` is a folder that gets a JSON file of each stage, to look at; or a function that is called with each
    pass's name and the program that came of it.
    """
    from ingot.passes.instrumentation import differential_check
    from ingot.passes.instrumentation.dump import Snapshots

    check_program(program, "transform")
    if callable(passes):
        raise PassError(format_error("The passes are one function.", fix="give a list of passes: [ingot.passes.fold]"))
    show = Snapshots(snapshots) if isinstance(snapshots, str | PathLike) else snapshots
    current = program.copy()
    reference = differential_check.Reference(program) if check == "numerics" else None
    verified = False
    if isinstance(show, Snapshots):
        show("before", current)
    for item in passes:
        function, options = item if isinstance(item, tuple) else (item, {})
        info = info_of(function)
        _check_dialect(current, info)
        _check_options(function, info, options)
        before = len(current.graph.nodes)
        previous = current.copy() if reference is not None else None
        began = time.perf_counter()
        changes = function(current, **options)
        seconds = time.perf_counter() - began
        if not isinstance(changes, int):
            raise PassError(
                format_error(
                    f"The pass {info.name} returned {type(changes).__name__}, not the number of its changes.",
                    fix="return how many nodes the pass changed, 0 if none",
                )
            )
        if info.gives is not None:
            current.dialect = info.gives if not info.gives.accepts(current.dialect) else current.dialect
        current.graph_module.recompile()
        step = PassRecord(info.name, changes, seconds, before, len(current.graph.nodes), tuple(sorted(options.items())))
        current.history = (*current.history, step)
        same = previous is not None and differential_check.is_unchanged(previous, current)
        if check is not None:
            verify(current, fake_run=check == "numerics" and not (same and changes == 0 and verified))
            verified = verified or check == "numerics"
        if reference is not None and previous is not None and not same:
            reference.compare(previous, current, info, functools.partial(function, **options))
        if show is not None:
            show(info.name, current)
    return current


def _check_dialect(program: Program, info: PassInfo) -> None:
    if info.takes is not None and not info.takes.accepts(program.dialect):
        raise PassError(
            format_error(
                f"The pass {info.name} takes a {info.takes.name} program, but this one is {program.dialect.name}.",
                fix="run it at its place in the default pipeline: ingot.passes.DEFAULT_PIPELINE lists it",
            )
        )


def _check_options(function: Callable[..., int], info: PassInfo, options: dict[str, Any]) -> None:
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
