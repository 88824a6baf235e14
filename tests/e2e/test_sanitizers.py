"""Generated C under the sanitizers of gcc: no bad access, no undefined behaviour, no race."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ingot.artifacts.compiled_model import CompiledModel
from ingot.codegen.build.isa import host
from ingot.codegen.build.toolchain import find
from ingot.config import Settings
from tests.e2e.products.test_random_windows import drawn_layers
from tests.support.emulated_amx import HEADER
from tests.support.kernel_models import CASES, model_of
from tests.support.pipeline_fixtures import assemble, build, lowered

HERE = Path(__file__).parent
SANITIZERS = {
    "address": ("libasan.so", ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")),
    "thread": ("libtsan.so", ("-fsanitize=thread",)),
}


class Attending(nn.Module):
    """Layers, and attention to the last three inputs."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return *self.layers(*given[:-3]), F.scaled_dot_product_attention(*given[-3:])


def runtime_library(name: str) -> str:
    """The sanitizer's own library, which must be in the process before anything else is."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    said = subprocess.run(
        ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not os.path.isabs(said):
        pytest.skip(f"gcc came without {name}")
    return os.path.realpath(said)


def sanitized(name: str, kind: str, folder: Path, callers: int, rounds: int) -> subprocess.CompletedProcess[str]:
    case = CASES[name]
    tools = find(Settings((), Path("unused"), False, "gcc"))
    # Built, not run, in this process, which has no sanitizer in it: the library is for the other one.
    plain = build(model_of(name), case.args(), dynamic_shapes=case.dynamic_shapes, tools=tools)
    return run_sanitized(plain, case.args(), kind, folder, callers, rounds)


def run_sanitized(
    plain: CompiledModel,
    inputs: Sequence[torch.Tensor],
    kind: str,
    folder: Path,
    callers: int,
    rounds: int,
    flags: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Calls what a sanitizer's library makes of a compiled model, in a process of its own."""
    library, own = SANITIZERS[kind]
    preload = runtime_library(library)
    tools = find(Settings((), Path("unused"), False, "gcc"))
    made = folder / "sanitized.so"
    extra = (f'-DIG_ISA="{host().name}"', "-O1", "-g", *own, *flags)
    tools.compile_library(plain.source, host(), made, extra_flags=extra)
    plain.libraries[host().name] = made.read_bytes()
    plain.save(folder / "m.ingot")
    plain.close()
    for number, value in enumerate(inputs):
        array = value.view(torch.int16).numpy().view(np.uint16) if value.dtype is torch.bfloat16 else value.numpy()
        np.save(folder / f"input{number:02}.npy", array)
    return subprocess.run(
        [
            sys.executable,
            str(HERE.parent / "support" / "sanitized_run.py"),
            str(HERE.parents[1] / "src"),
            str(folder),
            str(callers),
            str(rounds),
        ],
        env={
            **os.environ,
            "LD_PRELOAD": preload,
            # Python never frees some of what it has: leaks of the process say nothing of the library.
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "TSAN_OPTIONS": "exitcode=66",
        },
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("name", CASES)
def test_no_bad_access_and_no_undefined_behaviour(name: str, tmp_path: Path) -> None:
    done = sanitized(name, "address", tmp_path, callers=1, rounds=2)
    assert done.returncode == 0 and "ran 2" in done.stdout, (done.stdout + done.stderr)[-4000:]
    assert "runtime error" not in done.stderr


@pytest.mark.parametrize("seed", [1, 2])
def test_emulated_amx_has_no_bad_access(seed: int, tmp_path: Path) -> None:
    """Products, convolutions and attention of odd sizes."""
    layers, given = drawn_layers(seed, torch.float32)
    given += [torch.randn(1, 2, *shape) for shape in ((50, 33), (131, 33), (131, 24))]
    program, module = lowered(Attending(layers), tuple(given), precision="bfloat16")
    emulated = ("-include", str(HEADER))
    done = run_sanitized(assemble(program, module), given, "address", tmp_path, 1, 1, emulated)
    assert done.returncode == 0 and "ran 1" in done.stdout, (done.stdout + done.stderr)[-4000:]
    assert "runtime error" not in done.stderr


@pytest.mark.parametrize("name", ["transformer block", "overwriting"])
def test_several_callers_do_not_race(name: str, tmp_path: Path) -> None:
    done = sanitized(name, "thread", tmp_path, callers=3, rounds=3)
    assert done.returncode == 0 and "ran 9" in done.stdout, (done.stdout + done.stderr)[-4000:]
    assert "data race" not in done.stderr


def test_the_sanitizer_sees_what_is_wrong(tmp_path: Path) -> None:
    """A library that reads behind its memory ends the process: so the tests above can fail."""
    preload = runtime_library("libasan.so")
    (tmp_path / "bad.c").write_text(
        "#include <stdlib.h>\nint f(int n) { int *a = malloc(4 * n); a[0] = 1; int r = a[n]; free(a); return r; }\n"
    )
    flags = SANITIZERS["address"][1]
    subprocess.run(["gcc", "-shared", "-fPIC", *flags, "-o", "bad.so", "bad.c"], cwd=tmp_path, check=True)
    done = subprocess.run(
        [sys.executable, "-c", "import ctypes; ctypes.CDLL('./bad.so').f(4)"],
        env={**os.environ, "LD_PRELOAD": preload, "ASAN_OPTIONS": "detect_leaks=0"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0 and "heap-buffer-overflow" in done.stderr
