"""A compiled `.ingot` file as a view: its C or CUDA text, and what its manifest says. Its code runs for a profile only.

Where the file holds the program that it was compiled from, the program is what is shown, compiled anew on the way.
"""

from __future__ import annotations

import re
import statistics
from pathlib import Path

from ingot.artifacts.profiler import ProfileRow, follow_one_another, idle_shares, trace_model
from ingot.artifacts.roofline import measure_roofline
from ingot.lowering.loop_ir import SourceLocation
from ingot.viewer.assembly.assembly_texts import add_assembly_of
from ingot.viewer.measured.profile_data import REPEAT, describe_intervals
from ingot.viewer.stages.code_stages import add_texts, new_kernel
from ingot.viewer.stages.loop_stages import add_origin
from ingot.viewer.view_data import NOWHERE, Json, ViewData
from ingot_runtime import load
from ingot_runtime.container import Container
from ingot_runtime.container.manifest import Spec, SymbolSpec, read_spec
from ingot_runtime.cpu_features import cores

_FOLDER = "native/"
_KERNEL = re.compile(r"^(?:IG_KERNEL|extern \"C\" __global__) void .*?\b(?P<name>k\d+)\(")
_LAUNCH = re.compile(r"^\s+LAUNCH\((?P<number>\d+), (?P<name>k\d+), .*?/\* (?P<origin>.*) \*/$")
_COMMENT = re.compile(r"^/\* (?P<origin>.*) \*/$")


def collect_compiled(container: Container, path: Path, *, disassembly: bool = False) -> ViewData:
    """What a file without a program shows. Its machine code is taken apart where asked for; nothing of it runs."""
    spec = read_spec(container.manifest, container.names, container.path)
    view = ViewData(path.stem, path.name, "compiled", "cuda" if spec.images else "cpu")
    view.notes.append(
        "The file holds no program: what is shown is its code. Save it with the program to see every stage: "
        "compiled.save(path, program=True), or ingot compile --program."
    )
    texts = {
        name.removeprefix(_FOLDER): bytes(container.read(name)).decode(errors="replace")
        for name in container.names
        if name.startswith(_FOLDER) and name.endswith((".c", ".cu"))
    }
    for text in texts.values():
        _find_kernels(view, text)
    add_texts(view, dict(sorted(texts.items(), key=lambda item: not item[0].endswith(".cu"))))
    if disassembly:
        members = {**spec.libraries, **spec.images}
        add_assembly_of(view, {name: bytes(container.read(member)) for name, member in members.items()})
    describe_spec(view, spec)
    return view


def profile_compiled(view: ViewData, path: Path, threads: int | None) -> None:
    """Runs the file's own code on the sample that it holds. Each launch is known by its line in the text."""
    found = (_LAUNCH.match(text) for text in view.lines.text)
    launches = {int(one["number"]): one for one in found if one is not None}
    with load(path, threads) as model:
        if not launches or sorted(launches) != list(range(len(launches))) or not model.has_sample:
            view.notes.append("There is no profile: the file holds no sample call, or its launches are on a GPU.")
            return
        runs = [model.profile(model.example(), len(launches)) for _ in range(REPEAT + 1)][1:]
        count = threads or cores()
        traced = trace_model(
            model, model.example(), [launches[number]["name"] for number in range(len(launches))], count
        )
    names = {kernel["name"]: number for number, kernel in enumerate(view.kernels)}
    limits = measure_roofline(count)
    idle = idle_shares(traced, len(launches), count)
    made: list[Json] = []
    rows: list[ProfileRow] = []
    for number, times in enumerate(zip(*runs, strict=True)):
        launch, seconds = launches[number], statistics.median(times)
        kernel = names.get(launch["name"], NOWHERE)
        origin = add_origin(view, parse_origin(launch["origin"]))
        work = {"flops": 0, "effort": 0, "bytes": 0, "peak": 0.0, "idle": idle[number]}
        made.append({"kernel": kernel, "origin": origin, "seconds": seconds, **work})
        rows.append(ProfileRow(launch["name"], "", "", "", seconds, 0, 0, 0))
        if kernel != NOWHERE:
            view.kernels[kernel]["launches"] += 1
    view.profile = {
        "threads": count,
        "repeat": REPEAT,
        "seconds": sum(row.seconds for row in rows),
        "limits": {"flops": limits.flops, "bytes": limits.bytes},
        "launches": made,
        "intervals": describe_intervals(traced or follow_one_another(rows)),
    }
    view.notes.append("A compiled file does not say how much work its kernels do: the profile has times alone.")


def _find_kernels(view: ViewData, text: str) -> None:
    """The kernels of a text, with the origins that their comments name."""
    known = {kernel["name"] for kernel in view.kernels}
    before = ""
    for line in text.split("\n"):
        found = _KERNEL.match(line)
        if found is not None and found["name"] not in known:
            comment = _COMMENT.match(before)
            origin = NOWHERE if comment is None else add_origin(view, parse_origin(comment["origin"]))
            view.kernels.append(new_kernel(found["name"], [origin] if origin != NOWHERE else []))
        before = line


def parse_origin(text: str) -> SourceLocation:
    """The operator, the module and the line that a comment says; a part that is missing is left out of it."""
    parts = text.split("  ")
    op, *rest = parts
    source = rest.pop() if rest and re.search(r":\d+$", rest[-1]) else ""
    return SourceLocation("  ".join(rest), source, op)


def describe_spec(view: ViewData, spec: Spec) -> None:
    """What the model takes and gives, and for which machines it is."""
    for items, made in ((spec.inputs, view.inputs), (spec.outputs, view.outputs)):
        for item in items:
            made.append({"name": item.name, "path": item.name, "type": view.add_type(item.spelled)})
    for symbol in spec.symbols.values():
        view.dims.append(_describe_dim(symbol))
    view.facts.append(("instruction sets", ", ".join([*spec.libraries, *spec.images])))
    view.facts.append(("precision", spec.precision))


def _describe_dim(symbol: SymbolSpec) -> Json:
    return {"name": symbol.name, "low": symbol.low, "high": symbol.high, "auto": False, "text": str(symbol)}
