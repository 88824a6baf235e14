"""A model for a GPU as a file: what it holds, where it runs, and what is said where it does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import ingot
import ingot_runtime
from ingot import compiler
from ingot.cli import app
from ingot_runtime import DamagedFile, DeviceUnavailable
from ingot_runtime.__main__ import main as run_runtime
from tests.support.cuda_emulation.target import EMULATED, EmulatedDriver
from tests.targets.cuda.host.models import Counter, Several

ARGS = (torch.randn(4, 5), torch.randn(3, 7))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    compiled = ingot.compile(Several().eval(), ARGS, target=EMULATED)
    compiled.save(tmp_path / "m.ingot")
    return tmp_path / "m.ingot"


@pytest.mark.parametrize(
    ("capability", "built"), [("90", ["sm_90a"]), ("86", ["sm_80"]), ("80", ["sm_80"]), ("100", ["sm_90a", "sm_80"])]
)
def test_a_model_on_a_gpu_is_compiled_for_it_and_saved_for_all(
    driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capability: str, built: list[str]
) -> None:
    """The file is the same as that of a machine without a GPU."""
    model = Several().eval()
    ingot.compile(model, ARGS, target=EMULATED).save(tmp_path / "anywhere.ingot")
    monkeypatch.setenv("INGOT_EMULATED_CC", capability)
    monkeypatch.setattr(compiler, "find_device", lambda program: 0)
    compiled = ingot.compile(model, ARGS, target=EMULATED)
    assert list(compiled.libraries) == ["x86-64", *built]
    if capability != "100":
        assert torch.equal(compiled(*ARGS)[0], model(*ARGS)[0])
    compiled.save(tmp_path / "here.ingot")
    assert list(compiled.libraries) == ["x86-64", "sm_90a", "sm_80"]
    assert (tmp_path / "here.ingot").read_bytes() == (tmp_path / "anywhere.ingot").read_bytes()
    compiled.close()
    named = ingot.compile(model, ARGS, target=EMULATED, isa="sm_80")
    named.save(tmp_path / "named.ingot")
    assert list(named.libraries) == ["x86-64", "sm_80"]


def test_a_gpu_that_is_not_found_is_left_to_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "find_device", lambda program: 7)
    assert list(ingot.compile(Several().eval(), ARGS, target=EMULATED).libraries) == ["x86-64", "sm_90a", "sm_80"]


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
sys.modules["ingot"] = None
import numpy as np
import ingot_runtime
with ingot_runtime.load(sys.argv[1]) as model:
    print(model.self_test())
    given = np.load(sys.argv[2])
    for _ in range(3):
        results = model(x=given["x"], y=given["y"])
    np.savez(sys.argv[3], *results)
"""


def test_it_runs_in_a_process_without_torch(file: Path, driver: EmulatedDriver, tmp_path: Path) -> None:
    x, y = (arg.numpy() for arg in ARGS)
    np.savez(tmp_path / "given.npz", x=x, y=y)
    command = [sys.executable, "-c", WITHOUT_TORCH, file, tmp_path / "given.npz", tmp_path / "made.npz"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip() == "0.0", done.stderr
    compiled = ingot.compile(Several().eval(), ARGS, target=EMULATED)
    del compiled
    made = np.load(tmp_path / "made.npz")
    with ingot.load(file) as loaded:
        for found, expected in zip(made.values(), loaded(*ARGS), strict=True):
            np.testing.assert_array_equal(found, expected.numpy())


def test_it_takes_and_returns_tensors(file: Path, driver: EmulatedDriver) -> None:
    with ingot.load(file) as loaded:
        results = loaded(*ARGS)
        assert all(isinstance(result, torch.Tensor) for result in results)
        assert loaded.self_test() == 0.0
        torch.testing.assert_close(results[1], ARGS[1].T * 2)


def test_a_self_test_leaves_the_state_alone(tmp_path: Path, driver: EmulatedDriver) -> None:
    compiled = ingot.compile(Counter().eval(), (torch.ones(1, 5),), target=EMULATED)
    compiled.save(tmp_path / "m.ingot")
    with ingot_runtime.load(tmp_path / "m.ingot") as model, model.again() as other:
        x = np.ones((1, 5), np.float32)
        for turn in range(3):
            model.self_test()
            assert model(x)[0, 0] == turn + 1
        assert other(x)[0, 0] == 1


def test_two_compilations_give_the_same_bytes(file: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Several().eval()
    for name in ("a", "b"):
        ingot.compile(model, ARGS, target=EMULATED).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_what_it_holds(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ingot_runtime.open_container(file) as container:
        assert {"native/sm_90a.cubin", "native/sm_80.cubin", "native/model.cu", "native/model.c"} <= set(
            container.names
        )
        native = container.manifest["native"]
        assert [image["architecture"] for image in native["images"]] == ["sm_90a", "sm_80"]
        assert native["source"] == "native/model.cu"
        assert b"__global__" in bytes(container.read("native/model.cu"))
        assert all("sha256" in container.manifest["members"][image["member"]] for image in native["images"])
    assert "computes on a GPU: sm_90a, sm_80" in ingot_runtime.describe(file)
    assert run_runtime(["extract", str(file), str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "sm_90a.cubin").stat().st_size > 1000 and "sm_80.cubin" in capsys.readouterr().out
    shown = CliRunner().invoke(app, ["inspect", str(file), "--json"])
    assert json.loads(shown.stdout)["instruction_sets"] == ["x86-64", "sm_90a", "sm_80"]


@pytest.mark.parametrize("member", ["native/sm_90a.cubin", "native/sm_80.cubin"])
def test_a_flipped_bit_in_an_image_is_found(file: Path, member: str) -> None:
    with ingot_runtime.open_container(file) as container:
        text = bytes(container.read(member))[:64]
    data = bytearray(file.read_bytes())
    places = [place for place in range(len(data) - 64) if data[place : place + 64] == text]
    data[places[["native/sm_80.cubin", "native/sm_90a.cubin"].index(member)] + 40] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(DamagedFile, match=r"native/sm_\d+a?.cubin"):
        ingot_runtime.load(file)


def test_a_machine_without_a_driver(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_CUDA_DRIVER", "/nowhere/libcuda.so.1")
    with pytest.raises(DeviceUnavailable, match="There is no CUDA driver"):
        ingot_runtime.load(file)
    assert "computes on a GPU" in ingot_runtime.describe(file)


def test_a_machine_with_another_gpu(file: Path, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_EMULATED_CC", "75")
    with pytest.raises(DeviceUnavailable, match=r"sm_75; there is code for sm_90a, sm_80"):
        ingot_runtime.load(file)


def test_another_device(file: Path, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_EMULATED_DEVICES", "2")
    with ingot_runtime.load(file, device=1) as model:
        assert model.self_test() == 0.0
    with pytest.raises(DeviceUnavailable, match="no CUDA device 2"):
        ingot_runtime.load(file, device=2)


def test_the_runtime_command(file: Path, driver: EmulatedDriver, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_runtime(["self-test", str(file), "--device", "0"]) == 0
    assert "largest difference 0" in capsys.readouterr().out
    assert run_runtime(["self-test", str(file), "--device", "7"]) == 1
    assert "no CUDA device 7" in capsys.readouterr().err


def test_doctor_shows_driver_and_device(driver: EmulatedDriver) -> None:
    shown = CliRunner().invoke(app, ["doctor", "--json"], env={**os.environ})
    found = json.loads(shown.stdout)["cuda"]
    assert found["driver"] == "supports CUDA 13.0" and found["runs"]
    assert found["devices"] == ["Emulated GPU, sm_90, 128 GiB"]


def test_doctor_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_CUDA_DRIVER", "/nowhere/libcuda.so.1")
    shown = CliRunner().invoke(app, ["doctor", "--json"])
    found = json.loads(shown.stdout)["cuda"]
    assert "There is no CUDA driver." in found["driver"] and not found["runs"] and found["devices"] == []
