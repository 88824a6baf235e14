"""Libraries for Macs, built here and looked at: nothing of them runs without a Mac."""

from __future__ import annotations

import importlib.util
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import ingot
import ingot_runtime
from ingot.codegen.build.isa import ISAS, find_isa
from ingot.codegen.build.toolchain import Toolchain, find_for
from ingot.config import Settings
from ingot.targets.cpu.codegen.headers import resource
from ingot_runtime.native import macho
from ingot_runtime.native.native_library import _FUNCTIONS
from tests.support.int8_layers import Layer
from tests.support.pipeline_fixtures import QUICK

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="needs the package ziglang")
MACS = [name for name, isa in ISAS.items() if isa.system == "macos"]


class _Mixed(nn.Module):
    """Convolutions, attention, integers, random numbers, a sort and a sum along a dim."""

    def __init__(self) -> None:
        super().__init__()
        self.convolve = nn.Conv2d(3, 16, 3, padding=1)
        self.depthwise = nn.Conv2d(16, 16, 3, groups=16)
        self.bytes = Layer(36, 16, zero=3, out=None)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, image: torch.Tensor, bytes_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.depthwise(self.convolve(image)).flatten(2).transpose(1, 2)
        y, _ = self.attend(x, x, x, need_weights=False)
        top, _ = torch.topk(y, 3, 1)
        return torch.cumsum(torch.sort(y, 1)[0], 1), top.erf(), self.bytes(bytes_), torch.rand(5) + y.mean()


@pytest.fixture(scope="module")
def text() -> str:
    from tests.support.int8_layers import inputs

    model = _Mixed().eval()
    args = (torch.randn(1, 3, 8, 8), *inputs((4, 36)))
    return ingot.compile(model, args, precision="bfloat16", threads=1).source


@pytest.fixture(scope="module")
def zig() -> Toolchain:
    return find_for(find_isa("aarch64-macos"), Settings.from_environment())


@pytest.mark.parametrize("name", MACS)
def test_a_model_is_linked_for_every_mac(name: str, text: str, zig: Toolchain, tmp_path: Path) -> None:
    """What the linker does not find in the system's library is an error."""
    isa, library = find_isa(name), tmp_path / "model.dylib"
    assert zig.compile_library(text, isa, library, extra_flags=(f'-DIG_ISA="{name}"', *QUICK)) == ""
    data = memoryview(library.read_bytes())
    assert macho.find_problem(data, _FUNCTIONS, isa.architecture) is None
    assert name.encode() in bytes(data)
    assert not {"_syscall", "_madvise", "_sched_getaffinity", "_getauxval"} & set(_undefined(bytes(data)))


def test_the_roofline_is_linked(zig: Toolchain, tmp_path: Path) -> None:
    source = resource("vectors.h") + resource("roofline.h")
    zig.compile_library(source, find_isa("aarch64-macos"), tmp_path / "roofline.dylib", extra_flags=QUICK)


def test_the_same_source_gives_the_same_bytes(zig: Toolchain, tmp_path: Path) -> None:
    source = "int answer(void) { return 42; }\n"
    for folder in ("one", "two"):
        zig.compile_library(source, find_isa("aarch64-macos"), tmp_path / folder / "model.dylib")
    assert (tmp_path / "one" / "model.dylib").read_bytes() == (tmp_path / "two" / "model.dylib").read_bytes()


def test_damaged_libraries_are_refused(zig: Toolchain, tmp_path: Path) -> None:
    path = tmp_path / "model.dylib"
    zig.compile_library("int ingot_run(void) { return 42; }\n", find_isa("aarch64-macos"), path)
    data = path.read_bytes()

    def problem(data: bytes, *functions: str, machine: str = "aarch64") -> str | None:
        return macho.find_problem(memoryview(data), functions, machine)

    assert problem(data, "ingot_run") is None
    assert problem(data, "ingot_run", "ingot_open") == "it has no function ingot_open"
    assert "another machine" in str(problem(data, "ingot_run", machine="x86_64"))
    assert problem(data[: len(data) // 2], "ingot_run") in ("it is cut short", "its tables lie outside it")
    assert problem(b"\x7fELF" + data[4:]) == "it is not a 64-bit Mach-O file"
    assert problem(data[:12] + b"\x02" + data[13:]) == "it is not a shared library"
    assert problem(data[:20]) == problem(b"") == "its tables lie outside it"
    for place in range(0, min(len(data), 1600), 4):  # whatever a damaged table says, nothing else is raised
        for word in (b"\0\0\0\0", b"\xff\xff\xff\xff", struct.pack("<I", 1 << 30)):
            problem(data[:place] + word + data[place + 4 :], "ingot_run")


def test_a_file_for_linux_and_macs(tmp_path: Path) -> None:
    model, x = nn.Linear(3, 4).eval(), torch.randn(2, 3)
    path = tmp_path / "model.ingot"
    ingot.compile(model, (x,), isa=["aarch64-dotprod", "aarch64-macos"]).save(path)
    with zipfile.ZipFile(path) as file:
        names = file.namelist()
    assert {"native/aarch64-dotprod.so", "native/aarch64-macos.dylib"} <= set(names)
    assert "aarch64-macos" in ingot_runtime.describe(path)
    torch.testing.assert_close(torch.from_numpy(ingot_runtime.load(path)(x.numpy())), model(x))


def _undefined(data: bytes) -> Iterator[str]:
    """The functions that a library takes from others."""
    count = struct.unpack_from("<I", data, 16)[0]
    for command, at in macho._commands(memoryview(data), count):
        if command == macho._SYMBOL_TABLE:
            _, _, offset, symbols, names_at, size = macho._SYMBOLS.unpack_from(data, at)
            names = data[names_at : names_at + size]
            for name, kind, _, _, _ in macho._SYMBOL.iter_unpack(data[offset : offset + symbols * 16]):
                if kind & macho._KIND == 0:
                    yield names[name : names.find(b"\0", name)].decode()
