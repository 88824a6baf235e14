"""The memory of a call: inputs that are not copied, inputs that are written to, and results in the caller's buffers."""

import array
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingot_runtime import (
    BFloat16Array,
    InputError,
    Model,
    OutputError,
    StructureError,
    load,
)
from tests.runtime import native_model
from tests.runtime.native_model import MANIFEST, arguments, changed, expected, needs_compiler, refused

pytestmark = needs_compiler


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return native_model.write(tmp_path_factory.mktemp("native") / "m.ingot")


@pytest.fixture
def model(path: Path) -> Iterator[Model]:
    with load(path, threads=2) as opened:
        yield opened


class TestMemory:
    def test_inputs_are_not_copied_where_they_are_contiguous(
        self, model: Model, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[tuple[int, ...]] = []
        original = model._native.run
        monkeypatch.setattr(
            model._native, "run", lambda i, o: (seen.append(tuple(t.data for t in i)), original(i, o))[1]
        )
        (x, total), keyed = arguments()
        model(x, total, **keyed)
        assert seen[0][0] == x.ctypes.data and seen[0][1] == total.ctypes.data
        assert seen[0][2] == keyed["rows"].ctypes.data
        strided = np.repeat(x, 2, axis=1)[:, ::2]
        model(strided, total, **keyed)
        assert seen[1][0] != strided.ctypes.data

    @pytest.mark.parametrize("layout", [
        lambda a: np.asfortranarray(a), lambda a: np.repeat(a, 2, axis=0)[::2], lambda a: a[::-1].copy()[::-1],
        lambda a: np.frombuffer(b"x" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape),
    ])  # fmt: skip
    def test_any_layout(self, model: Model, layout: Any) -> None:
        (x, total), keyed = arguments()
        other = layout(x)
        np.testing.assert_array_equal(other, x)
        np.testing.assert_array_equal(model(other, total, **keyed)["y"], expected(x, [])["y"])

    def test_a_mutated_input_that_is_not_contiguous_is_written_back(self, model: Model) -> None:
        (x, _), keyed = arguments()
        wide = np.zeros(8, np.float32)
        wide[1::2] = 100
        result = model(x, wide[::2], **keyed)
        np.testing.assert_array_equal(wide[::2], x.sum(0))
        assert (wide[1::2] == 100).all()
        np.testing.assert_array_equal(result["extra"].total, x.sum(0))

    def test_a_mutated_input_that_cannot_be_written(self, model: Model) -> None:
        total = np.zeros(4, np.float32)
        total.flags.writeable = False
        refused(model, InputError, "total is read-only", total=total)
        refused(model, InputError, "total is read-only", total=memoryview(bytes(16)).cast("f"))

    def test_a_mutated_input_that_another_shares(self, model: Model) -> None:
        whole = np.zeros((3, 4), np.float32)
        refused(model, InputError, "total and x share memory", x=whole, total=whole[1])
        wide = np.zeros((3, 8), np.float32)
        args, kwargs = changed(x=wide[:, ::2], total=wide[0, 1::2])  # interleaved, and not shared
        model(*args, **kwargs)

    def test_read_only_inputs_are_fine_where_they_are_only_read(self, model: Model) -> None:
        (x, total), keyed = arguments()
        x.flags.writeable = False
        np.testing.assert_array_equal(model(x, total, **keyed)["y"], expected(x, [])["y"])

    def test_buffers(self, model: Model) -> None:
        (x, _), keyed = arguments()
        total = array.array("f", [0] * 4)
        result = model(memoryview(x), total, **keyed)
        np.testing.assert_array_equal(result["y"], expected(x, [])["y"])
        np.testing.assert_array_equal(np.asarray(total), x.sum(0))


class TestOut:
    def test_into_buffers(self, model: Model) -> None:
        args, kwargs = arguments()
        y, low = np.full((3, 4), 9, np.float32), BFloat16Array(np.zeros(3, np.uint16))
        result = model(*args, **kwargs, out={"y": y, "rest": [None, low], "info": None, "extra": None})
        made = expected(args[0], kwargs["rows"])
        assert result["y"] is y and result["rest"][1] is low
        np.testing.assert_array_equal(y, made["y"])
        np.testing.assert_array_equal(low.bits, made["low"])
        np.testing.assert_array_equal(result["rest"][0], made["picked"])

    @pytest.mark.parametrize(
        ("buffer", "words"),
        [
            (np.empty((2, 4), np.float32), ["too small", "(2, 4)", "(3, 4)"]),
            (np.empty((4, 4), np.float32), ["(4, 4)", "(3, 4)", "buffer[:n]"]),
            (np.empty(12, np.float32), ["1 dims"]),
            (np.empty((3, 4)), ["float64", "float32"]),
            (np.empty((3, 8), np.float32)[:, ::2], ["not contiguous", "np.empty((3, 4), np.float32)"]),
            (memoryview(bytes(48)).cast("f", (3, 4)), ["read-only"]),
            ([], ["list"]),
            (3, ["int"]),
        ],
    )
    def test_buffers_that_do_not_fit(self, model: Model, buffer: Any, words: list[str]) -> None:
        args, kwargs = arguments()
        with pytest.raises(OutputError) as caught:
            model(*args, **kwargs, out={"y": buffer, "rest": None, "info": None, "extra": None})
        for word in ["the buffer for y", *words]:
            assert word in str(caught.value)

    def test_other_nesting(self, model: Model) -> None:
        args, kwargs = arguments()
        for out in (np.empty((3, 4), np.float32), {"y": None}, [None]):
            with pytest.raises(StructureError, match="out"):
                model(*args, **kwargs, out=out)

    def test_a_buffer_that_is_also_an_input(self, model: Model) -> None:
        (x, total), keyed = arguments()
        with pytest.raises(OutputError, match="the buffer for y and x share memory"):
            model(x, total, **keyed, out={"y": x, "rest": None, "info": None, "extra": None})
        y = np.empty((4, 4), np.float32)
        with pytest.raises(OutputError, match="share memory"):
            model(x, total, **keyed, out={"y": y[:3], "rest": (y[1:3], None), "info": None, "extra": None})

    def test_a_model_with_an_argument_of_that_name(self, tmp_path: Path) -> None:
        manifest = copy.deepcopy(MANIFEST)
        keys = manifest["call"]["in"]["children"][1]["keys"]
        keys[keys.index("rows")] = "out"
        manifest["call"]["parameters"] = ["x", "total", "out"]
        with load(native_model.write(tmp_path / "m.ingot", manifest)) as model:
            args, kwargs = arguments()
            kwargs["out"] = kwargs.pop("rows")
            y = np.empty((3, 4), np.float32)
            assert model(*args, **kwargs)["rest"][0].shape == (2, 4)
            model.call(args, kwargs, out={"y": y, "rest": None, "info": None, "extra": None})
            np.testing.assert_array_equal(y, expected(args[0], [])["y"])
