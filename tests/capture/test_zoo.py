"""The zoo: every architecture captured, verified, equal to eager, saved, loaded, unflattened, and run at other sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ingot
from ingot.errors import CaptureError, DataDependentError, DynamicShapeError, IngotError, InputError
from ingot.program import tree
from tests.zoo import ZOO, Entry, entry

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")

# What `make test` takes; `make long` takes the whole zoo.
SLICE = frozenset(
    "albert bert bert-masked-lm camembert deberta-v2 distilbert electra esm flaubert modernbert mpnet roberta xlnet "
    "bloom codegen falcon gemma2 gpt2 gpt-neox gptj llama llama-no-cache mistral opt phi3 qwen3 xglm "
    "bart marian mbart pegasus t5 t5gemma pix2struct "
    "beit convnext deit dinov2 efficientnet mobilenet-v2 poolformer regnet resnet segformer swin vit vit-mae detr "
    "depth-anything vitpose "
    "ast hubert wav2vec2 whisper hifi-gan moonshine "
    "deepseek-v3 gpt-oss mixtral qwen3-moe llama4 "
    "falcon-mamba lfm2 mamba mamba2 rwkv "
    "clip siglip blip layoutlm llava vilt "
    "informer patchtst timesfm perceiver-text".split()
)
DYNAMIC_SLICE = frozenset(
    "albert bert distilbert electra esm flaubert roberta xlnet "
    "bloom gemma2 gpt2 gpt-neox llama mistral opt phi3 qwen3 "
    "bart t5 pix2struct "
    "convnext deit dinov2 resnet segformer vit "
    "ast wav2vec2 whisper "
    "mixtral qwen3-moe lfm2 "
    "clip layoutlm "
    "informer patchtst".split()
)

REFUSED: dict[str, tuple[type[CaptureError], str]] = {}

DYNAMIC_REFUSED: dict[str, tuple[type[CaptureError], str]] = {}

# Python code picks another path for some sizes; the program says so when it is called with one of them.
OTHER_PATHS: dict[str, str] = {}


def marked(names: frozenset[str], entries: list[Entry]) -> list[Any]:
    """Parameters for the entries; those outside of the slice are slow."""
    return [pytest.param(e, id=e.name, marks=[] if e.name in names else [pytest.mark.slow]) for e in entries]


def assert_close(got: Any, want: Any, label: str) -> None:
    """Bit-equal, or within a few roundings of it where another kernel of torch does the same sum."""
    got_leaves, got_tree = tree.flatten(got)
    want_leaves, want_tree = tree.flatten(want)
    assert got_tree == want_tree, f"{label}: {got_tree} instead of {want_tree}"
    for index, (mine, theirs) in enumerate(zip(got_leaves, want_leaves, strict=True)):
        if not isinstance(theirs, torch.Tensor):
            assert mine == theirs, f"{label}[{index}]: {mine!r} instead of {theirs!r}"
            continue
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape, f"{label}[{index}]"
        if not torch.equal(mine, theirs):
            finite = theirs[theirs.isfinite()].abs()
            scale = max(1.0, float(finite.max())) if finite.numel() else 1.0
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6 * scale, equal_nan=True, msg=label)


def run(model: Any, inputs: dict[str, Any]) -> Any:
    """The model's result with every random draw from the same seed."""
    torch.manual_seed(0)
    with torch.no_grad():
        return model(**inputs)


@pytest.mark.parametrize("item", marked(SLICE, [e for e in ZOO if e.name not in REFUSED]))
def test_architecture(item: Entry, tmp_path: Path) -> None:
    model, inputs = item.build(), item.inputs(item.sizes)
    want = run(model, inputs)
    program = ingot.capture(model, (), inputs)
    program.verify()
    assert_close(run(program, inputs), want, "captured")
    program.save(tmp_path / "model.ingot")
    loaded = ingot.load(tmp_path / "model.ingot")
    assert_close(run(loaded, inputs), want, "loaded")
    assert_close(run(program.unflatten(), inputs), want, "unflattened")
    assert_close(run(model, inputs), want, "the model afterwards")


@pytest.mark.parametrize(
    "item", marked(DYNAMIC_SLICE, [e for e in ZOO if e.dynamic and e.name not in {**REFUSED, **DYNAMIC_REFUSED}])
)
def test_architecture_at_other_sizes(item: Entry) -> None:
    model, inputs = item.build(), item.inputs(item.sizes)
    program = ingot.capture(model, (), inputs, dynamic_shapes=item.dynamic)
    program.verify()
    assert_close(run(program, inputs), run(model, inputs), "the example")
    for more in (1, 2, 5):
        sizes = {name: size + more for name, size in item.sizes.items()}
        inputs = item.inputs(sizes)
        want = run(model, inputs)
        try:
            got = run(program, inputs)
        except InputError:
            assert item.name in OTHER_PATHS
            continue
        assert_close(got, want, f"at {sizes}")


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in REFUSED])
def test_refused(name: str) -> None:
    item = entry(name)
    with pytest.raises(IngotError) as caught:
        ingot.capture(item.build(), (), item.inputs(item.sizes))
    assert type(caught.value) is REFUSED[name][0]
    assert f"transformers/models/" in str(caught.value) or "transformers/" in str(caught.value)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in DYNAMIC_REFUSED])
def test_refused_when_dynamic(name: str) -> None:
    item = entry(name)
    with pytest.raises(IngotError) as caught:
        ingot.capture(item.build(), (), item.inputs(item.sizes), dynamic_shapes=item.dynamic)
    assert type(caught.value) is DYNAMIC_REFUSED[name][0]
    assert "  where: " in str(caught.value) and "  what to do: " in str(caught.value)


def test_the_slices_are_wide_enough() -> None:
    captured = {e.name for e in ZOO} - REFUSED.keys()
    assert captured >= SLICE and len(SLICE) >= 65
    assert {e.name for e in ZOO if e.dynamic} - REFUSED.keys() - DYNAMIC_REFUSED.keys() - OTHER_PATHS.keys() >= DYNAMIC_SLICE
    assert len(DYNAMIC_SLICE) >= 32
    assert {entry(name).family for name in SLICE} == {e.family for e in ZOO}
