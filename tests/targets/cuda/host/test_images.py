"""Models compiled by NVRTC for real GPUs, on a machine that has none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import ingot
import ingot_runtime
from ingot.cli import app
from ingot.errors import NoCompiler
from ingot.targets.cuda.build import nvrtc
from ingot_runtime import DeviceUnavailable
from tests.targets.cuda.host.models import APART, Several

try:
    nvrtc.version()
except NoCompiler as missing:
    pytest.skip(f"NVRTC is missing: {missing}", allow_module_level=True)

ARGS = (torch.randn(4, 5), torch.randn(3, 7))
EM_CUDA = 190  # the machine that a cubin's header names


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INGOT_CUDA_DRIVER", "/nowhere/libcuda.so.1")
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path / "cache"))


def test_it_compiles_and_saves_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Several().eval()
    compiled = ingot.compile(model, ARGS, target="cuda", **APART)
    assert list(compiled.libraries) == ["x86-64", "sm_90a", "sm_80"]
    for name in ("sm_90a", "sm_80"):
        header = compiled.libraries[name]
        assert header[:4] == b"\x7fELF" and int.from_bytes(header[18:20], "little") == EM_CUDA
    assert "__global__" in compiled.source and "extern" in compiled.source
    compiled.save(tmp_path / "m.ingot", program=True)
    with pytest.raises(DeviceUnavailable, match="There is no CUDA driver"):
        compiled(*ARGS)
    compiled.close()
    with pytest.raises(DeviceUnavailable, match="There is no CUDA driver"):
        ingot_runtime.load(tmp_path / "m.ingot")
    program = ingot.load(tmp_path / "m.ingot", native=False)
    assert isinstance(program, ingot.Program)
    assert len(program(*ARGS)) == 4

    def fail(*_: object, **__: object) -> bytes:
        raise AssertionError("it was compiled before")

    monkeypatch.setattr(nvrtc, "compile_text", fail)
    again = ingot.compile(model, ARGS, target="cuda", **APART)  # images come from the cache
    assert again.libraries == compiled.libraries


def test_ptx_for_architectures_to_come() -> None:
    compiled = ingot.compile(lambda x: x + 1, (torch.randn(3),), target="cuda", isa=["sm_86", "ptx"])
    assert list(compiled.libraries) == ["x86-64", "sm_86", "compute_80"]
    text = compiled.libraries["compute_80"]
    assert b".target sm_80" in text and text.endswith(b"\0")  # the driver reads it up to there


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "m.ingot"
    command = [
        "compile",
        "tests.targets.cuda.host.models:build",
        "--target",
        "cuda",
        "--isa",
        "sm_80",
        "-o",
        str(file),
        "--json",
    ]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    data = json.loads(shown.stdout)
    assert data["instruction_sets"] == ["x86-64", "sm_80"]
    assert data["largest_difference"] is None and data["unchecked"] == "There is no CUDA driver."
    assert "computes on a GPU: sm_80" in ingot_runtime.describe(file)
