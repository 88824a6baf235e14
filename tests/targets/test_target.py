"""Targets: by name or as objects, what they keep whole, and what a wrong name says."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

import ingot
from ingot.compiler import OPTIONAL_PASSES
from ingot.errors import CompileError, UnknownTarget
from ingot.lowering.lower import RULES
from ingot.targets.base import Target
from ingot.targets.cpu.target import CPU, CpuTarget
from ingot.targets.registry import TARGETS, find_target

aten = torch.ops.aten


def test_a_target_by_name_and_as_an_object() -> None:
    assert find_target("cpu") is CPU
    assert find_target(CPU) is CPU
    model, x = nn.Linear(3, 2).eval(), torch.randn(4, 3)
    for target in ("cpu", CPU, CpuTarget()):
        compiled = ingot.compile(model, (x,), target=target)
        torch.testing.assert_close(compiled(x), model(x))
        compiled.close()


def test_a_model_for_the_cpu_imports_nothing_of_cuda() -> None:
    code = (
        "import sys, torch, ingot; x = torch.ones(2); ingot.compile(torch.nn.ReLU(), (x,))(x);"
        "print([name for name in sys.modules if name.startswith('ingot.targets.cuda')])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
    assert [find_target(name).name for name in TARGETS] == list(TARGETS)


def test_an_unknown_target_lists_the_known_ones() -> None:
    with pytest.raises(UnknownTarget, match="There is no target 'tpu'") as caught:
        ingot.compile(nn.ReLU(), (torch.randn(2),), target="tpu")
    assert all(repr(name) in str(caught.value) for name in TARGETS)
    assert isinstance(caught.value, CompileError) and isinstance(caught.value, ValueError)
    with pytest.raises(UnknownTarget):
        ingot.compile(nn.ReLU(), (torch.randn(2),), target="", training=True)


def test_what_is_kept_whole_has_a_rule() -> None:
    whole = CPU.preserved_ops()
    assert set(whole) <= set(RULES)
    assert {aten.linear.default, aten.scaled_dot_product_attention.default, aten.lstm.input} <= set(whole)
    assert aten.relu.default not in whole and len(set(whole)) == len(whole)


def test_optional_passes_are_kernels_and_the_schedules_passes() -> None:
    assert isinstance(CPU, Target)
    assert len(set(CPU.optional_passes)) == len(CPU.optional_passes)
    assert set(CPU.optional_passes) <= set(OPTIONAL_PASSES)
    assert {"winograd", "epilogue_fusion", "loop_order", "siblings"} <= set(CPU.optional_passes)
