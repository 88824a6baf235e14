"""The safetensors member: ours read by the library, the library's read by us, and nothing unsound read by either."""

import contextlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ingot_runtime import DTYPES, DamagedFile, TensorsMember, as_numpy, open_container, parse_header, write_container

NUMPY_NAMES = {dtype: name for name, dtype in DTYPES.items() if not name.startswith(("BF", "F8"))}


def written(tensors: Mapping[str, Any]) -> memoryview:
    member = TensorsMember(tensors)
    data = b"".join(member.chunks())
    assert len(data) == member.size
    return memoryview(data)


def of_arrays(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    return {name: (NUMPY_NAMES[array.dtype], array.shape, array) for name, array in arrays.items()}


def raw(header: object, data: bytes = b"") -> memoryview:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return memoryview(len(text).to_bytes(8, "little") + text + data)


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8), **more: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    result = {}
    for name in draw(st.sets(st.text(st.characters(codec="utf-8")).filter(lambda name: name != "__metadata__"))):
        dtype = draw(st.sampled_from(sorted(DTYPES)))
        shape = tuple(draw(st.lists(st.integers(0, 3), max_size=4)))
        size = math.prod(shape) * DTYPES[dtype].itemsize
        result[name] = (dtype, shape, draw(st.binary(min_size=size, max_size=size)))
    return result


class TestRoundTrip:
    @settings(deadline=None)
    @given(tensors())
    def test_any_tensors(self, given_tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> None:
        view = written(given_tensors)
        entries = parse_header(view)
        assert entries.keys() == given_tensors.keys()
        for name, (dtype, shape, data) in given_tensors.items():
            found = entries[name]
            array = as_numpy(view, found)
            assert (found.name, found.dtype, found.shape) == (name, dtype, shape)
            assert view[found.begin : found.end] == data == array.tobytes()
            assert (array.dtype, array.shape) == (DTYPES[dtype], shape)
            assert found.begin % DTYPES[dtype].itemsize == 0

    def test_through_a_container_without_a_copy(self, tmp_path: Path) -> None:
        arrays = {f"w{n}": np.arange(n, dtype=dtype) for n, dtype in enumerate(NUMPY_NAMES)}
        path = tmp_path / "m.ingot"
        write_container(path, {"weights.safetensors": TensorsMember(of_arrays(arrays))}, {})
        with open_container(path) as container:
            view = container.read("weights.safetensors")
            start = np.frombuffer(view, np.uint8).ctypes.data
            for name, found in parse_header(view).items():
                array = as_numpy(view, found)
                np.testing.assert_array_equal(array, arrays[name])
                assert array.flags.aligned and (array.size == 0 or array.ctypes.data == start + found.begin)

    def test_the_first_tensor_is_on_a_multiple_of_64(self) -> None:
        for length in range(1, 130):
            view = written({"n" * length: ("U8", (1,), b"x")})
            assert parse_header(view)["n" * length].begin % 64 == 0

    def test_same_bytes_whatever_the_order(self) -> None:
        arrays = {"b": np.ones(3, np.float32), "a": np.ones((), np.float64), "c": np.zeros(5, np.int8)}
        assert written(of_arrays(arrays)) == written(of_arrays(dict(reversed(arrays.items()))))
        assert list(parse_header(written(of_arrays(arrays)))) == ["a", "b", "c"]

    def test_data_from_functions_is_made_one_at_a_time(self) -> None:
        made: list[str] = []

        def maker(name: str) -> Any:
            return lambda: made.append(name) or np.full(2, len(name), np.int32)

        chunks = TensorsMember({name: ("I32", [2], maker(name)) for name in ["b", "aa"]}).chunks()
        next(chunks)
        assert made == []
        assert bytes(next(chunks)) == np.full(2, 2, np.int32).tobytes()
        assert made == ["aa"]

    def test_complex_scalar_empty_and_read_only_arrays(self) -> None:
        arrays = {
            "complex": np.array([1 + 2j], np.complex64),
            "scalar": np.array(3.5),
            "empty": np.zeros((0, 3), np.float16),
            "read-only": np.ones(2, np.bool_),
        }
        arrays["read-only"].flags.writeable = False
        view = written(of_arrays(arrays))
        for name, found in parse_header(view).items():
            np.testing.assert_array_equal(as_numpy(view, found), arrays[name])


class TestLibrary:
    @settings(deadline=None)
    @given(tensors())
    def test_the_library_reads_ours(self, given_tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> None:
        found = dict(safetensors.deserialize(bytes(written(given_tensors))))
        assert {n: (t["dtype"], tuple(t["shape"]), bytes(t["data"])) for n, t in found.items()} == given_tensors

    def test_the_library_gives_the_same_arrays(self) -> None:
        arrays = {f"w{n}": np.arange(n * 6).reshape(n, 3, 2).astype(dtype) for n, dtype in enumerate(NUMPY_NAMES)}
        found = safetensors.numpy.load(bytes(written(of_arrays(arrays))))
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array, strict=True)

    def test_we_read_the_librarys(self) -> None:
        arrays = {f"w{n}": np.arange(n * 6).reshape(n, 3, 2).astype(dtype) for n, dtype in enumerate(NUMPY_NAMES)}
        view = memoryview(safetensors.numpy.save(arrays, metadata={"format": "np"}))
        entries = parse_header(view)
        assert entries.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(as_numpy(view, entries[name]), array, strict=True)

    def test_bfloat16_and_float8_bits(self) -> None:
        torch = pytest.importorskip("torch")
        safetensors_torch = pytest.importorskip("safetensors.torch")
        values = torch.tensor([1.0, -2.5, 0.0])
        made = {
            "BF16": values.to(torch.bfloat16),
            "F8_E4M3": values.to(torch.float8_e4m3fn),
            "F8_E5M2": values.to(torch.float8_e5m2),
        }
        bits = {name: tensor.view(torch.uint8).numpy() for name, tensor in made.items()}
        view = written({name: (name, (3,), bits[name]) for name in made})
        for name, found in safetensors_torch.load(bytes(view)).items():
            assert found.dtype == made[name].dtype and torch.equal(found.float(), made[name].float())
            assert as_numpy(view, parse_header(view)[name]).tobytes() == bits[name].tobytes()


class TestUnsoundHeaders:
    @pytest.mark.parametrize(
        ("header", "why"),
        [
            (b"", "JSON"), (b"{", "JSON"), (b"[]", "object"), (b"null", "object"), (b"\xff\xff", "utf-8"),
            (b"NaN", "NaN"), pytest.param(b"[" * 100_000, "nested", id="nested"),
            (b'{"a":1,"a":1}', "twice"), (b'{"a":{"dtype":"F32","dtype":"F32"}}', "twice"),
            ({"__metadata__": {"a": 1}}, "__metadata__"), ({"__metadata__": []}, "__metadata__"),
            ({"a": []}, "'a'"), ({"a": {}}, "'a'"), ({"a": None}, "'a'"), ({"a": entry(more=1)}, "'a'"),
            ({"a": entry(dtype="F33")}, "F33"), ({"a": entry(dtype=1)}, "'a'"), ({"a": entry(dtype="f32")}, "f32"),
            ({"a": entry(shape="2")}, "'a'"), ({"a": entry(shape=[2.0])}, "integers"),
            ({"a": entry(shape=[True, 2])}, "integers"), ({"a": entry(shape=[-2])}, "negative"),
            ({"a": entry(shape=[-1, -2])}, "negative"), ({"a": entry(shape=[1] * 33)}, "dimensions"),
            ({"a": entry(shape=[0, 2**62, 2], offsets=(0, 0))}, r"2\*\*63"),
            ({"a": entry(shape=[2**61])}, r"2\*\*63"), ({"a": entry(shape=[3])}, "need 12"),
            ({"a": entry(shape=[])}, "need 4"), ({"a": entry(offsets=(0, 8, 8))}, "'a'"),
            ({"a": entry(offsets=(0,))}, "'a'"), ({"a": entry(offsets=8)}, "'a'"),
            ({"a": entry(offsets=(0.0, 8))}, "integers"), ({"a": entry(offsets=(-8, 0))}, "lies at"),
            ({"a": entry(offsets=(8, 0))}, "lies at"), ({"a": entry(offsets=(8, 16))}, "hole"),
            ({"a": entry(offsets=(2**70, 2**70 + 8))}, "hole"), ({}, "end at"),
            ({"a": entry("U8", [4], [0, 4])}, "end at"), ({"a": entry("U8", [16], [0, 16])}, "end at"),
            ({"a": entry(), "b": entry()}, "overlap"), ({"a": entry(), "b": entry("U8", [4], [4, 8])}, "overlap"),
            ({"a": entry("U8", [2], [0, 2]), "b": entry("U8", [5], [3, 8])}, "hole"),
        ],
    )  # fmt: skip
    def test_refused(self, header: object, why: str) -> None:
        with pytest.raises(DamagedFile, match=why) as caught:
            parse_header(raw(header, bytes(8)), path="m.ingot", member="w")
        assert (caught.value.path, caught.value.member) == ("m.ingot", "w")

    def test_the_sound_one_next_to_them(self) -> None:
        assert parse_header(raw({"__metadata__": {"a": "1"}, "a": entry()}, bytes(8)))["a"].shape == (2,)

    @pytest.mark.parametrize("length", [2**63, 2**64 - 1, 1000, 3])
    def test_lengths_that_lie(self, length: int) -> None:
        with pytest.raises(DamagedFile):
            parse_header(memoryview(length.to_bytes(8, "little") + b"{}"))

    def test_every_truncation_is_refused(self) -> None:
        view = written(of_arrays({"a": np.arange(5), "b": np.ones(3, np.float32)}))
        for length in range(len(view)):
            with pytest.raises(DamagedFile):
                parse_header(view[:length])
        with pytest.raises(DamagedFile):
            parse_header(memoryview(bytes(view) + b"\0"))

    @settings(deadline=None)
    @given(st.binary(max_size=60), st.binary(max_size=20))
    def test_noise_is_refused_or_read_but_never_crashes(self, header: bytes, data: bytes) -> None:
        with contextlib.suppress(DamagedFile):
            parse_header(raw(header, data))

    def test_empty_arrays_of_the_largest_allowed_shape(self) -> None:
        view = raw({"a": entry(shape=[0, 2**60], offsets=(0, 0))})
        assert as_numpy(view, parse_header(view)["a"]).shape == (0, 2**60)


class TestRefusedTensors:
    @pytest.mark.parametrize(
        ("name", "tensor", "why"),
        [
            ("__metadata__", ("U8", [1], b"x"), "keeps that name"),
            ("a", ("float32", [1], bytes(4)), "known are"),
            ("a", ("U8", [-1], b""), "negative"),
            ("a", ("U8", [1] * 33, b"x"), "dimensions"),
        ],
    )
    def test_at_once(self, name: str, tensor: Any, why: str) -> None:
        with pytest.raises(ValueError, match=why):
            TensorsMember({name: tensor})

    @pytest.mark.parametrize(
        ("data", "why"),
        [
            (bytes(7), "7 bytes"),
            (bytes(9), "9 bytes"),
            (b"", "0 bytes"),
            (np.zeros((2, 2), ">f2"), "big-endian"),
            (np.arange(4, dtype=np.float16).reshape(2, 2).T, "row-major"),
            (np.zeros((2, 4), np.float16)[:, ::2], "row-major"),
            (lambda: bytes(7), "7 bytes"),
        ],
    )
    def test_when_written(self, data: Any, why: str) -> None:
        member = TensorsMember({"a": ("F16", (2, 2), data)})
        with pytest.raises(ValueError, match=why):
            list(member.chunks())
