"""NVIDIA's tools that tests use where they are installed: NVRTC, and nvdisasm for machine code."""

from __future__ import annotations

import re
import subprocess
import sysconfig
from functools import cache
from pathlib import Path

import pytest

from ingot.errors import NoCompiler
from ingot.targets.cuda.build import nvrtc


def _has_nvrtc() -> bool:
    try:
        nvrtc.library()
    except NoCompiler:
        return False
    return True


needs_nvrtc = pytest.mark.skipif(not _has_nvrtc(), reason="NVRTC is not installed: pip install nvidia-cuda-nvrtc")


@cache
def _find_disassembler() -> Path | None:
    folder = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    return next(iter(sorted(folder.glob("*/bin/nvdisasm"))), None)


def disassemble(cubin: bytes, folder: Path) -> dict[str, str]:
    """The machine code of each kernel, by its name."""
    tool = _find_disassembler()
    if tool is None:
        pytest.skip("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")
    file = folder / "kernels.cubin"
    file.write_bytes(cubin)
    text = subprocess.run([tool, "-c", file], capture_output=True, text=True, check=True).stdout
    parts = re.split(r"\.section\s+\.text\.(k\d+)", text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def count(text: str, *names: str) -> int:
    """How many instructions of these names the machine code has."""
    return sum(len(re.findall(rf"\b{name}\b", text)) for name in names)
