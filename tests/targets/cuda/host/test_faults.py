"""What is missing on a machine, or fails on it, is said in a sentence; and nothing is left behind."""

from __future__ import annotations

import pytest
import torch

import ingot
from ingot.artifacts.compiled_model import CompiledModel
from ingot.errors import OutOfMemory, UnsupportedMachine, UnsupportedOperator
from ingot.targets.cuda.target import split_machines
from ingot_runtime import DeviceUnavailable
from tests.support.cuda_emulation.target import EMULATED, EmulatedDriver
from tests.targets.cuda.host.models import APART, Several


@pytest.fixture
def compiled() -> CompiledModel:
    return ingot.compile(Several().eval(), ARGS, target=EMULATED, **APART)


ARGS = (torch.randn(4, 5), torch.randn(3, 7))


def test_driver_is_missing(compiled: CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_CUDA_DRIVER", "/nowhere/libcuda.so.1")
    for _ in range(2):
        with pytest.raises(DeviceUnavailable, match=r"no CUDA driver.*\n.*/nowhere.*\n.*install the NVIDIA driver"):
            compiled(*ARGS)
    compiled.close()


def test_a_driver_that_appears_is_found(
    compiled: CompiledModel, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as away:
        away.setenv("INGOT_CUDA_DRIVER", "/nowhere/libcuda.so.1")
        with pytest.raises(DeviceUnavailable):
            compiled(*ARGS)
    assert len(compiled(*ARGS)) == 4
    compiled.close()


def test_a_library_that_is_not_a_driver(compiled: CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_CUDA_DRIVER", "libm.so.6")
    with pytest.raises(DeviceUnavailable, match=r"driver is too old.*\n.*libm.so.6 has no function cuInit"):
        compiled(*ARGS)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("INGOT_EMULATED_DEVICES=0", "There is no CUDA device.*\n.*finds no NVIDIA GPU"),
        (
            "INGOT_EMULATED_CC=75",
            "no code for this GPU.*\n.*Emulated GPU is of the architecture sm_75; .* sm_90a, sm_80",
        ),
        ("INGOT_EMULATED_CC=100", 'sm_100.*\n.*isa="sm_100", or isa="ptx"'),
        ("INGOT_EMULATED_FAULT=cuDevicePrimaryCtxRetain", "The GPU failed.*\n.*unknown error .999, in cuDevicePrimary"),
        ("INGOT_EMULATED_FAULT=cuModuleGetFunction:2", "The GPU failed.*\n.*unknown error .999, in cuModuleGetFunc"),
    ],
)
def test_the_device_is_not_one_that_it_runs_on(
    compiled: CompiledModel, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch, setting: str, sentence: str
) -> None:
    with monkeypatch.context() as wrong:
        name, _, value = setting.partition("=")
        if ":" in value:
            function, _, place = value.partition(":")
            value = f"{function}:{driver.calls(function) + int(place)}"
        wrong.setenv(name, value)
        with pytest.raises(DeviceUnavailable, match=sentence):
            compiled(*ARGS)
    assert len(compiled(*ARGS)) == 4  # what was there for a moment is not remembered
    compiled.close()


def test_code_that_a_driver_cannot_load_names_both_versions(
    driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = ingot.compile(Several().eval(), ARGS, target=EMULATED, **APART)
    compiled.model._images = {"sm_90a": b"\x7fELF\1 of another kind" + bytes(64)}  # type: ignore[attr-defined]
    monkeypatch.setenv("INGOT_EMULATED_VERSION", "12020")
    with pytest.raises(DeviceUnavailable, match=r"sm_90a.*\n.*supports CUDA 12.2.*of CUDA 13.0\n.*newer NVIDIA driver"):
        compiled(*ARGS)


def test_the_image_is_the_best_for_the_device(driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images that are not chosen are not code here: to load one fails."""
    good = ingot.compile(Several().eval(), ARGS, target=EMULATED, **APART).libraries["sm_80"]
    for capability, best, others in [
        (90, "sm_90a", ("sm_90", "sm_80", "compute_80")),
        (90, "sm_90", ("sm_80", "sm_91", "sm_100a", "compute_90")),
        (86, "sm_86", ("sm_80", "sm_87", "sm_90a")),
        (89, "sm_86", ("sm_80", "sm_90")),
        (100, "compute_90", ("sm_90", "sm_90a", "compute_80")),
        (120, "compute_120a", ("compute_80", "sm_100")),
    ]:
        monkeypatch.setenv("INGOT_EMULATED_CC", str(capability))
        compiled = ingot.compile(Several().eval(), ARGS, target=EMULATED, **APART)
        images = {**{name: b"not code" + bytes(8) for name in others}, best: good}
        compiled.model._images = images  # type: ignore[attr-defined]
        assert len(compiled(*ARGS)) == 4, (capability, best)
        compiled.close()


def test_device_is_missing(compiled: CompiledModel, driver: EmulatedDriver) -> None:
    compiled.model.device = 3  # type: ignore[attr-defined]
    with pytest.raises(DeviceUnavailable, match=r"no CUDA device 3.*\n.*this machine has 1"):
        compiled(*ARGS)


def test_the_device_has_no_memory(driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = ingot.compile(
        lambda x: (x + 1, x.T * 2), (torch.randn(4, 5),), dynamic_shapes=({0: "rows"},), target=EMULATED
    )
    small = torch.randn(4, 5)
    compiled(small)
    with monkeypatch.context() as little:
        little.setenv("INGOT_EMULATED_MEMORY", "10000")
        with pytest.raises(OutOfMemory, match="no memory left on the GPU"):
            compiled(torch.randn(1000, 5))
    torch.testing.assert_close(compiled(small)[0], small + 1)
    compiled.close()


def test_sizes_that_no_machine_holds(driver: EmulatedDriver) -> None:
    def square(x: torch.Tensor) -> torch.Tensor:
        return x[:, None] * x[None, :]

    rows = torch.export.Dim("rows", min=1, max=2**40)
    compiled = ingot.compile(square, (torch.randn(4),), dynamic_shapes=({0: rows},), target=EMULATED)
    x = torch.randn(5)
    torch.testing.assert_close(compiled(x), square(x))
    with pytest.raises(OutOfMemory, match="too large for any machine"):
        compiled(torch.ones(1).expand(2**39))
    compiled.close()


@pytest.mark.parametrize("function", ["cuGraphLaunch", "cuMemcpyHtoDAsync_v2", "cuStreamSynchronize"])
def test_a_call_that_fails_on_the_device(
    driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    model = Several().eval()
    compiled = ingot.compile(model, ARGS, target=EMULATED, **APART)
    compiled(*ARGS)
    with monkeypatch.context() as wrong:
        wrong.setenv("INGOT_EMULATED_FAULT", f"{function}:{driver.calls(function)}")
        with pytest.raises(DeviceUnavailable, match=f"The GPU failed.*\n.*unknown error .999, in {function}"):
            compiled(*ARGS)
    torch.testing.assert_close(compiled(*ARGS), model(*ARGS))
    compiled.close()


@pytest.mark.parametrize("function", ["cuGraphCreate", "cuGraphAddKernelNode", "cuGraphInstantiateWithFlags"])
def test_without_graphs_kernels_are_launched(
    driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    model = Several().eval()
    compiled = ingot.compile(model, ARGS, target=EMULATED, **APART)
    before = driver.calls("cuLaunchKernel")
    monkeypatch.setenv("INGOT_EMULATED_FAULT", f"{function}:{driver.calls(function)}")
    torch.testing.assert_close(compiled(*ARGS), model(*ARGS))
    assert driver.calls("cuLaunchKernel") == before + 4
    compiled.close()


def test_a_step_without_a_kernel_is_named() -> None:
    from ingot.lowering.loop_ir import ExternKernel, SourceLocation
    from ingot.lowering.loop_module import Module
    from ingot.scheduling.buffer_planning import plan
    from ingot.targets.cuda.codegen.kernel_rules import KERNELS
    from ingot.targets.cuda.codegen.module_emitter import emit

    class UnknownStep(ExternKernel):
        pass

    step = UnknownStep("nothing", (), (), origin=SourceLocation("layers.3", "model.py:12", "fold.default"))
    module = Module({}, (step,), (), (), (), {})
    assert UnknownStep not in KERNELS
    with pytest.raises(UnsupportedOperator, match=r"fold.default cannot be compiled.*CUDA.*\n.*model.py:12, layers.3"):
        emit(module, plan(module))


def test_names_of_machines() -> None:
    architectures, hosts = split_machines(())
    assert architectures == ["sm_90a", "sm_80"] and len(hosts) == 1
    assert split_machines(["sm_86", "ptx"])[0] == ["sm_86", "compute_80"]
    assert split_machines(["ptx"])[0] == ["sm_90a", "sm_80", "compute_80"]
    assert [isa.name for isa in split_machines(["x86-64-v3"])[1]][-1] == "x86-64-v3"
    with pytest.raises(UnsupportedMachine, match=r"no architecture called 'hopper'.*\n.*sm_80"):
        split_machines(["hopper"])
