"""Kernels of products and convolutions as NVRTC compiles them: for every architecture, with the instructions that make
them fast, and without registers that are spilled to memory."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import nn

from ingot.lowering.loop_module import Module
from ingot.targets.cuda.codegen import convolution as _convolution  # registers its writers
from ingot.targets.cuda.schedule.tiles import SIMT_TILES, TENSOR_TILES, WIDE_TILES, is_warpgroup_tile
from tests.support.cuda_emulation.kernels import check_cubin, write_kernels
from tests.support.cuda_emulation.products import Case, join_cases
from tests.support.cuda_emulation.toolkit import count, disassemble, needs_nvrtc
from tests.targets.cuda.test_gemm import pair, tiled
from tests.targets.cuda.test_gemm_epilogues import lower_model, randn

assert _convolution.KERNELS


pytestmark = needs_nvrtc


def large(tile_number: int, right: bool) -> Case:
    a, b = pair(4096, 4096, 1024, "bfloat16", right=right)
    return Case(a, b, tiled("tensor", TENSOR_TILES[tile_number]))


def test_tensor_kernels_use_tensor_cores_and_spill_nothing(tmp_path: Path) -> None:
    cases = [large(number, right=number % 2 == 0) for number in range(len(TENSOR_TILES))]
    text, _ = write_kernels(join_cases(cases))
    kernels = disassemble(check_cubin(text, ["sm_90a"])["sm_90a"], tmp_path)
    assert len(kernels) == len(cases)
    for name, found in kernels.items():
        assert count(found, "HMMA", "HGMMA") > 0 and count(found, "LDGSTS") > 0, name
        assert count(found, "STL", "LDL") == 0, f"{name} spills registers"


def test_groups_of_warps_use_their_instructions(tmp_path: Path) -> None:
    cases = []
    for tile in TENSOR_TILES:
        if is_warpgroup_tile(tile):
            a, b = pair(4096, 4096, 1024, "bfloat16")
            cases.append(Case(a, b, tiled("warpgroup", tile)))
    text, _ = write_kernels(join_cases(cases))
    cubins = check_cubin(text)
    for name, found in disassemble(cubins["sm_90a"], tmp_path).items():
        assert count(found, "HGMMA") > 0 and count(found, "HMMA", "LDSM") == 0, name
        # Both operands lie in shared memory: what registers keep across turns of a loop, ptxas may lose.
        assert not re.search(r"\bHGMMA\S* R\d+, R\d+, gdesc", found), name
        assert count(found, "STL", "LDL") == 0, f"{name} spills registers"
    for name, found in disassemble(cubins["sm_80"], tmp_path).items():
        assert count(found, "HMMA") > 0, name


def test_other_kernels_spill_nothing(tmp_path: Path) -> None:
    cases = []
    for dtype, tiles in (("float32", SIMT_TILES), ("float64", WIDE_TILES)):
        for tile in tiles:
            a, b = pair(4096, 4096, 1024, dtype)
            cases.append(Case(a, b, tiled("simt", tile)))
    for rows in (1, 4, 8):
        a, b = pair(rows, 4096, 4096, "bfloat16")
        cases.append(Case(a, b, tiled("rows")))
    text, _ = write_kernels(join_cases(cases))
    for name, found in disassemble(check_cubin(text, ["sm_90a"])["sm_90a"], tmp_path).items():
        assert count(found, "STL", "LDL") == 0, f"{name} spills registers"
        assert count(found, "FFMA", "DFMA") > 0, name


def make_forms() -> list[Module]:
    """Every form of kernel at least once."""
    cases = []
    for algorithm, dtype, sums in (
        ("tensor", "bfloat16", None), ("tensor", "float16", None), ("tensor", "int8", "int32"),
        ("simt", "float32", None), ("simt", "float64", None), ("simt", "int64", None), ("rows", "float16", None),
    ):  # fmt: skip
        a, b = pair(7 if algorithm == "rows" else 70, 72, 264, dtype)
        tile = TENSOR_TILES[-1] if algorithm == "tensor" else WIDE_TILES[-1]
        cases.append(Case(a, b, tiled(algorithm, tile), sums))
    for left, right, n in ((True, False, 72), (True, True, 31), (False, False, 31)):
        a, b = pair(65, n, 100, "bfloat16", left, right)
        cases.append(Case(a, b, tiled("tensor", TENSOR_TILES[-1], split_k=2)))
    modules = [join_cases(cases)]
    layers = (nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(3, 64, 7, 2, 3), nn.Conv2d(32, 32, 3, groups=32))
    for number, layer in enumerate(layers):
        dtype = torch.float32 if number == 0 else torch.bfloat16
        made = nn.Sequential(layer, nn.GELU()).to(dtype).eval()
        modules.append(lower_model(made, (randn(1, layer.in_channels, 20, 20, dtype=dtype),))[1])
    return modules


def test_every_form_compiles() -> None:
    for module in make_forms():
        text, _ = write_kernels(module)
        cubins = check_cubin(text)
        assert set(cubins) == {"sm_80", "sm_90a"} and all(cubins.values())
