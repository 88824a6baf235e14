"""Every form of attention's kernels as cubins: NVRTC takes them, tensor cores are used, registers suffice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ingot.autograd.trainable_model import TrainableModel
from ingot.compiler import _run_pipeline
from ingot.lowering.loop_ir import Attention, AttentionBackward
from ingot.lowering.loop_module import Module
from ingot.pipelines import TRAINING
from tests.support.cuda_emulation.emulated_steps import EmulatedSteps
from tests.support.cuda_emulation.kernels import check_cubin, write_kernels
from tests.support.cuda_emulation.toolkit import disassemble, needs_nvrtc
from tests.support.kernel_functions import ATTENDING
from tests.targets.cuda.test_attention import Flexible
from tests.targets.cuda.test_attention_gradient import Trained

ARCHITECTURES = ("sm_80", "sm_90a")


pytestmark = needs_nvrtc


def cut(module: Module, kind: type[Any]) -> Module:
    """The module's steps of one type."""
    return replace(module, steps=tuple(step for step in module.steps if isinstance(step, kind)))


def operands(dtype: torch.dtype, heads: int, queries: int, keys: int, depth: int) -> list[torch.Tensor]:
    return [torch.zeros(1, heads, length, depth, dtype=dtype) for length in (queries, keys, keys)]


def attend_plainly(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def attend_causally(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def alibi_model() -> nn.Module:
    return Flexible(ATTENDING["alibi"], ATTENDING["alibi"].tables())


def window_model() -> nn.Module:
    return Flexible(ATTENDING["window"], [])


FORWARD: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "groups": (window_model(), (torch.float16, 4, 8192, 200, 64)),
    "bulk": (attend_plainly, (torch.float16, 16, 2048, 2048, 64)),
    "bulk, score": (alibi_model(), (torch.bfloat16, 4, 8192, 200, 64)),
    "bulk, causal": (attend_causally, (torch.bfloat16, 16, 2048, 2048, 64)),
    "bulk, long": (attend_plainly, (torch.bfloat16, 48, 4096, 4096, 64)),
    "bulk, long, score": (alibi_model(), (torch.bfloat16, 4, 25600, 4096, 64)),
    "bulk, deep": (attend_plainly, (torch.float16, 16, 2048, 2048, 128)),
    "bulk, deep, causal": (attend_causally, (torch.bfloat16, 8, 1024, 1024, 128)),
    "large": (attend_plainly, (torch.float16, 16, 2048, 2048, 48)),
    "deep": (attend_causally, (torch.bfloat16, 16, 2048, 2048, 96)),
    "deepest": (attend_plainly, (torch.bfloat16, 2, 256, 256, 136)),
    "decoding": (attend_plainly, (torch.bfloat16, 8, 1, 1024, 128)),
    "decoding, long": (attend_plainly, (torch.float16, 8, 8, 4096, 128)),
    "decoding, parts": (attend_plainly, (torch.bfloat16, 8, 16, 1024, 128)),
    "odd depth": (attend_plainly, (torch.float16, 2, 20, 20, 33)),
    "score": (alibi_model(), (torch.bfloat16, 4, 8192, 200, 40)),
    "mask": (window_model(), (torch.bfloat16, 4, 8192, 200, 40)),
    "float32": (attend_plainly, (torch.float32, 2, 64, 600, 64)),
    "float64": (attend_plainly, (torch.float64, 2, 5, 20, 8)),
}


@pytest.fixture(scope="module")
def forward_text() -> str:
    """All forms in one text: each form's steps, with buffers and kernels renamed by form."""
    texts = []
    for name, (model, sizes) in FORWARD.items():
        module = cut(EmulatedSteps({Attention}).compile(model, operands(*sizes)).module, Attention)
        text, _ = write_kernels(module)
        texts.append(f"// {name}\n{text}")
    return "\f".join(texts)


@pytest.mark.parametrize("name", FORWARD)
def test_forward(name: str, forward_text: str, tmp_path: Path) -> None:
    text = next(part for part in forward_text.split("\f") if part.startswith(f"// {name}\n"))
    for architecture, cubin in check_cubin(text, ARCHITECTURES).items():
        groups = architecture == "sm_90a" and re.search("using shape = ig_(group|bulk)_shape<", text)
        assert ("using shape = ig_bulk_shape<" in text) == ("bulk" in name)
        check_machine_code(cubin, tmp_path, "HGMMA" if groups else "HMMA" if "ig_attend<shape" in text else None)


def check_machine_code(cubin: bytes, folder: Path, product: str | None) -> None:
    """Tensor cores are used for halves alone, and next to nothing is kept in local memory: the
    tile that leaves registers for three blocks may lack one. What groups of warps multiply in registers
    is computed, never loaded."""
    code = "".join(disassemble(cubin, folder).values())
    assert set(re.findall(r"\b(HG?MMA)\b", code)) == {product} - {None}
    if product == "HGMMA":
        # Fragments of queries that stay in registers for the whole loop are lost in it: none may be loaded.
        assert not re.findall(r"\bLDSM\b", code)
    assert len(re.findall(r"\b(?:LDL|STL)\b", code)) <= 2
    # One wait to a group of products: where ptxas cannot follow registers, it waits for each product.
    assert len(re.findall(r"\bWARPGROUP\.DEPBAR\b", code)) <= 4


def zeros_of(module: Module) -> list[torch.Tensor]:
    return [torch.zeros([int(str(n)) for n in o.shape], dtype=getattr(torch, o.dtype)) for o in module.outputs]


def backward_module(name: str, dtype: torch.dtype, depth: int) -> Module:
    """The backward half of a model, which is not run."""
    found: list[Module] = []
    emulated = EmulatedSteps({AttentionBackward})

    def build(half: nn.Module, inputs: Sequence[torch.Tensor]) -> Any:
        module = emulated.compile(half, inputs).module
        found.append(module)
        return lambda *_: zeros_of(module)

    model = Trained(ATTENDING[name])
    given = [t.requires_grad_() for t in operands(dtype, 4, 64, 64, depth)]
    TrainableModel(model, build, lambda program: _run_pipeline(program, TRAINING, emulated), (given, {}))
    return cut(found[1], AttentionBackward)


@pytest.mark.parametrize(
    ("name", "dtype", "depth"),
    [
        ("alibi", torch.bfloat16, 64),
        ("window", torch.float16, 128),
        ("plain", torch.bfloat16, 136),
        ("relative", torch.float32, 24),
    ],
)
def test_backward(name: str, dtype: torch.dtype, depth: int, tmp_path: Path) -> None:
    text, steps = write_kernels(backward_module(name, dtype, depth))
    assert len(steps) == 2
    check_cubin(text, ARCHITECTURES)
