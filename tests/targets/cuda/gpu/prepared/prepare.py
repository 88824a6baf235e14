"""Captures and compiles programs for a GPU on a machine without one, and packs their files and the inputs of calls.

A journal in the folder has a row for each program: prepared, or already a verdict (refused, crashed; right where the
same text was right on a GPU before). `judge.py` hands those verdicts on. A call that was cut off is gone on with by the
next one.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ingot.artifacts.compiled_model import CompiledModel
from ingot.codegen.build.page_prefault import Pages
from ingot.targets.cuda.codegen.module_emitter import CudaSource
from ingot.targets.cuda.target import CudaTarget
from tests.targets.cuda.gpu import evidence
from tests.targets.cuda.gpu.journals import Journal
from tests.targets.cuda.gpu.prepared.bundles import (
    PACKS,
    SUFFIX,
    Arrays,
    PreparedProgram,
    arrange_bundles,
    array_name,
    find_packs,
    write_pack,
)
from tests.targets.cuda.gpu.prepared.text_digest import digest_bytes, digest_inputs, digest_text
from tests.targets.cuda.gpu.prepared.verdicts import VERDICTS, KnownVerdict, read_verdicts
from tests.targets.cuda.gpu.saved_calls import name_array
from tests.targets.cuda.gpu.stages import Stages, add_up
from tests.targets.cuda.gpu.sweeps import PATIENCE, Place, ProgramJudge, SweptProgram, build_all
from tests.targets.cuda.gpu.workers import Note

FOLDER = evidence.ROOT / "build" / "prepared" / "cuda"
WHAT = ("samples", "programs")
# Bytes of packs in a bundle. The results of so many networks come back in one call; 64 MiB travel, with the sources.
BUNDLE_MIB = 44


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the bundles and of the journals")
    parser.add_argument("--skip-known", action="store_true", help="leave out programs whose text is known to be right")
    parser.add_argument("--known", type=Path, default=VERDICTS, help="the file of verdicts")
    parser.add_argument("--bundle-mib", type=float, default=BUNDLE_MIB, help="the size of a bundle, at most")
    evidence.add_selection(parser, WHAT)


def main(given: argparse.Namespace) -> int:
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    sweeps = evidence.make_sweeps(given)
    stamp = evidence.stamp_of(given.commit or commit_here(), emulated=given.emulated) | {"gpu": "none"}
    journals = {one.what: Journal(given.folder / f"{one.what}.jsonl", stamp) for one in sweeps}
    if given.tokens is not None:
        target, known = evidence.target_of(given.emulated), read_verdicts(given.known) if given.skip_known else {}

        def place_of(what: str, note: Note, spent: Stages) -> Place:
            packer = Packer(what, given.folder, target, known, journals[what])
            return Place(target, journals[what], note, given.end, False, spent, packer.pack, packer.wants)

        evidence.work(given, sweeps, journals, place_of)
        return 0
    begin = time.time()
    end = begin + max(1.0, 60 * given.minutes - evidence.MARGIN)
    evidence.collect(sweeps, journals, given, end, "tests.targets.cuda.gpu.prepared")
    print(add_up(given.folder / evidence.STAGES, begin))
    summarize(given.folder, journals, int(given.bundle_mib * 2**20))
    return 0


def summarize(folder: Path, journals: Mapping[str, Journal], most: int) -> None:
    """Arranges bundles, and prints what there is."""
    for bundle in arrange_bundles(folder, most):
        packs = find_packs([bundle])
        print(f"{bundle}: {len(packs)} packs, {sum(pack.stat().st_size for pack in packs) / 2**20:.1f} MiB")
    for what, journal in journals.items():
        count = Counter(row["outcome"] for row in journal.rows().values())
        print(f"{what}: {dict(count)}; {len(journal.done())} units done")


def commit_here() -> str:
    command = ["git", "-C", str(evidence.ROOT), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


class Packer:
    """Writes a pack for each batch of programs of one kind."""

    def __init__(
        self, what: str, folder: Path, target: CudaTarget, known: Mapping[str, KnownVerdict], journal: Journal
    ) -> None:
        self._what, self._folder, self._target, self._known, self._journal = what, folder, target, known, journal
        self._digests: dict[str, tuple[str, str]] = {}  # of texts and of inputs, by program

    def wants(self, one: SweptProgram) -> bool:
        """Whether a program is to run. One that is known to be right has its row."""
        text = self.digest(one)
        known = self._known.get(one.name)
        if known is not None and (known.text, known.outcome) == (text, "right"):
            self._journal.write(one.name, "right", from_file=True, text=text, ran_at=known.commit, unit=one.unit)
            return False
        return True

    def digest(self, one: SweptProgram) -> str:
        """The digest of a program's text."""
        inputs = digest_inputs(one.judge)
        text = digest_text(*_compiled_parts(one, self._target), inputs, self._target)
        self._digests[one.name] = text, inputs
        return text

    def pack(self, waiting: Sequence[SweptProgram], place: Place) -> None:
        made: list[tuple[PreparedProgram, bytes, Arrays]] = []
        with tempfile.TemporaryDirectory(prefix="ingot-prepared-") as folder:
            for one, model in build_all(waiting, place):
                place.note(one.name)
                signal.alarm(PATIENCE)
                with place.spent("save"):
                    try:
                        made.append(self._save(one, model, Path(folder, "model.ingot")))
                    except Exception as error:
                        self._journal.write(one.name, "crashed", f"saving: {type(error).__name__}: {error}")
                signal.alarm(0)
                place.note("")
        if not made:
            return
        names = "\n".join(f"{program.name} {program.file}" for program, _, _ in made)
        with place.spent("pack"):
            write_pack(self._folder / PACKS / f"{self._what}-{digest_bytes(names.encode())}{SUFFIX}", made)
        for program, _, _ in made:
            self._journal.write(program.name, "prepared", text=program.text, unit=program.unit)

    def _save(self, one: SweptProgram, model: CompiledModel, path: Path) -> tuple[PreparedProgram, bytes, Arrays]:
        model.program.example_inputs = None  # the sample of a file takes room, and is not run here
        model.save(path)
        model.close()
        file, (text, inputs) = path.read_bytes(), self._digests.pop(one.name)
        refusable = tuple(one.judge.may_refuse(number) for number in range(one.judge.count()))
        row = self._journal.stamp
        program = PreparedProgram(
            self._what, one.name, one.unit, text, digest_bytes(file), inputs, model.draws, one.lowered is None,
            refusable, row["code"], row["commit"],
        )  # fmt: skip
        return program, file, _calls(one.judge)


def _compiled_parts(one: SweptProgram, target: CudaTarget) -> tuple[CudaSource, NDArray[Any]]:
    """The texts and the packed weights of a program."""
    if one.compiled is not None:
        source = one.compiled._source
        assert isinstance(source, CudaSource)
        return source, one.compiled._blob.array
    assert one.lowered is not None
    with Pages(0) as pages:
        blob = target.pack_weights(one.lowered.program, one.lowered.module, one.lowered.source, pages)
        return one.lowered.source, blob.array


def _calls(judge: ProgramJudge) -> Arrays:
    arrays = {}
    for number in range(judge.count()):
        for place, tensor in enumerate(judge.arguments(number)):
            name, array = name_array(array_name(number, "in", place, False), tensor)
            arrays[name] = array
    return arrays
