"""Layers that are alike in a loop: one kernel for all of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import ingot
from ingot.errors import ScheduleError
from ingot.lowering.loop_ir import Attention
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.schedule import streams
from ingot.targets.cuda.schedule.layers import layer_loops
from ingot.targets.cuda.schedule.statements import LayerLoop, StreamedChain
from ingot.targets.cuda.schedule.verifier import verify_schedule
from ingot.targets.cuda.target import CUDA
from ingot.targets.reference.interpreted_model import InterpretedModel
from tests.support.cuda_emulation.emulated_model import EmulatedModel, PackingTarget
from tests.support.cuda_emulation.kernels import write_kernels
from tests.support.cuda_emulation.target import EMULATED, open_driver
from tests.targets.cuda.streams.decoder_layers import DecoderSizes, list_calls
from tests.targets.cuda.streams.test_streamed_chains import Layers
from tests.targets.cuda.streams.test_token_phases import check_tokens, count_steps, lower, make_model, schedule
from tests.targets.cuda.test_gemm_epilogues import compare, randn
from tests.targets.cuda.test_schedule import print_pass

Golden = Callable[[str, str], None]


@pytest.fixture(autouse=True)
def stream_small_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_LEAST_ELEMENTS", 1)


def find_loop(module: Module) -> LayerLoop:
    (loop,) = (step for step in module.steps if isinstance(step, LayerLoop))
    return loop


def test_layers_are_one_kernel(golden: Golden) -> None:
    """All but the last, whose chain ends with the head."""
    model = make_model(DecoderSizes())
    module = schedule(model)[1]
    loop = find_loop(module)
    assert len(loop.steps) == 2 and all(isinstance(chain.steps[0], Attention) for chain in loop.steps)
    assert count_steps(module)["StreamedChain"] == 1 and not count_steps(module)["Attention"]
    golden("layer_loops", print_pass(lower(model, list_calls(model.sizes)[0])[1], "persistent_layers"))
    chained = count_steps(schedule(model, ("persistent_layers",))[1])
    assert chained["StreamedChain"] == 3 and not chained["LayerLoop"]
    apart = count_steps(schedule(model, ("chained_attention",))[1])
    assert apart["StreamedChain"] == apart["Attention"] == 3 and not apart["LayerLoop"]
    assert CUDA.schedule(module, verify=True).steps == module.steps


@pytest.mark.parametrize("disabled", [(), ("persistent_layers",)], ids=["on", "off"])
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
    assert "layers.at[layer]" in compiled.source
    check_tokens(model, compiled)
    compiled.close()


def test_tables_of_many_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that do not fit into one table are several loops."""
    model = make_model(DecoderSizes(width=24, heads=1, key_heads=1, length=5, hidden=8, layers=6))
    full = find_loop(schedule(model)[1])
    assert len(full.steps) == 5
    words = sum(map(len, write_kernels(schedule(model)[1])[1][-2].kernels[0][1].table)) // 5
    monkeypatch.setattr(layer_loops, "TABLE_BYTES", 8 * words * 3)
    program, module = schedule(model)
    assert [len(step.steps) for step in module.steps if isinstance(step, LayerLoop)] == [3, 2]
    check_tokens(model, EmulatedModel(program, module))


def test_loops_without_attention() -> None:
    torch.manual_seed(0)
    model, x = Layers(24, 16, 16).bfloat16().eval(), randn(1, 1, 24)
    program, module = lower(model, (x,))
    module = CUDA.schedule(module, verify=True)
    assert [len(step.steps) for step in module.steps if isinstance(step, LayerLoop)] == [4]
    compare(model, (x,), EmulatedModel(program, module))


def test_layers_that_differ_are_apart() -> None:
    model = make_model(DecoderSizes(layers=5))
    model.layers[2].second = type(model.layers[2].second)(64, 56).bfloat16()
    steps = schedule(model)[1].steps
    assert [len(step.steps) for step in steps if isinstance(step, LayerLoop)] == [2]
    assert sum(isinstance(step, StreamedChain) for step in steps) == 3


def test_refused_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    module = schedule(make_model(DecoderSizes()))[1]
    loop = find_loop(module)
    first, second = loop.steps

    def refuse(why: str, *chains: StreamedChain) -> None:
        steps = tuple(replace(loop, steps=chains) if step is loop else step for step in module.steps)
        with pytest.raises(ScheduleError, match=why):
            verify_schedule(replace(module, steps=steps), "persistent_layers")

    attention = first.attention
    assert attention is not None
    refuse("two layers", first)
    refuse("more than their buffers", first, replace(second, steps=second.steps[:-1]))
    wider = replace(attention, scale=2 * attention.scale)
    refuse("more than their buffers", first, replace(second, steps=(wider, *second.steps[1:])))
    monkeypatch.setattr(layer_loops, "TABLE_BYTES", 8)
    refuse("more than 8 bytes", first, second)
