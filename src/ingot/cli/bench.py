"""`ingot bench`: a model's native code compared with eager, interleaved, in one process."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ingot.benchmarking import time_interleaved
from ingot.cli.capture import Dynamic, add_ranges, parse_dynamic
from ingot.cli.compile import DOING, Cached, Precise, Threads, open_model
from ingot.cli.console import AsJson, Debug, Result, command
from ingot.cli.progress import Stages

if TYPE_CHECKING:
    from ingot.artifacts.profiler import Profile
    from ingot.lowering.loop_module import Precision

Calls = dict[str, Callable[[], Any]]

_NOTE = (
    "Each timed call follows an untimed one of its own kind, and the kinds take turns. Numbers of this machine at this "
    "moment: for others to rely on, take them where nothing else runs."
)


@command
def run(
    reference: Annotated[
        str,
        typer.Argument(metavar="MODULE:FACTORY|FILE.ingot", help="A factory, a saved program, or a compiled model."),
    ],
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Timed calls of each kind.")] = 20,
    dynamic: Dynamic = None,
    threads: Threads = None,
    precision: Precise = "float32",
    cache: Cached = True,
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time goes, by kernel and module.")] = False,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Write the profile for chrome://tracing, too.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> Result:
    """Time a model's native code and the same model in eager PyTorch."""
    dynamic_shapes = parse_dynamic(dynamic or ())
    stages = Stages()
    with stages("import", "importing torch"):
        import torch

        from ingot.cli.factory import named_file
        from ingot_runtime.container import open_container

    used = threads or torch.get_num_threads()
    with torch.no_grad(), _torch_threads(used):
        file = named_file(reference)
        native = file is not None and "native" in _manifest(open_container, file)
        profiled: Callable[[int], Profile] | None = None
        if native and file is not None:
            calls = _prepare_file(file, used, stages)
        else:
            calls, profiled = _prepare_model(reference, dynamic_shapes, used, precision, cache, stages)
        with stages("time", "timing"):
            times = time_interleaved(calls, repeat)
            difference = _difference(*(call() for call in calls.values())) if len(calls) > 1 else None
        found = None
        if (profile or trace) and profiled is not None:
            with stages("profile", "profiling"):
                found = profiled(repeat)
            if trace is not None:
                found.chrome_trace(trace)
    rows = [
        {
            "name": name,
            "median_ms": 1e3 * statistics.median(taken),
            "min_ms": 1e3 * min(taken),
            "max_ms": 1e3 * max(taken),
        }
        for name, taken in times.items()
    ]
    data = {
        "reference": reference,
        "threads": used,
        "repeat": repeat,
        "rows": rows,
        "largest_difference": difference,
        "seconds": stages.seconds,
        "profile": [] if found is None else [asdict(row) for row in found.rows],
    }
    return Result(data, (*_report(data), *(() if found is None else (str(found), _tabulate_modules(found)))))


def _prepare_model(
    reference: str, dynamic_shapes: Any, threads: int, precision: Precision, cache: bool, stages: Stages
) -> tuple[Calls, Callable[[int], Profile]]:
    """Native code of a factory's model or of a saved program, and the same through torch."""
    from ingot import compiler
    from ingot.errors import CallError, format_error
    from ingot.ir.program import Program

    model, args, kwargs = open_model(reference, stages, dynamic_shapes)
    compiled = compiler.compile(
        model,
        args,
        kwargs,
        dynamic_shapes=add_ranges(dynamic_shapes),
        threads=threads,
        precision=precision,
        cache=cache,
        on_stage=lambda stage: stages(stage, DOING[stage]),
    )
    if isinstance(model, Program):
        if model.example_inputs is None:
            raise CallError(
                format_error(f"{reference} holds no example to call it with.", fix="give the factory: MODULE:FACTORY")
            )
        args, kwargs = model.example_inputs
    calls: Calls = {"ingot": lambda: compiled(*args, **kwargs), "eager": lambda: model(*args, **kwargs)}
    return calls, lambda repeat: compiled.profile(*args, repeat=repeat, **kwargs)


def _prepare_file(file: Path, threads: int, stages: Stages) -> Calls:
    """Native code of a compiled file on its own sample. There is no model to compare it with."""
    import ingot_runtime

    with stages("load", f"loading {file}"):
        model = ingot_runtime.load(file, threads)
        inputs = model.example()
    return {"ingot": lambda: model.run(inputs)}


def _tabulate_modules(profile: Profile) -> Table:
    """The modules that take most of the time."""
    table = Table("module", title="by module")
    for column in ("ms", "share", "GFLOP/s", "GB/s", "of peak"):
        table.add_column(column, justify="right")
    for row in profile.group_by_module()[:20]:
        share = row.seconds / profile.seconds if profile.seconds else 0.0
        numbers = (f"{row.gflops:.1f}", f"{row.gbytes:.1f}", f"{profile.peak_fraction(row):.0%}")
        table.add_row(row.module, f"{1e3 * row.seconds:.3f}", f"{share:.1%}", *numbers)
    return table


def _manifest(open_container: Any, file: Path) -> Any:
    with open_container(file) as container:
        return container.manifest


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _difference(mine: Any, theirs: Any) -> float:
    """The largest difference between two results, in units of max(1, |expected|)."""
    import torch

    from ingot.ir.pytree import flatten

    worst = 0.0
    for a, b in zip(flatten(mine)[0], flatten(theirs)[0], strict=True):
        if isinstance(b, torch.Tensor) and b.numel():
            a, b = a.double(), b.double()
            worst = max(worst, ((a - b).abs() / b.abs().clamp(min=1)).nan_to_num(0.0).max().item())
    return worst


def _report(data: dict[str, Any]) -> tuple[Any, ...]:
    table = Table("", title=f"{data['reference']}, {data['threads']} threads, {data['repeat']} calls each")
    for column in ("median ms", "least ms", "greatest ms"):
        table.add_column(column, justify="right")
    for row in data["rows"]:
        numbers = (row["median_ms"], row["min_ms"], row["max_ms"])
        table.add_row(row["name"], *(f"{number:.3f}" for number in numbers))
    text: list[Any] = [table]
    if data["largest_difference"] is not None:
        ours, theirs = (row["median_ms"] for row in data["rows"])
        text.append(
            f"Eager takes {theirs / ours:.2f} times as long. Largest difference {data['largest_difference']:.2g}."
        )
    else:
        text.append("A compiled file holds no model to compare with; `ingot bench MODULE:FACTORY` compares.")
    return (*text, _NOTE)
