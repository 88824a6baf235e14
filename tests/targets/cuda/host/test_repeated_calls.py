"""Calls that repeat one another: what the host leaves out then, and what it must not leave out."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ingot
import ingot_runtime
from ingot_runtime import ClosedModel
from ingot_runtime.device_model import BoundCall, DeviceModel
from ingot_runtime.native.device_array import DeviceArray
from tests.support.cuda_emulation.target import EMULATED, EmulatedDriver
from tests.targets.cuda.host.models import Counter, Gather, Several

NAMES = (
    "cuLaunchKernel",
    "cuTensorMapEncodeTiled",
    "cuGraphLaunch",
    "cuGraphCreate",
    "cuGraphExecKernelNodeSetParams",
    "cuEventRecord",
    "cuEventQuery",
    "cuStreamWaitEvent",
)
ARGS = (torch.randn(4, 5), torch.randn(3, 7))


def load(model: Any, args: tuple[Any, ...], folder: Path, **options: Any) -> DeviceModel:
    ingot.compile(model, args, target=EMULATED, **options).save(folder / "m.ingot")
    loaded = ingot_runtime.load(folder / "m.ingot")
    assert isinstance(loaded, DeviceModel)
    return loaded


def bind(model: DeviceModel, *args: torch.Tensor) -> BoundCall:
    found = model.bind([tuple(arg.shape) for arg in args])
    assert found is not None
    return found


def results_of(bound: BoundCall) -> list[torch.Tensor]:
    made = zip(bound.shapes, bound.dtypes, strict=True)
    return [torch.empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in made]


def call(bound: BoundCall, args: Sequence[torch.Tensor], results: Sequence[torch.Tensor], stream: int = 0) -> None:
    bound([tensor.data_ptr() for tensor in (*args, *results)], stream)


def host_view(array: DeviceArray) -> torch.Tensor:
    """A tensor over the memory of an emulated device, which is the host's."""
    memory: Any = (ctypes.c_char * array.nbytes).from_address(array.address)
    memory.owner = array
    return torch.frombuffer(memory, dtype=getattr(torch, array.dtype)).view(array.shape)


def count(driver: EmulatedDriver, act: Callable[[], None]) -> dict[str, int]:
    """How often the driver's functions are called: those that are."""
    before = {name: driver.calls(name) for name in NAMES}
    act()
    made = {name: driver.calls(name) - before[name] for name in NAMES}
    return {name: number for name, number in made.items() if number}


def same(results: Sequence[torch.Tensor], model: Callable[..., Any], args: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        wanted = model(*args)
    for result, one in zip(results, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert torch.equal(result, one)


def test_a_call_with_the_same_addresses_is_one_launch(driver: EmulatedDriver, tmp_path: Path) -> None:
    model = Several().eval()
    with load(model, ARGS, tmp_path) as loaded:
        args = [arg.clone() for arg in ARGS]
        bound = bind(loaded, *args)
        results = results_of(bound)
        call(bound, args, results)
        for _ in range(3):
            for arg in args:
                arg.normal_()
            assert count(driver, lambda: call(bound, args, results)) == {"cuGraphLaunch": 1}
            same(results, model, args)


def test_results_that_take_turns_have_a_graph_each(driver: EmulatedDriver, tmp_path: Path) -> None:
    model = Several().eval()
    with load(model, ARGS, tmp_path) as loaded:
        bound = bind(loaded, *ARGS)
        turns = [results_of(bound) for _ in range(3)]

        def call_all() -> None:
            for results in turns:
                call(bound, ARGS, results)

        first = count(driver, call_all)
        assert first["cuGraphCreate"] == 1 and first["cuGraphExecKernelNodeSetParams"] == 8
        assert count(driver, call_all)["cuGraphCreate"] == 2
        for results in turns:
            for result in results:
                result.zero_()
        assert count(driver, call_all) == {"cuGraphLaunch": 3}
        for results in turns:
            same(results, model, ARGS)


def test_addresses_that_do_not_come_again_make_no_graphs(driver: EmulatedDriver, tmp_path: Path) -> None:
    model = Several().eval()
    with load(model, ARGS, tmp_path) as loaded:
        bound = bind(loaded, *ARGS)
        kept = [results_of(bound) for _ in range(50)]

        def call_all() -> None:
            for results in kept:
                call(bound, ARGS, results)

        assert count(driver, call_all)["cuGraphCreate"] == 1
        assert count(driver, call_all).get("cuGraphCreate", 0) <= 3  # as many as there are of one kind
        for results in kept:
            same(results, model, ARGS)


def test_a_single_launch_is_kept_with_its_maps(driver: EmulatedDriver, tmp_path: Path) -> None:
    """For the addresses of a few calls; what was used longest ago makes room."""
    model = nn.Linear(128, 64).to(torch.bfloat16).eval()
    example = torch.randn(70, 128).to(torch.bfloat16)
    with load(model, (example,), tmp_path) as loaded:
        bound = bind(loaded, example)
        given = host_view(DeviceArray((70, 128), "bfloat16"))  # maps are of the device's memory
        turns = [host_view(DeviceArray((70, 64), "bfloat16")) for _ in range(9)]

        def call_all(number: int) -> None:
            for result in turns[:number]:
                call(bound, (given,), (result,))

        def check(number: int) -> None:
            for result in turns[:number]:
                torch.testing.assert_close(result.float(), model(given).float(), rtol=2e-2, atol=2e-2)
                result.zero_()

        given.normal_()
        made = count(driver, lambda: call_all(8))
        assert set(made) == {"cuLaunchKernel", "cuTensorMapEncodeTiled"} and made["cuLaunchKernel"] == 8
        check(8)
        given.normal_()
        assert count(driver, lambda: call_all(8)) == {"cuLaunchKernel": 8}
        check(8)
        for encoded in (1, 9, 9):  # one more than are kept: each takes the place of the one that is needed next
            assert count(driver, lambda: call_all(9)) == {"cuLaunchKernel": 9, "cuTensorMapEncodeTiled": encoded}
            check(9)


def test_a_single_launch_of_other_sizes_at_the_same_addresses(driver: EmulatedDriver, tmp_path: Path) -> None:
    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    rows = torch.export.Dim("rows", min=2, max=500)
    with load(scale, (torch.ones(4, 3),), tmp_path, dynamic_shapes=({0: rows},)) as loaded:
        given, result = torch.randn(500, 3), torch.empty(500, 3)
        for number in (4, 4, 7, 4, 500, 7, 7, 300, 500, 2, 3, 5, 6, 8, 9, 10, 4, 7):
            result.zero_()
            x, y = given[:number], result[:number]
            call(bind(loaded, x), (x,), (y,))
            same((y,), scale, (x,))
            assert not result[number:].any()


def test_sizes_that_differ_at_the_same_addresses(driver: EmulatedDriver, tmp_path: Path) -> None:
    """Also where memory for temporaries moves because a larger call came in between."""

    def two_steps(x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(torch.cumsum(x, 0).flip(0), 0)

    rows = torch.export.Dim("rows", min=2, max=500)
    with load(two_steps, (torch.ones(4, 3),), tmp_path, dynamic_shapes=({0: rows},)) as loaded:
        given, result = torch.randint(0, 9, (500, 3)).float(), torch.empty(500, 3)
        for number in (4, 4, 4, 7, 4, 7, 500, 4, 4, 7, 7, 500, 500, 4, 4):
            x, y = given[:number], result[:number]
            result.zero_()
            call(bind(loaded, x), (x,), (y,))
            same((y,), two_steps, (x,))


def test_state_changes_with_every_call_on_any_stream(driver: EmulatedDriver, tmp_path: Path) -> None:
    x = torch.ones(3, 5)
    with load(Counter().eval(), (x,), tmp_path) as loaded:
        bound = bind(loaded, x)
        results = results_of(bound)
        for turn, stream in enumerate((0, 0, 0, 8, 8, 0, 16, 0)):
            call(bound, (x,), results, stream)
            assert torch.equal(results[0], x * (turn + 1))


def test_random_numbers_are_new_in_every_call(driver: EmulatedDriver, tmp_path: Path) -> None:
    def draw(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand_like(x), torch.rand_like(x.T.contiguous())

    x = torch.ones(3, 5)
    with load(draw, (x,), tmp_path) as loaded:
        bound = bind(loaded, x)
        results = results_of(bound)
        seen = []
        for _ in range(4):
            call(bound, (x,), results)
            seen.append(torch.cat([result.flatten() for result in results]))
        assert len({tuple(one.tolist()) for one in seen}) == 4


def test_another_stream_waits_for_what_the_default_one_has(driver: EmulatedDriver, tmp_path: Path) -> None:
    with load(Counter().eval(), ARGS[:1], tmp_path) as loaded:
        bound = bind(loaded, ARGS[0])
        results = results_of(bound)
        call(bound, ARGS[:1], results)
        assert "cuEventRecord" not in count(driver, lambda: call(bound, ARGS[:1], results))
        found = count(driver, lambda: call(bound, ARGS[:1], results, 8))
        # Behind the default stream: of the call where it is used again, and of the state. Behind this one: both again.
        assert found["cuStreamWaitEvent"] >= 1 and found["cuEventRecord"] >= 3
        found = count(driver, lambda: call(bound, ARGS[:1], results, 8))
        assert "cuStreamWaitEvent" not in found and found["cuEventRecord"] == 2
        assert count(driver, lambda: call(bound, ARGS[:1], results))["cuStreamWaitEvent"] >= 1


def test_a_context_that_is_current_stays_so(driver: EmulatedDriver, tmp_path: Path) -> None:
    library = ctypes.CDLL(str(driver.path))
    with load(Several().eval(), ARGS, tmp_path) as loaded:
        bound = bind(loaded, *ARGS)
        results = results_of(bound)
        call(bound, ARGS, results)
        pushed = driver.calls("cuCtxPushCurrent_v2")
        call(bound, ARGS, results)
        assert driver.calls("cuCtxPushCurrent_v2") == pushed + 1 and driver.depth == 0
        library.cuCtxPushCurrent_v2(ctypes.c_void_p(1))
        try:
            call(bound, ARGS, results)
            assert driver.calls("cuCtxPushCurrent_v2") == pushed + 2 and driver.depth == 1
        finally:
            library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


def test_threads_share_a_bound_call(driver: EmulatedDriver, tmp_path: Path) -> None:
    model = Several().eval()
    with load(model, ARGS, tmp_path) as loaded:
        bound = bind(loaded, *ARGS)
        wrong: list[BaseException] = []

        def work(seed: int) -> None:
            draws = torch.Generator().manual_seed(seed)
            try:
                results = results_of(bound)
                for turn in range(12):
                    args = [torch.randn(arg.shape, generator=draws) for arg in ARGS]
                    results = results if turn % 3 else results_of(bound)
                    call(bound, args, results, 8 * (seed % 2))
                    same(results, model, args)
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong, wrong[0]


def test_faults_and_closed_models_are_reported(driver: EmulatedDriver, tmp_path: Path) -> None:
    args = torch.randn(4, 3), torch.tensor([0, 2])
    with load(Gather(), args, tmp_path) as loaded:
        bound = bind(loaded, *args)
        results = results_of(bound)
        for _ in range(2):
            args[1].copy_(torch.tensor([0, 4]))
            call(bound, args, results)
            args[1].copy_(torch.tensor([0, 2]))
            with pytest.raises(IndexError, match=r"models\.py:\d+"):  # of the call before, which nobody waited for
                call(bound, args, results)
            call(bound, args, results)
            torch.testing.assert_close(results[0], Gather()(*args), equal_nan=True)
    with pytest.raises(ClosedModel):
        call(bound, args, results)


def test_a_failing_driver_is_reported_and_dropped(
    driver: EmulatedDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Several().eval()
    with load(model, ARGS, tmp_path) as loaded:
        bound = bind(loaded, *ARGS)
        results = results_of(bound)
        call(bound, ARGS, results)
        with monkeypatch.context() as broken:
            broken.setenv("INGOT_EMULATED_FAULT", f"cuGraphLaunch:{driver.calls('cuGraphLaunch')}")
            with pytest.raises(ingot_runtime.DeviceUnavailable, match="in cuGraphLaunch"):
                call(bound, ARGS, results)
        call(bound, ARGS, results)
        same(results, model, ARGS)
