"""The generated C as such: no compiler warns of it, compilers agree, and the same model gives the same text."""

from __future__ import annotations

import copy
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ingot.codegen.build.toolchain import Toolchain, find
from ingot.config import Settings
from ingot.scheduling.buffer_planning import plan
from ingot.targets.cpu.codegen.module_emitter import emit
from tests.support.kernel_models import CASES, Block, model_of
from tests.support.pipeline_fixtures import assemble, build, lowered

ROOT = Path(__file__).parents[2]
COMPILERS = {"gcc": "gcc", "clang": "clang", "zig": f"{sys.executable} -m ziglang cc"}


def compiler(name: str) -> Toolchain:
    if name == "zig" and importlib.util.find_spec("ziglang") is None:
        pytest.skip("no ziglang")
    if name != "zig" and shutil.which(name) is None:
        pytest.skip(f"no {name}")
    return find(Settings((), Path("unused"), False, COMPILERS[name]))


def call(compiled: Any, name: str) -> Any:
    return compiled(*CASES[name].args())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("other", ["clang", "zig"])
def test_no_warnings_and_equal_results_across_compilers(name: str, other: str) -> None:
    """`assemble` turns warnings into errors, under -Wall -Wextra."""
    case, tools = CASES[name], compiler(other)
    model = model_of(name)
    program, module = lowered(copy.deepcopy(model), case.args(), dynamic_shapes=case.dynamic_shapes)
    results = [call(assemble(program, module, tools=t), name) for t in (find(), tools)]
    with torch.no_grad():
        results.append(copy.deepcopy(model)(*case.args()))
    tolerance = 3e-2 if name == "bfloat16" else 1e-5
    torch.testing.assert_close(results[0], results[1], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(results[0], results[2], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_results_do_not_depend_on_the_number_of_threads(name: str) -> None:
    case = CASES[name]
    program, module = lowered(model_of(name), case.args(), dynamic_shapes=case.dynamic_shapes)
    one, two, five = (call(assemble(program, module, threads=threads), name) for threads in (1, 2, 5))
    torch.testing.assert_close(one, two, rtol=0, atol=0)
    torch.testing.assert_close(one, five, rtol=0, atol=0)


def text_of(name: str) -> str:
    case = CASES[name]
    _, module = lowered(model_of(name), case.args(), dynamic_shapes=case.dynamic_shapes)
    return emit(module, plan(module), title=name).text


SCRIPT = """
import sys, hashlib
from tests.e2e.test_generated_c import CASES, text_of
for name in CASES:
    print(name, hashlib.sha256(text_of(name).encode()).hexdigest())
"""


def test_the_same_model_gives_the_same_text_in_another_process() -> None:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), *filter(None, sys.path)])
    said = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "20260")
    ]
    assert said[0] == said[1]
    assert len(said[0].splitlines()) == len(CASES)


class Deep(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(depth))

    def forward(self, a: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            a = block(a, keep)
        return a


def test_identical_layers_are_written_once() -> None:
    args = CASES["transformer block"].args()
    counts = [build(Deep(depth).eval(), args).kernels for depth in (3, 6)]
    assert counts[0] == counts[1]


def test_kernels_name_the_module_and_the_line() -> None:
    text = build(Deep(2).eval(), CASES["transformer block"].args()).source
    assert "blocks.0.qkv" in text and "blocks.1.qkv" in text
    assert "support/kernel_models.py:" in text
    assert str(ROOT) not in text
