"""Tensors that lie on the device: taken where they lie, results beside them, queued on the caller's stream."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ingot
import ingot_runtime
from ingot_runtime import BFloat16Array, DeviceArray, InputError, OutputError
from ingot_runtime.native import dlpack
from ingot_runtime.native.device_array import DeviceTensor, stream_number, view_device
from tests.support.cuda_emulation.target import EMULATED, EmulatedDriver
from tests.targets.cuda.host.models import Counter, Gather, Several, Writer


def load(model: Any, args: tuple[Any, ...], folder: Path, **options: Any) -> Any:
    ingot.compile(model, args, target=EMULATED, **options).save(folder / "m.ingot")
    return ingot_runtime.load(folder / "m.ingot")


def random(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.randn(*shape).astype(np.float32)


def test_arrays_of_the_device_in_and_out(driver: EmulatedDriver, tmp_path: Path) -> None:
    model = Several().eval()
    with load(model, (torch.randn(4, 5), torch.randn(3, 7)), tmp_path) as loaded:
        for _ in range(3):
            x, y = random(4, 5), random(3, 7)
            before = {name: driver.calls(name) for name in ("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2")}
            given = DeviceArray.from_numpy(x), DeviceArray.from_numpy(y)
            results = loaded(*given)
            made = {name: driver.calls(name) - count for name, count in before.items()}
            assert made == {"cuMemcpyHtoDAsync_v2": 2, "cuMemcpyDtoHAsync_v2": 0}  # those of from_numpy
            assert [type(result) for result in results] == [DeviceArray] * 4
            with torch.no_grad():
                expected = model(torch.from_numpy(x), torch.from_numpy(y))
            for result, wanted in zip(results, expected, strict=True):
                np.testing.assert_array_equal(np.asarray(result), wanted.numpy())
        assert results[3].dtype == "int64" and results[3].shape == (3, 7) and results[3].ndim == 2
        assert "int64[3, 7]" in repr(results[3])
        del results, given, result


def test_one_input_on_the_host(driver: EmulatedDriver, tmp_path: Path) -> None:
    with load(Several().eval(), (torch.randn(4, 5), torch.randn(3, 7)), tmp_path) as loaded:
        x, y = random(4, 5), random(3, 7)
        results = loaded(DeviceArray.from_numpy(x), y)
        np.testing.assert_array_equal(np.asarray(results[1]), y.T * 2)
        assert type(results[1]) is DeviceArray
        del results


def test_half_numbers(driver: EmulatedDriver, tmp_path: Path) -> None:
    with load(lambda x: x * 2, (torch.randn(4).to(torch.bfloat16),), tmp_path) as loaded:
        result = loaded(DeviceArray.from_numpy(BFloat16Array.of([1.5, -2.0, 0.25, 8.0])))
        assert isinstance(result.numpy(), BFloat16Array)
        np.testing.assert_array_equal(np.asarray(result), [3.0, -4.0, 0.5, 16.0])
        del result


def test_inputs_are_written_to_where_they_lie(driver: EmulatedDriver, tmp_path: Path) -> None:
    with load(Writer(), (torch.randn(4, 3), torch.randn(2, 3)), tmp_path) as loaded:
        x, y = random(4, 3), random(2, 3)
        here, there = DeviceArray.from_numpy(x), DeviceArray.from_numpy(y)
        result = loaded(here, there)
        np.testing.assert_array_equal(np.asarray(here), x * 2)
        np.testing.assert_array_equal(np.asarray(result), (x * 2)[:2] + y)
        shared = DeviceTensor(here.address, "float32", (2, 3), 0, owner=here)
        with pytest.raises(InputError, match="share memory"):
            loaded(here, shared)
        del here, there, result, shared


def test_memory_that_is_not_aligned_is_copied(driver: EmulatedDriver, tmp_path: Path) -> None:
    with load(Writer(), (torch.randn(4, 3), torch.randn(2, 3)), tmp_path) as loaded:
        x, y = random(20), random(2, 3)
        whole = DeviceArray.from_numpy(x)
        part = DeviceTensor(whole.address + 4, "float32", (4, 3), 0, owner=whole)
        before = driver.calls("cuMemcpyDtoDAsync_v2")
        result = loaded(part, DeviceArray.from_numpy(y))
        assert driver.calls("cuMemcpyDtoDAsync_v2") == before + 2  # in and out
        after = np.asarray(whole)
        np.testing.assert_array_equal(after[1:13], x[1:13] * 2)
        np.testing.assert_array_equal(after[[0, *range(13, 20)]], x[[0, *range(13, 20)]])
        np.testing.assert_array_equal(np.asarray(result), x[1:7].reshape(2, 3) * 2 + y)
        del whole, part, result


def test_buffers_for_results(driver: EmulatedDriver, tmp_path: Path) -> None:
    with load(lambda x: x + 1, (torch.randn(4, 3),), tmp_path) as loaded:
        x = random(4, 3)
        here, out = DeviceArray.from_numpy(x), DeviceArray((4, 3), "float32")
        assert loaded(here, out=out) is out
        np.testing.assert_array_equal(np.asarray(out), x + 1)
        host = np.empty((4, 3), np.float32)
        assert loaded(here, out=host) is host
        np.testing.assert_array_equal(host, x + 1)
        assert loaded(x, out=out) is out
        np.testing.assert_array_equal(np.asarray(out), x + 1)
        with pytest.raises(OutputError, match="share memory"):
            loaded(here, out=here)
        with pytest.raises(OutputError, match="float64"):
            loaded(here, out=DeviceArray((4, 3), "float64"))
        with pytest.raises(OutputError, match=r"\(4, 2\)"):
            loaded(here, out=DeviceArray((4, 2), "float32"))
        del here, out


def test_what_cannot_be_taken(driver: EmulatedDriver, tmp_path: Path) -> None:
    with load(lambda x: x + 1, (torch.randn(4, 3),), tmp_path) as loaded:
        array = DeviceArray((4, 3), "float32")
        for tensor, words in [
            (DeviceArray((4, 3), "float64"), "is float64, but the model was compiled for float32"),
            (DeviceArray((12,), "float32"), "has 1 dims"),
            (DeviceTensor(array.address, "float32", (4, 3), 1), "device 1, and the model on 0"),
            (DeviceTensor(array.address, "float32", (4, 3), 0, is_contiguous=False), "is not contiguous"),
        ]:
            with pytest.raises(InputError, match=words):
                loaded(tensor)
        with pytest.raises(InputError, match="dim 0 of x is 5"):
            loaded(DeviceArray((5, 3), "float32"))
        del array, tensor


def test_what_has_no_memory_is_named(driver: EmulatedDriver) -> None:
    compiled = ingot.compile(lambda x: x + 1, (torch.randn(4),), target=EMULATED)
    with pytest.raises(InputError, match="x is a Tensor that cannot be used"):
        compiled(torch.randn(4, device="meta"))
    compiled.close()


def test_a_model_of_the_host_takes_none(driver: EmulatedDriver) -> None:
    compiled = ingot.compile(lambda x: x + 1, (torch.randn(4),))
    with pytest.raises(InputError, match="not in the memory of the CPU"):
        compiled.model.run([DeviceArray((4,), "float32")])
    compiled.close()


# ---------------------------------------------------------------------- DLPack


def test_arrays_travel_through_dlpack(driver: EmulatedDriver) -> None:
    x = random(2, 3)
    array = DeviceArray.from_numpy(x)
    capsule = array.__dlpack__()
    assert array.__dlpack_device__() == (2, 0)
    tensor, is_read_only = dlpack._open(capsule)
    assert (tensor.data, tuple(tensor.shape[:2]), is_read_only) == (array.address, (2, 3), False)
    address = array.address
    del array  # the capsule keeps the memory
    assert driver.bytes > 0
    np.testing.assert_array_equal(np.ctypeslib.as_array((ctypes.c_float * 6).from_address(address)), x.reshape(-1))
    del capsule


class Foreign:
    """A tensor of another library, which records the stream that it is asked for."""

    def __init__(self, array: DeviceArray, strides: tuple[int, ...] | None = None) -> None:
        self.array, self.strides, self.streams = array, strides, list[Any]()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        self.streams.append(stream)
        capsule = self.array.__dlpack__(stream=-1)
        if self.strides is not None:
            self.kept = (ctypes.c_int64 * len(self.strides))(*self.strides)
            dlpack._open(capsule)[0].strides = ctypes.cast(self.kept, ctypes.POINTER(ctypes.c_int64))
        return capsule


def test_tensors_of_other_libraries_are_taken_on_the_callers_stream(driver: EmulatedDriver, tmp_path: Path) -> None:
    with load(lambda x: (x + 1, x.T * 2), (torch.randn(4, 3),), tmp_path) as loaded:
        x = random(4, 3)
        foreign = Foreign(DeviceArray.from_numpy(x))
        for stream, asked in [(None, 1), (0, 1), (77, 77)]:
            results = loaded.run([foreign], stream=stream)
            np.testing.assert_array_equal(np.asarray(results[0]), x + 1)
            assert foreign.streams[-1] == asked
        assert view_device(Foreign(foreign.array, (3, 1)), 0).is_contiguous  # type: ignore[union-attr]
        assert not view_device(Foreign(foreign.array, (1, 4)), 0).is_contiguous  # type: ignore[union-attr]
        with pytest.raises(InputError, match="is not contiguous"):
            loaded(Foreign(foreign.array, (1, 4)))
        del results, foreign


def test_names_of_streams() -> None:
    class OfTorch:
        cuda_stream = 12

    class OfCupy:
        ptr = 13

    assert [stream_number(one) for one in (None, 5, OfTorch(), OfCupy())] == [0, 5, 12, 13]
    with pytest.raises(TypeError, match="not a str"):
        stream_number("one")


# ---------------------------------------------------------------------- calls that nobody waits for


def test_a_fault_is_reported_by_a_later_call(driver: EmulatedDriver, tmp_path: Path) -> None:
    with load(Gather(), (torch.randn(4, 3), torch.tensor([0, 2])), tmp_path) as loaded:
        table = DeviceArray.from_numpy(random(4, 3))
        good, bad = (DeviceArray.from_numpy(np.array(index)) for index in ([0, 1], [0, 9]))
        loaded(table, good)
        syncs = driver.calls("cuStreamSynchronize")
        loaded(table, bad)  # queued: nobody knows yet
        assert driver.calls("cuStreamSynchronize") == syncs
        with pytest.raises(IndexError, match="out of range"):
            loaded(table, good)
        loaded(table, good)
        del table, good, bad


def test_calls_on_several_streams_wait_for_each_other(driver: EmulatedDriver, tmp_path: Path) -> None:
    with load(Counter().eval(), (torch.ones(1, 5),), tmp_path) as loaded:
        x = DeviceArray.from_numpy(np.ones((1, 5), np.float32))
        loaded.run([x], stream=5)
        waits = driver.calls("cuStreamWaitEvent")
        loaded.run([x], stream=5)
        assert driver.calls("cuStreamWaitEvent") == waits
        results = loaded.run([x], stream=6)
        assert driver.calls("cuStreamWaitEvent") > waits
        np.testing.assert_array_equal(np.asarray(results[0]), np.full((1, 5), 3, np.float32))
        del x, results
