"""Images of several modules: how kernels are shared out, how parts are packed, and what damage is reported."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import ingot
import ingot_runtime
from ingot.errors import NoCompiler
from ingot.targets.cuda.build import nvrtc
from ingot.targets.cuda.build.image_parts import MAGIC, pack_parts, unpack_parts
from ingot.targets.cuda.codegen import device_parts
from ingot.targets.cuda.codegen.device_parts import LEAST, MOST, split_kernels
from ingot_runtime import DeviceUnavailable
from tests.support.cuda_emulation.target import EMULATED, EMULATED_PARTS, EmulatedDriver
from tests.targets.cuda.host.models import Several

ARGS = (torch.randn(4, 5), torch.randn(3, 7))
SEVERAL = Several().eval()


@pytest.fixture
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel is a part."""
    monkeypatch.setattr(device_parts, "LEAST", 1)


def test_kernels_are_shared_out_evenly_and_once() -> None:
    draw = random.Random(0)
    for count in (1, 2, 7, 31, 200):
        lengths = [draw.randrange(100, 6000) for _ in range(count)]
        parts = split_kernels(lengths)
        assert sorted(kernel for part in parts for kernel in part) == list(range(count))
        assert len(parts) == max(1, min(count, MOST, sum(lengths) // LEAST)) and all(parts)
        filled = [sum(lengths[kernel] for kernel in part) for part in parts]
        assert max(filled) <= min(filled) + max(lengths)
        assert parts == split_kernels(lengths) == sorted(parts)


def test_small_texts_and_none_are_one_part() -> None:
    assert split_kernels([]) == [[]]
    assert split_kernels([300, 400, 500]) == [[0, 1, 2]]


def test_parts_are_packed_and_found_again() -> None:
    assert pack_parts([b"alone"]) == b"alone" and unpack_parts(b"alone") == [b"alone"]
    parts = [b"x" * size for size in (1, 64, 65, 1000)]
    image = pack_parts(parts)
    assert image.startswith(MAGIC) and unpack_parts(image) == parts
    assert len(image) % 64 == 0


@pytest.mark.usefixtures("_small_parts")
@pytest.mark.parametrize("cc", ["90", "80"])
def test_each_kernel_is_found_in_its_part(
    driver: EmulatedDriver, tmp_path: Path, cc: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGOT_EMULATED_CC", cc)
    compiled = ingot.compile(SEVERAL, ARGS, target=EMULATED_PARTS)
    assert len(unpack_parts(compiled.libraries["sm_90a"])) == compiled.kernels > 1
    before = driver.calls("cuModuleLoadData")
    with torch.no_grad():
        expected = SEVERAL(*ARGS)
    for result, wanted in zip(compiled(*ARGS), expected, strict=True):
        assert torch.equal(result, wanted)
    assert driver.calls("cuModuleLoadData") == before + compiled.kernels
    compiled.save(tmp_path / "m.ingot")
    compiled.close()
    with ingot_runtime.load(tmp_path / "m.ingot") as loaded:
        for result, wanted in zip(loaded(*(arg.numpy() for arg in ARGS)), expected, strict=True):
            assert torch.equal(torch.from_numpy(result), wanted)


def test_one_kernel_is_one_module(driver: EmulatedDriver) -> None:
    compiled = ingot.compile(lambda x: x + 1, (ARGS[0],), target=EMULATED_PARTS)
    assert compiled.libraries["sm_90a"].startswith(b"\x7fELF")
    assert torch.equal(compiled(ARGS[0]), ARGS[0] + 1)
    compiled.close()


def test_a_part_that_the_driver_refuses_leaves_nothing(driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_parts, "LEAST", 1)
    compiled = ingot.compile(SEVERAL, ARGS, target=EMULATED)
    monkeypatch.setenv("INGOT_EMULATED_FAULT", f"cuModuleLoadData:{driver.calls('cuModuleLoadData') + 2}")
    with pytest.raises(DeviceUnavailable, match="cannot load the model's code for sm_90a"):
        compiled(*ARGS)


def _set(at: int, *values: int) -> Callable[[bytes], bytes]:
    packed = struct.pack(f"<{len(values)}Q", *values)
    return lambda image: image[:at] + packed + image[at + len(packed) :]


def _second_part(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    def damage(image: bytes) -> bytes:
        parts = unpack_parts(image)
        return pack_parts([parts[0], change(parts[1]), *parts[2:]])

    return damage


DAMAGES = {
    "empty": (lambda image: b"", "no table"),
    "another beginning": (lambda image: b"X" + image[1:], "no table"),
    "one module": (lambda image: unpack_parts(image)[0], "no table"),
    "fewer parts": (lambda image: pack_parts(unpack_parts(image)[:-1]), "another number of parts"),
    "more parts": (_set(8, 2**60), "another number of parts"),
    "cut table": (lambda image: image[:40], "cut off"),
    "cut parts": (lambda image: image[: len(image) // 2], "beyond its end"),
    "begins in the table": (_set(16, 0), "beyond its end"),
    "begins beyond the end": (_set(16, 2**63), "beyond its end"),
    "ends beyond the end": (_set(24, 2**64 - 1), "beyond its end"),
    "overlap": (lambda image: image[:32] + image[16:32] + image[48:], "beyond its end"),
    "not aligned": (lambda image: _set(16, struct.unpack_from("<Q", image, 16)[0] + 1)(image), "does not begin"),
    "empty part": (_second_part(lambda part: b""), "a part is empty"),
    "cut header": (_second_part(lambda part: part[:40]), "within its header"),
    "cut part": (_second_part(lambda part: part[:-10]), "before its tables"),
    "text without end": (_second_part(lambda part: b".version 8.0"), "has no end"),
}


@pytest.mark.usefixtures("_small_parts")
@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_reported(driver: EmulatedDriver, name: str) -> None:
    damage, why = DAMAGES[name]
    compiled = ingot.compile(SEVERAL, ARGS, target=EMULATED)
    compiled.model._images["sm_90a"] = damage(compiled.libraries["sm_90a"])  # type: ignore[attr-defined]
    before = driver.calls("cuModuleLoadData")
    with pytest.raises(DeviceUnavailable, match=f"code for sm_90a is damaged(.|\n)*{why}"):
        compiled(*ARGS)
    assert driver.calls("cuModuleLoadData") == before


@pytest.mark.usefixtures("_small_parts")
def test_nvrtc_makes_the_same_bytes_with_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        nvrtc.version()
    except NoCompiler as missing:
        pytest.skip(str(missing))
    made = []
    for count in (1, 3):
        monkeypatch.setattr("ingot.targets.cuda.target.cores", lambda count=count: count)
        compiled = ingot.compile(SEVERAL, ARGS, target="cuda", isa=["sm_90a", "ptx"], cache=False)
        made.append(compiled.libraries)
        texts = unpack_parts(compiled.libraries["compute_80"])
        assert len(texts) == compiled.kernels > 1
        assert all(text.endswith(b"\0") and text.count(b".entry") == 1 for text in texts)
        assert all(part.startswith(b"\x7fELF") for part in unpack_parts(compiled.libraries["sm_90a"]))
    assert made[0] == made[1]


def test_another_split_is_another_entry_of_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The host's library knows in which part a kernel is: an image that is split in another way does not serve it."""
    try:
        nvrtc.version()
    except NoCompiler as missing:
        pytest.skip(str(missing))
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path))
    counts = []
    for least in (10**6, 1, 10**6):
        monkeypatch.setattr(device_parts, "LEAST", least)
        compiled = ingot.compile(SEVERAL, ARGS, target="cuda", isa="sm_80")
        counts.append(len(unpack_parts(compiled.libraries["sm_80"])))
    assert counts == [1, compiled.kernels, 1]
