"""Attention inside the kernel of a layer's products, and in a loop over layers."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.compiler import run_cpu_pipeline
from ingot.errors import ScheduleError
from ingot.ir.program import Program
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.schedule import attention_tiles, streams
from ingot.targets.cuda.schedule.attention_tiles import TokenTile, find_phase_tile
from ingot.targets.cuda.schedule.statements import StreamedChain
from ingot.targets.cuda.schedule.verifier import verify_schedule
from ingot.targets.cuda.target import CUDA
from ingot.targets.reference.interpreted_model import InterpretedModel
from tests.support.cuda_emulation.emulated_model import EmulatedModel, PackingTarget, build_models
from tests.support.cuda_emulation.kernels import build_text, check_cubin, write_kernels
from tests.support.cuda_emulation.target import EMULATED, open_driver
from tests.support.cuda_emulation.toolkit import count, disassemble, needs_nvrtc
from tests.targets.cuda.streams.decoder_layers import CachedDecoder, DecoderSizes, draw_sizes, list_calls
from tests.targets.cuda.test_schedule import print_pass

Golden = Callable[[str, str], None]
OFF = ("chained_attention",)


@pytest.fixture(autouse=True)
def stream_small_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_LEAST_ELEMENTS", 1)


def make_model(sizes: DecoderSizes, seed: int = 0) -> CachedDecoder:
    torch.manual_seed(seed)
    return CachedDecoder(sizes).bfloat16().eval()


def lower(model: nn.Module, args: Sequence[torch.Tensor]) -> tuple[Program, Module]:
    program = run_cpu_pipeline(ingot.capture(model, tuple(args)), (), CUDA)
    return program, CUDA.lower(program, "float32")


def schedule(model: CachedDecoder, disabled: Sequence[str] = ()) -> tuple[Program, Module]:
    program, module = lower(copy.deepcopy(model), list_calls(model.sizes)[0])
    return program, CUDA.schedule(module, disabled, verify=True)


def check_tokens(model: CachedDecoder, run: Callable[..., Any], factor: float = 1.5) -> None:
    """Calls one after another against float64, as near as eager's own are."""
    exact, eager = copy.deepcopy(model).double(), copy.deepcopy(model)
    for args in list_calls(model.sizes):
        with torch.no_grad():
            expected, theirs = exact(*args), eager(*args)
        error, usual = (float((found.double() - expected).abs().max()) for found in (run(*args), theirs))
        assert error <= factor * usual + 2e-3 * float(expected.abs().max()), (args, error, usual)


def count_steps(module: Module) -> Counter[str]:
    return Counter(type(step).__name__ for step in module.steps)


def test_a_layer_is_one_kernel(golden: Golden) -> None:
    model = make_model(DecoderSizes(layers=1))
    module = schedule(model)[1]
    assert count_steps(module)["StreamedChain"] == 1 and not count_steps(module)["Attention"]
    golden("token_phases", print_pass(lower(model, list_calls(model.sizes)[0])[1], "chained_attention"))
    apart = count_steps(schedule(model, OFF)[1])
    assert apart["StreamedChain"] == apart["Attention"] == 1
    assert CUDA.schedule(module, verify=True).steps == module.steps


@pytest.mark.parametrize("disabled", [(), OFF], ids=["on", "off"])
def test_tokens(disabled: tuple[str, ...]) -> None:
    model = make_model(DecoderSizes())
    program, module = schedule(model, disabled)
    check_tokens(model, EmulatedModel(program, module))
    check_tokens(model, InterpretedModel(PackingTarget(), program, module))


@pytest.mark.parametrize("capability", ["90", "80"])
def test_tokens_through_the_driver(monkeypatch: pytest.MonkeyPatch, capability: str) -> None:
    """With the host's text: on a GPU that has copies that barriers count, and on one that has not."""
    monkeypatch.setenv("INGOT_CUDA_DRIVER", str(open_driver().path))
    monkeypatch.setenv("INGOT_EMULATED_CC", capability)
    model = make_model(DecoderSizes(length=300, layers=4))
    compiled = ingot.compile(copy.deepcopy(model), list_calls(model.sizes)[0], target=EMULATED)
    assert "ig_attend_part<shape" in compiled.source
    check_tokens(model, compiled)
    compiled.close()


def test_random_layers() -> None:
    models = [make_model(draw_sizes(seed), seed) for seed in range(10)]
    lowered = [schedule(model) for model in models]
    found = sum((count_steps(module) for _, module in lowered), Counter[str]())
    assert found["LayerLoop"] >= 3 and found["StreamedChain"] >= 7 and not found["Attention"]
    for model, run in zip(models, build_models(lowered), strict=True):
        check_tokens(model, run, 3)


def test_fewer_blocks_than_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks take units and lines in turns."""
    model = make_model(DecoderSizes(length=300))
    monkeypatch.setattr(attention_tiles, "PART_KEYS", 16)
    program, module = schedule(model)
    for blocks in (1, 5):
        text, written = write_kernels(module)
        fewer = []
        for one in written:
            kernels = tuple(
                (name, replace(kernel, grid=replace(kernel.grid, x=blocks)) if kernel.together else kernel)
                for name, kernel in one.kernels
            )
            fewer.append(replace(one, kernels=kernels))
        assert sum(kernel.together for one in fewer for _, kernel in one.kernels) == 2
        check_tokens(model, EmulatedModel(program, module, build_text(text), fewer))


def test_tiles() -> None:
    assert find_phase_tile(64, 8, 4, 1024) == TokenTile(4, 4, True, 8)
    assert find_phase_tile(64, 32, 1, 1024) == TokenTile(1, 8, True, 4)
    assert find_phase_tile(64, 8, 4, 300) == TokenTile(4, 5, True, 2)
    assert find_phase_tile(128, 200, 1, 1) == TokenTile(1, 1, True, 1)
    assert find_phase_tile(64, 8, 9, 1024) is find_phase_tile(96, 8, 1, 1024) is None


def test_refused_phases() -> None:
    module = schedule(make_model(DecoderSizes(layers=1)))[1]
    (chain,) = (step for step in module.steps if isinstance(step, StreamedChain))
    attention = chain.attention
    assert attention is not None

    def refuse(why: str, *steps: Any) -> None:
        changed = tuple(replace(chain, steps=steps) if step is chain else step for step in module.steps)
        with pytest.raises(ScheduleError, match=why):
            verify_schedule(replace(module, steps=changed), "chained_attention")

    refuse("the first step", chain.steps[1], attention, *chain.steps[2:])
    refuse("row of its own", attention, *chain.steps[2:])
    refuse("not that of one token", replace(attention, causal=True), *chain.steps[1:])
    refuse("two to 8 products", *chain.steps[:2])


@needs_nvrtc
def test_kernels_of_a_large_decoder_spill_nothing(tmp_path: Path) -> None:
    """A Llama's sizes."""
    with torch.device("meta"):
        model = CachedDecoder(DecoderSizes(2048, 32, 8, 64, 1024, 5632, 3)).bfloat16().eval()
    model = model.to_empty(device="cpu")
    text, written = write_kernels(schedule(model)[1])
    together = {name for one in written for name, kernel in one.kernels if kernel.together}
    assert len(together) == 2 and sum(bool(kernel.table) for one in written for _, kernel in one.kernels) == 1
    for architecture, cubin in check_cubin(text).items():
        for name, found in disassemble(cubin, tmp_path).items():
            assert count(found, "STL", "LDL") == 0, f"{name} spills registers on {architecture}"
            if name in together and architecture == "sm_90a":
                assert count(found, "UBLKCP") >= 4 and count(found, "HMMA") >= 64
