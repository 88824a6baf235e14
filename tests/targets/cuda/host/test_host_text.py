"""The host's text as C: no warning, no undefined behaviour, and the interface of ingot.h as a program in C uses it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import ingot
from ingot.codegen.build.toolchain import WARNINGS, find
from ingot_runtime.__main__ import main as run_runtime
from tests.support.cuda_emulation.target import EMULATED, EmulatedDriver, open_driver
from tests.targets.cuda.host.models import Counter, Several, Writer

ARGS = (torch.randn(4, 5), torch.randn(3, 7))

PROGRAM = Path(__file__).with_name("main.c")


def source_of(model: Any, args: tuple[Any, ...], **options: Any) -> str:
    compiled = ingot.compile(model, args, target=EMULATED, **options)
    text = compiled._source.files["model.c"]
    compiled.close()
    return text


def test_it_compiles_without_a_warning(tmp_path: Path) -> None:
    rows = torch.export.Dim("rows", min=0)
    for text in (
        source_of(Several().eval(), ARGS),
        source_of(Counter().eval(), (torch.randn(2, 5),)),
        source_of(lambda x: x[x > 0].sum(), (torch.randn(3, 4),)),
        source_of(lambda x: (x.softmax(-1), x.sum()), (torch.randn(3, 4),), dynamic_shapes=({0: rows},)),
    ):
        (tmp_path / "host.c").write_text(text)
        command = [*find().command, "-std=gnu11", "-O2", *WARNINGS, "-Werror", "-c", "-o", "host.o", "host.c"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:2000]


@pytest.mark.parametrize("sanitizer", ["", "-fsanitize=address,undefined"])
def test_a_program_in_c(driver: EmulatedDriver, tmp_path: Path, sanitizer: str) -> None:
    compiled = ingot.compile(Counter().eval(), (torch.randn(4, 5),), target=EMULATED)
    compiled.save(tmp_path / "m.ingot")
    assert run_runtime(["extract", str(tmp_path / "m.ingot"), str(tmp_path)]) == 0
    (tmp_path / "main.c").write_bytes(PROGRAM.read_bytes())
    (tmp_path / "host.c").write_text(compiled._source.files["model.c"])
    flags = [
        "-std=gnu11",
        "-g",
        "-O1",
        "-Wall",
        "-Wextra",
        *([sanitizer, "-fno-sanitize-recover"] if sanitizer else []),
    ]
    library = "model.so"
    if sanitizer:
        library = "checked.so"
        _compile([*flags, "-fPIC", "-shared", "-o", library, "host.c"], tmp_path)
    _compile([*flags, "-I.", "-o", "main", "main.c", "-ldl"], tmp_path)
    environment = {**os.environ, "INGOT_CUDA_DRIVER": str(open_driver().path), "ASAN_OPTIONS": "detect_leaks=0"}
    command = ["./main", f"./{library}", "weights.bin", "sm_90a.cubin"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "good\n", done.stdout + done.stderr[:3000]


def _compile(arguments: list[str], folder: Path) -> None:
    done = subprocess.run([*find().command, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]


def test_kernels_that_are_alike_are_written_once() -> None:
    compiled = ingot.compile(
        lambda x, y: ((x + 1).T * 2, (y + 1).T * 2),
        (torch.randn(3, 4), torch.randn(3, 4)),
        target=EMULATED,
        disable_passes={"map_groups"},
    )
    assert compiled.kernels == 1 and len(compiled._source.launches) == 2
    assert compiled.source.count("__launch_bounds__") == 1
    compiled.close()


def test_only_what_is_used_is_copied(driver: EmulatedDriver) -> None:
    compiled = ingot.compile(lambda x, unused: x + 1, (torch.randn(3), torch.randn(1000)), target=EMULATED)
    compiled(torch.randn(3), torch.randn(1000))
    before = driver.calls("cuMemcpyHtoDAsync_v2")
    compiled(torch.randn(3), torch.randn(1000))
    assert driver.calls("cuMemcpyHtoDAsync_v2") == before + 1
    compiled.close()


def test_a_copy_of_a_model_has_memory_of_its_own(driver: EmulatedDriver) -> None:
    import copy

    compiled = ingot.compile(Writer(), (torch.randn(4, 3), torch.randn(2, 3)), target=EMULATED)
    other = copy.deepcopy(compiled)
    for one in (compiled, other):
        x = torch.ones(4, 3)
        one(x, torch.zeros(2, 3))
        assert torch.equal(x, torch.full((4, 3), 2.0))
    compiled.close()
    other.close()
