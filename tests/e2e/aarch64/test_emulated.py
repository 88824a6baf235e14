"""Native code for Arm processors, in an emulator: operators, models, and which code a processor can run.

`make test-arm` takes all operator samples and models, and writes docs/reports/aarch64.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import ingot
from ingot_runtime import cpu_features
from tests.e2e.test_operator_samples import SLICE
from tests.support.arm_emulation.emulator import PROCESSORS, EmulatedMachine, find_missing
from tests.support.arm_emulation.target import EMULATED
from tests.support.operator_samples.batched_compile import run
from tests.support.operator_samples.samples import cases
from tests.support.oracle import judge, quick_compiler
from tests.support.zoo import entry

_MISSING = find_missing()
pytestmark = [
    pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING)),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"),
]

ISAS = tuple(PROCESSORS)
# Of different kinds: encoders and decoders, convolutions, experts, recurrences, audio, several sizes.
MODELS = (
    *("dynamic:distilbert", "dynamic:gpt2", "dynamic:llama", "static:bloom", "static:t5", "static:mixtral"),
    *("static:resnet", "static:mobilenet-v2", "static:convnext", "static:efficientnet", "static:swin", "dynamic:vit"),
    *("static:mamba", "static:rwkv", "static:wav2vec2", "static:whisper", "static:clip", "static:deberta"),
    *("static:segformer", "static:patchtst"),
)


@pytest.mark.parametrize("isa", PROCESSORS)
def test_a_processor_runs_the_best_code_that_it_can(isa: str) -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.GELU())
    x = torch.randn(3, 5)
    compiled = ingot.compile(model, (x,), target=EMULATED[isa])
    library = compiled.model._library
    assert compiled.isa == library.isa == isa
    assert cpu_features.best(cpu_features.FEATURES, cpu_features.from_hwcaps(library.hwcaps)) == isa
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-6, atol=1e-6)


def test_a_slice_of_the_operators_gives_torchs_numbers() -> None:
    chosen = [case for name in SLICE for case in cases([name], most=1, kinds=("plain",))]
    outcomes = {str(case): outcome for case, outcome in run(chosen, machine=EmulatedMachine("aarch64-bf16"))}
    assert len(outcomes) > 100
    assert not {name: outcome.reason for name, outcome in outcomes.items() if outcome.kind != "passed"}


@pytest.mark.parametrize("name", MODELS)
def test_models_give_torchs_numbers(name: str, tmp_path: Path) -> None:
    kind, _, model = name.partition(":")
    isa = ISAS[MODELS.index(name) % len(ISAS)]
    with quick_compiler():
        verdict = judge(entry(model), kind, tmp_path, EMULATED[isa])
    assert verdict.outcome == "right", verdict.detail
