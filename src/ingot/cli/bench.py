"""`ingot bench`: a model's native code compared with eager and other compilers, interleaved, in one process."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from ingot.benchmarking import time_interleaved
from ingot.cli.capture import Dynamic, add_ranges, parse_dynamic
from ingot.cli.compile import DOING, Cached, Precise, Threads, open_model
from ingot.cli.console import AsJson, Debug, Result, command
from ingot.cli.inputs.completion import choose_from, complete_reference
from ingot.cli.inputs.paths import check_outputs
from ingot.cli.peers import PEERS, Subject, is_installed, prepare
from ingot.cli.progress import Stages

if TYPE_CHECKING:
    from ingot.artifacts.compiled_model import CompiledModel
    from ingot.artifacts.profiler import Profile
    from ingot.lowering.loop_module import Precision

Calls = dict[str, Callable[[], Any]]

_BAR = 16
# Seconds of nothing before each turn: threads of the kind before it may still wait for work.
_PAUSE = 0.02
_NOTE = (
    "Each timed call follows an untimed one of its own kind, and the kinds take turns. Numbers of this machine at this "
    "moment: for others to rely on, take them where nothing else runs."
)


@command
def run(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FACTORY|FILE.ingot",
            autocompletion=complete_reference,
            help="A factory, a saved program, or a compiled model.",
        ),
    ],
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Rounds: in each, every kind has a timed call.")] = 20,
    dynamic: Dynamic = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            "--peer",
            metavar="NAME",
            autocompletion=choose_from(list(PEERS)),
            help=f"What to compare with: {', '.join(PEERS)}; all that are installed if not given. Repeatable.",
        ),
    ] = None,
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
    """Time a model's native code, the same model in eager PyTorch, and in other compilers that are installed."""
    dynamic_shapes = parse_dynamic(dynamic or ())
    chosen = _choose_peers(peer or ())
    check_outputs({"--trace": trace})
    stages = Stages()
    with stages("import", "importing torch"):
        import torch

        from ingot.cli.factory import named_file
        from ingot_runtime.container import open_container

    used = threads or torch.get_num_threads()
    found, left_out = None, {}
    with torch.no_grad(), _torch_threads(used), tempfile.TemporaryDirectory(prefix="ingot-bench-") as folder:
        file = named_file(reference)
        native = file is not None and "native" in _manifest(open_container, file)
        if native and file is not None:
            given = {
                "--dynamic": bool(dynamic),
                "--peer": bool(peer),
                "--precision": precision != "float32",
                "--profile": profile,
                "--trace": trace is not None,
            }
            _refuse_for_compiled(reference, [option for option, is_given in given.items() if is_given])
            stages.count = 3
            calls = _prepare_file(file, used, stages)
        else:
            stages.count = 9 + len(chosen) + (profile or trace is not None)
            subject = _open_subject(reference, dynamic_shapes, used, Path(folder), stages)
            compiled = _compile_subject(subject, precision, cache, stages)
            calls = {"ingot": lambda: compiled(*subject.args, **subject.kwargs)}
            left_out = _add_peers(calls, chosen, subject, stages)
        with stages("time", "timing", repeat, still=True) as step:
            times = time_interleaved(calls, repeat, pause=_PAUSE if len(calls) > 2 else 0.0, on_round=step)
        difference = _difference(calls["ingot"](), calls["eager"]()) if "eager" in calls else None
        if profile or trace is not None:
            with stages("profile", "profiling"):
                found = compiled.profile(*subject.args, repeat=repeat, trace=trace, **subject.kwargs)
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
        "left_out": left_out,
        "largest_difference": difference,
        "seconds": stages.seconds,
        "profile": [] if found is None else [asdict(row) for row in found.rows],
    }
    return Result(data, (*_report(data), *(() if found is None else (str(found), _tabulate_modules(found)))))


def _choose_peers(named: Sequence[str]) -> list[str]:
    """The peers that were named, or all that are installed; eager in any case. Raises typer.BadParameter."""
    unknown = [name for name in named if name not in PEERS]
    if unknown:
        raise typer.BadParameter(f"there is no peer {unknown[0]!r}: give one of {', '.join(PEERS)}.")
    missing = [name for name in named if not is_installed(name)]
    if missing:
        raise typer.BadParameter(f"--peer {missing[0]}: it is not installed (pip install {PEERS[missing[0]]}).")
    return [name for name in PEERS if name == "eager" or (name in named if named else is_installed(name))]


def _refuse_for_compiled(reference: str, options: list[str]) -> None:
    if options:
        raise typer.BadParameter(
            f"{', '.join(options)}: {reference} is compiled, and holds no model: give MODULE:FACTORY instead."
        )


def _open_subject(reference: str, dynamic_shapes: Any, threads: int, folder: Path, stages: Stages) -> Subject:
    """A factory's model, or a saved program with its own example."""
    from ingot import api
    from ingot.errors import CallError, format_error
    from ingot.ir.program import Program

    model, args, kwargs = open_model(reference, stages, dynamic_shapes)
    if not isinstance(model, Program):
        with stages("capture", "capturing"):
            program = api.capture(model, args, kwargs, dynamic_shapes=add_ranges(dynamic_shapes))
        return Subject(model, program, args, kwargs, threads, folder)
    if model.example_inputs is None:
        raise CallError(
            format_error(f"{reference} holds no example to call it with.", fix="give the factory: MODULE:FACTORY")
        )
    args, kwargs = model.example_inputs
    return Subject(model, model, args, kwargs, threads, folder)


def _compile_subject(subject: Subject, precision: Precision, cache: bool, stages: Stages) -> CompiledModel:
    from ingot import compiler, pipelines

    return compiler.compile(
        subject.program,
        threads=subject.threads,
        precision=precision,
        cache=cache,
        on_stage=stages.hook({**DOING, "capture": "copying the program"}, {"passes": len(pipelines.NATIVE)}),
    )


def _add_peers(calls: Calls, peers: Sequence[str], subject: Subject, stages: Stages) -> dict[str, str]:
    """Adds a call for each peer that takes the model; why the others are left out."""
    left_out: dict[str, str] = {}
    for name in peers:
        with stages(name, f"preparing {name}"):
            try:
                calls[name] = prepare(name, subject)
            except Exception as error:
                if name == "eager":
                    raise
                first = str(error).strip().partition("\n")[0]
                left_out[name] = f"{type(error).__name__}: {first}"
    return left_out


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
    """A table with a bar for each kind of call: as long as the call takes."""
    table = Table(title=f"{data['reference']}, {_count(data['threads'], 'thread')}, {_count(data['repeat'], 'round')}")
    table.add_column("")
    for column in ("median ms", "least", "greatest", "× ingot"):
        table.add_column(column, justify="right")
    table.add_column("", width=_BAR, no_wrap=True)
    ours = data["rows"][0]["median_ms"]
    longest = max(row["median_ms"] for row in data["rows"])
    fastest = min(row["median_ms"] for row in data["rows"])
    for row in data["rows"]:
        numbers = (f"{row[name]:.3f}" for name in ("median_ms", "min_ms", "max_ms"))
        color = "green" if row["median_ms"] == fastest else "cyan"
        bar = Text(_bar(row["median_ms"] / longest), color)
        table.add_row(row["name"], *numbers, f"{row['median_ms'] / ours:.2f}", bar)
    text: list[Any] = [table]
    for name, why in data["left_out"].items():
        text.append(f"{name} is left out: {why}")
    if data["largest_difference"] is not None:
        eager = next(row["median_ms"] for row in data["rows"] if row["name"] == "eager")
        text.append(
            f"Eager takes {eager / ours:.2f} times as long. Largest difference {data['largest_difference']:.2g}."
        )
    else:
        text.append("A compiled file holds no model to compare with; `ingot bench MODULE:FACTORY` compares.")
    return (*text, _NOTE)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _bar(share: float) -> str:
    """A share of the whole width, to an eighth of a character."""
    eighths = max(1, round(share * 8 * _BAR))
    return "█" * (eighths // 8) + "▏▎▍▌▋▊▉"[eighths % 8 - 1 : eighths % 8]
