"""Every report and benchmark that is committed: how it is made, what code it speaks of, and whether it is older.

    python -m tests.evidence run [NAME ...] [--minutes 60] [--force]    make evidence ONLY=shapes MINUTES=60
    python -m tests.evidence status                                     make evidence-status

`run` makes what is older than the code that it covers. It stops cleanly when the minutes are over and goes on the next
time: what a command has in its journal is not done again, unless a covered file changed since the journal began. Each
output then names the commit, and whether covered files had changes that are not committed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ingot_runtime import cpu_features
from tests import progress

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "evidence"
_STAMP = re.compile(r"^Evidence of commit ([0-9a-f]{40})( with uncommitted changes)?\.$", re.MULTILINE)
# Where the driver of a GPU shows itself.
GPU = Path("/dev/nvidiactl")
_STOP = 30  # seconds that a command has to end


@dataclass(frozen=True, slots=True)
class Entry:
    """One output: the shell command that makes it, and the paths whose changes make it old.

    In the command {python} is this interpreter, {output} the file to write and {journal} a file that keeps results
    between runs; a command without a journal begins anew. A journal whose lines name their code is never thrown away.
    What needs a GPU is left out on machines without one.
    """

    name: str
    output: str
    command: str
    covers: tuple[str, ...]
    names_code: bool = False
    needs_gpu: bool = False
    needs_isa: str = "plain"


# What runs only where a model lies on a GPU: evidence on the CPU does not depend on it.
GPU_ONLY = (
    "src/ingot/targets/cuda",
    "src/ingot/artifacts/device_calls.py",
    "src/ingot_runtime/device_model.py",
    "src/ingot_runtime/native/cuda_driver.py",
    "src/ingot_runtime/native/device_array.py",
    "src/ingot_runtime/native/dlpack.py",
    "tests/support/cuda_emulation",
)
_IR = (
    "src/ingot/ir",
    "src/ingot/analysis",
    "src/ingot/serialization",
    "src/ingot/interop",
    "src/ingot/torch_internals",
)
_CAPTURE = ("src/ingot/frontend", *_IR)
_PASSES = (*_CAPTURE, "src/ingot/passes", "src/ingot/rewriting")
_SHARED = (
    "src/ingot/lowering",
    "src/ingot/scheduling",
    "src/ingot/codegen",
    "src/ingot/targets/base.py",
)
_BACK_END = (
    *_SHARED,
    "src/ingot/targets/cpu",
    "src/ingot/targets/reference",
    "src/ingot/artifacts",
)
_NATIVE = (*_PASSES, *_BACK_END, "src/ingot_runtime")
_TRAINING = (*_NATIVE, "src/ingot/autograd", "src/ingot/dynamo", "tests/support/training")
_ONNX = (*_PASSES, "src/ingot/onnx")
_QUANTIZE = (*_NATIVE, "src/ingot/quantization")
_TORCHAO = "PYTHONPATH=.venv/torchao "


def _report(name: str, command: str, *covers: str, output: str = "") -> Entry:
    return Entry(name, output or f"docs/reports/{name}.md", command, covers)


def _benchmark(name: str, command: str, *covers: str) -> Entry:
    return Entry(
        f"bench-{name}",
        f"benchmarks/results/{name}.json",
        command,
        (*covers, f"benchmarks/{name.partition('-')[0]}.py"),
    )


def _fuzz(kind: str, count: int) -> Entry:
    command = f"{{python}} -m tests.fuzz {kind} --count {count} --journal {{journal}} --report {{output}}"
    return replace(_report(f"fuzz_{kind}", command, *_NATIVE, "tests/fuzz"), names_code=True)


ENTRIES = (
    _fuzz("networks", 20_000),
    _fuzz("operators", 20_000),
    _fuzz("aliasing", 5_000),
    _fuzz("dynamic_shapes", 5_000),
    _report("operator_samples", "{python} -m tests.support.sample_sweep --dtype float32 bfloat16 int64 bool"
            " --json {journal} --write {output}", *_NATIVE, "tests/support"),
    _report("operator_samples_more", "{python} -m tests.support.sample_sweep --dtype float64 float16 uint8"
            " --json {journal} --write {output}", *_NATIVE, "tests/support"),
    _report("native_zoo", "{python} -m tests.support.zoo_sweep {journal} &&"
            " {python} -m tests.support.zoo_sweep {journal} --report {output}", *_NATIVE),
    _report("aarch64", "{python} -m tests.support.arm_emulation.sweep {journal} --every 8 --write {output}",
            *_NATIVE, "tests/support"),
    _report("training", "{python} -m tests.support.training.report --journal {journal} --write {output}", *_TRAINING),
    _report("gradient_samples", "{python} -m tests.support.training.gradient_sweep --most 1 --journal {journal}"
            " --write {output}", *_TRAINING, "tests/support/operator_samples"),
    replace(_report("pytorch_tests", "{python} -m tests.dynamo.inductor_tests --journal {journal} --write {output}",
            *_TRAINING, "src/ingot/dynamo"), names_code=True),
    _report("native_programs", "{python} -m pytest -q -m slow tests/e2e/test_random_programs.py", *_NATIVE),
    _report("reference_target", "{python} -m tests.support.reference_sweep zoo --journal {journal} &&"
            " {python} -m tests.support.reference_sweep networks --count 200 --journal {journal} &&"
            " {python} -m tests.support.reference_sweep programs --count 2000 --journal {journal} --write {output}",
            *_NATIVE),
    _report("winograd", "{python} -m tests.support.winograd_accuracy > {output}", *_BACK_END),
    _report("onnx_samples", "{python} -m tests.onnx.sample_sweep --json {journal} --write {output}", *_ONNX,
            "tests/onnx"),
    _report("onnx_zoo", "{python} -m tests.onnx.zoo_sweep {journal} &&"
            " {python} -m tests.onnx.zoo_sweep {journal} --report {output}", *_ONNX),
    _report("packages", "PYTHONPATH=src .venv/packages/bin/python -m tests.support.packages.sweep {journal} &&"
            " PYTHONPATH=src .venv/packages/bin/python -m tests.support.packages.sweep {journal} --report {output}",
            *_NATIVE, "src/ingot/onnx", "tests/support/packages"),
    _report("passes_zoo", "{python} -m tests.passes.pipeline_zoo --journal {journal} --report {output}", *_PASSES),
    _report("random_programs", "{python} -m tests.passes.random_programs.sweep --journal {journal} --write {output}",
            *_PASSES, "tests/passes/random_programs"),
    _report("cache", "rm -rf build/cache_stress && {python} -m tests.codegen.build.cache_stress build/cache_stress"
            " --kills 1000 --write {output}", "src/ingot/codegen/build", "tests/codegen/build/cache_stress.py"),
    _report("shapes", "{python} -m tests.analysis.shape_inference.sample_sweep --keep {journal} --write {output}",
            *_IR, "tests/analysis/shape_inference"),
    _report("torchscript", "{python} -m tests.frontend.torchscript.report --write {output}", *_CAPTURE),
    _report("export_tests", "{python} -m tests.interop.export_tests" + "".join(
            f" $PYTORCH/test/export/test_{name}.py" for name in ("passes", "unflatten", "converter", "export"))
            + " --journal {journal} --resume --report {output}", *_CAPTURE, "tests/interop"),
    _report("size_one", "{python} -m tests.frontend.sizes.size_one_sweep {journal} --report {output}", *_CAPTURE),
    _report("quantize", "{python} benchmarks/accuracy.py --write {output}", *_QUANTIZE, "benchmarks/accuracy.py"),
    _report("quantize_torchao", _TORCHAO + "{python} -m tests.quantization.against_torchao --keep {journal}"
            " --write {output}", *_QUANTIZE),
    replace(_benchmark("amx", "{python} benchmarks/amx.py --json {output}", *_NATIVE), needs_isa="x86-64-v4-amx"),
    _benchmark("capture", "{python} benchmarks/capture.py --json {output}", *_CAPTURE),
    _benchmark("passes", "{python} benchmarks/passes.py --json {output}", *_PASSES),
    _benchmark("cpu", "{python} benchmarks/cpu.py --json {output}", *_NATIVE),
    Entry("bench-bfloat16", "benchmarks/results/bfloat16.json", '{python} benchmarks/cpu.py --batch 1 --precision'
          ' bfloat16 --without eager torch.compile "ONNX Runtime" OpenVINO --json {output}',
          (*_NATIVE, "benchmarks/cpu.py")),
    _benchmark("decoding", "{python} benchmarks/decoding.py --json {output}", *_QUANTIZE),
    _benchmark("functions", "{python} benchmarks/functions.py", *_NATIVE),
    _benchmark("scientific", "{python} benchmarks/scientific.py --json {output}", *_NATIVE),
    _benchmark("sizes", "{python} benchmarks/sizes.py --json {output}", *_NATIVE),
    _benchmark("growth", "{python} benchmarks/growth.py", *_NATIVE),
    _benchmark("growth-chains", "{python} benchmarks/growth.py chains", *_NATIVE),
    _benchmark("onnx", "{python} benchmarks/onnx.py --json {output}", *_ONNX),
    _benchmark("preparing", _TORCHAO + "{python} benchmarks/preparing.py --json {output}", *_QUANTIZE),
    _benchmark("quantize", _TORCHAO + "{python} benchmarks/quantize.py --json {output}", *_QUANTIZE),
    _benchmark("training", "{python} benchmarks/training.py --json {output}", *_TRAINING,
               "benchmarks/support/training_models.py"),
    _benchmark("start", "{python} benchmarks/start.py", *_NATIVE),
    replace(_benchmark("cuda", "{python} benchmarks/cuda.py --prepare build/inductor && {python} benchmarks/cuda.py"
                       " --prepared build/inductor --json {output}"
                       " && {python} benchmarks/support/cuda_table.py --write",
                       *_PASSES, *_SHARED, *GPU_ONLY), needs_gpu=True),
    replace(_benchmark("cuda_start", "{python} benchmarks/cuda_start.py --json {output} --write", *_PASSES, *_SHARED,
                       *GPU_ONLY, "src/ingot_runtime"), needs_gpu=True),
)  # fmt: skip


# ---------------------------------------------------------------------- the state of the code


@dataclass(frozen=True, slots=True)
class State:
    """A commit, and whether files had changes beyond it."""

    commit: str
    dirty: bool

    def __str__(self) -> str:
        return f"Evidence of commit {self.commit}{' with uncommitted changes' if self.dirty else ''}."


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _covered(paths: Sequence[str]) -> list[str]:
    """These paths as arguments for git: without what runs on a GPU only, unless it is one of them."""
    return [*paths, *(f":(exclude){path}" for path in GPU_ONLY if path not in paths)]


def state_of(paths: Sequence[str]) -> State:
    """The state of the code now, as far as these paths go."""
    return State(_git("rev-parse", "HEAD"), bool(_git("status", "--porcelain", "--", *_covered(paths))))


def digest_of(paths: Sequence[str]) -> str:
    """A hash of what lies under these paths, committed or not."""
    hashed = hashlib.sha256()
    listed = _git("ls-files", "--cached", "--others", "--exclude-standard", "--", *_covered(paths)).splitlines()
    for name in sorted(set(listed)):
        file = ROOT / name
        hashed.update(f"{name}\0".encode() + (file.read_bytes() if file.is_file() else b"") + b"\0")
    return hashed.hexdigest()


def commits_since(commit: str, paths: Sequence[str]) -> int | None:
    """How many commits changed these paths after a commit; None where the commit is not known here."""
    try:
        return int(_git("rev-list", "--count", f"{commit}..HEAD", "--", *_covered(paths)))
    except subprocess.CalledProcessError:
        return None


def stamped(output: Path) -> State | None:
    """The state that an output names, or None."""
    if not output.exists():
        return None
    text = output.read_text(encoding="utf-8")
    if output.suffix == ".json":
        data = json.loads(text)
        commit = data.get("commit") if isinstance(data, dict) else None
        return State(str(commit), bool(data.get("dirty"))) if commit else None
    found = _STAMP.search(text)
    return State(found.group(1), bool(found.group(2))) if found else None


def stamp(output: Path, state: State) -> None:
    """Writes a state into an output, in the place of one that it may name."""
    text = output.read_text(encoding="utf-8")
    if output.suffix == ".json":
        data = json.loads(text) | {"commit": state.commit, "dirty": state.dirty}
        output.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        return
    title, _, rest = _STAMP.sub("", text).partition("\n")
    output.write_text(f"{title}\n\n{state}\n\n{rest.lstrip()}", encoding="utf-8")


# ---------------------------------------------------------------------- running


def is_old(entry: Entry) -> bool:
    """Whether covered files changed since the state that the output names, or it names none."""
    named = stamped(ROOT / entry.output)
    if named is None or named.dirty or commits_since(named.commit, entry.covers) != 0:
        return True
    return state_of(entry.covers).dirty


def _journal(entry: Entry, digest: str) -> Path:
    """The journal of an entry; one that was begun with other code is thrown away."""
    WORK.mkdir(parents=True, exist_ok=True)
    journal, begun = WORK / f"{entry.name}.jsonl", WORK / f"{entry.name}.digest"
    if not begun.exists() or begun.read_text() != digest:
        if not entry.names_code:
            journal.unlink(missing_ok=True)
        begun.write_text(digest)
    return journal


def make(entry: Entry, seconds: float) -> str:
    """Runs an entry's command. Returns "made", "stopped" where time ran out, or "failed"."""
    digest, state = digest_of(entry.covers), state_of(entry.covers)
    output = ROOT / entry.output
    before = output.stat().st_mtime_ns if output.exists() else None
    if seconds <= 0:
        return "stopped"
    journal = _journal(entry, digest)
    text = entry.command.format(python=sys.executable, output=entry.output, journal=journal)
    process = subprocess.Popen(text, shell=True, cwd=ROOT, start_new_session=True, env=progress.environment_of_sweep())
    try:
        code = _wait(process, entry.name, text, journal, time.monotonic() + seconds)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        _stop(process)
        return "stopped"
    if code or not output.exists() or output.stat().st_mtime_ns == before:
        return "failed"
    if digest_of(entry.covers) != digest:
        state = State(state.commit, dirty=True)  # the code changed while it ran
    stamp(output, state)
    return "made"


def _wait(process: subprocess.Popen[bytes], name: str, command: str, journal: Path, deadline: float) -> int:
    """The exit code of a command, whose journal is shown as it grows. Raises TimeoutExpired at the deadline."""

    def is_done(seconds: float) -> bool:
        try:
            process.wait(progress.wait_until(deadline, seconds))
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline:
                raise
            return False
        return True

    progress.watch(name, command, journal, is_done)
    return int(process.returncode)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a command and the processes that it started."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(_STOP)
            return
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            return


def run(names: Sequence[str], minutes: float, force: bool) -> int:
    """Makes the entries that are named, or all, as far as they are old. Returns how many failed."""
    end = time.monotonic() + minutes * 60
    failed = 0
    for entry in chosen(names):
        if not force and not is_old(entry):
            print(f"{entry.name}: as new as the code", flush=True)
            continue
        if entry.needs_gpu and not GPU.exists():
            print(f"{entry.name}: needs a GPU", flush=True)
            continue
        if cpu_features.missing(entry.needs_isa):
            print(f"{entry.name}: needs a machine for {entry.needs_isa}", flush=True)
            continue
        print(f"{entry.name}: {entry.output}", flush=True)
        outcome = make(entry, end - time.monotonic())
        print(f"{entry.name}: {outcome}", flush=True)
        failed += outcome == "failed"
        if outcome == "stopped":
            print("Run it again to go on.")
            break
    return failed


def chosen(names: Sequence[str]) -> Iterator[Entry]:
    known = {entry.name: entry for entry in ENTRIES}
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"no evidence is called {', '.join(unknown)}; there are: {', '.join(known)}")
    yield from (known[name] for name in names) if names else ENTRIES


# ---------------------------------------------------------------------- status


def status() -> str:
    """A table of every entry: the commit that it names, and how many commits changed what it covers since."""
    rows = [("evidence", "commit", "commits since", "")]
    for entry in ENTRIES:
        output = ROOT / entry.output
        named = stamped(output)
        if named is None:
            rows.append((entry.name, "–", "–", "names no commit" if output.exists() else "is not there"))
            continue
        since = commits_since(named.commit, entry.covers)
        old = "old" if since or named.dirty or state_of(entry.covers).dirty else ""
        said = "an unknown commit" if since is None else "made with uncommitted changes" if named.dirty else old
        rows.append((entry.name, named.commit[:9], "?" if since is None else str(since), said))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    running = commands.add_parser("run", help="make what is old")
    running.add_argument("names", nargs="*")
    running.add_argument("--minutes", type=float, default=float("inf"))
    running.add_argument("--force", action="store_true", help="also what is as new as the code")
    commands.add_parser("status", help="list what is older than the code it covers")
    given = parser.parse_args()
    if given.what == "status":
        print(status())
    else:
        sys.exit(run(given.names, given.minutes, given.force) > 0)


if __name__ == "__main__":
    main()
