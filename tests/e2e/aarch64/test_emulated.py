"""Native code for Arm processors, in an emulator: operators, models, and which code a processor can run.

`make test-arm` takes all operator samples and models, and writes docs/reports/aarch64.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import ingot
from ingot_runtime import cpu_features, open_container
from ingot_runtime.container.manifest import read_spec
from ingot_runtime.description import weights_of
from ingot_runtime.model import Model, check_library
from tests.e2e.test_operator_samples import SLICE
from tests.support.arm_emulation.emulator import PROCESSORS, EmulatedLibrary, EmulatedMachine, find_missing
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


def test_a_library_out_of_a_file(tmp_path: Path) -> None:
    """As it is built for a file: in several parts, and optimized."""
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 36, 20), nn.Softmax(1)).eval()
    x, path = torch.randn(5, 3, 8, 8), tmp_path / "model.ingot"
    ingot.compile(model, (x[:2],), isa="aarch64-bf16", dynamic_shapes={"input": {0: "batch"}}).save(path)
    with open_container(path) as container:
        spec = read_spec(container.manifest, container.names, str(path))
        library = EmulatedLibrary(container.read(spec.libraries["aarch64-bf16"]))
        check_library(library, spec, "aarch64-bf16", weights_of(container, spec), str(path))
        emulated = Model(str(path), spec, library, weights_of(container, spec), 2, None)
        for images in (x, x[:1]):
            with torch.no_grad():
                torch.testing.assert_close(torch.from_numpy(emulated(images.numpy())), model(images))
        emulated.close()


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
