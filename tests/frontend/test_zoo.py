"""The zoo: each architecture captured, verified, equal to eager, saved, loaded, unflattened, run at other sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ingot
from ingot.errors import CaptureError, DataDependentError, DynamicShapeError, IngotError, InputError, StateError
from ingot.ir import pytree
from tests.support.zoo import ZOO, Entry, entry

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")

# What `make test` takes; `make test-slow` takes the whole zoo.
_STATIC = (
    "albert bert bert-masked-lm camembert deberta-v2 distilbert electra esm flaubert modernbert mpnet roberta xlnet "
    "bloom codegen falcon gemma2 gpt2 gpt-neox gptj llama llama-no-cache mistral opt phi3 qwen3 xglm "
    "bart marian mbart pegasus t5 t5gemma pix2struct "
    "beit convnext deit dinov2 efficientnet mobilenet-v2 poolformer regnet resnet segformer swin vit vit-mae detr "
    "depth-anything vitpose "
    "ast hubert wav2vec2 whisper hifi-gan moonshine "
    "deepseek-v3 gpt-oss mixtral qwen3-moe llama4 "
    "falcon-mamba lfm2 mamba mamba2 rwkv "
    "clip siglip blip layoutlm llava vilt "
    "informer patchtst timesfm perceiver-text"
)
_DYNAMIC = (
    "albert bert distilbert electra esm flaubert roberta xlnet "
    "bloom gemma2 gpt2 gpt-neox llama mistral opt phi3 qwen3 "
    "bart t5 pix2struct "
    "convnext deit dinov2 resnet segformer vit "
    "ast wav2vec2 whisper "
    "mixtral qwen3-moe lfm2 "
    "clip layoutlm "
    "informer patchtst"
)
SLICE, DYNAMIC_SLICE = frozenset(_STATIC.split()), frozenset(_DYNAMIC.split())

# What cannot be one graph: Python code looks at the values of tensors, in eager as in a capture.
REFUSED: dict[str, tuple[type[CaptureError], str]] = {
    "longformer": (DataDependentError, "branches on whether any token has global attention"),
    "led": (DataDependentError, "branches on whether any token has global attention"),
    "reformer": (DataDependentError, "branches on whether the mask hides anything"),
    "fsmt": (DataDependentError, "branches on whether the mask hides anything"),
    "superpoint": (DataDependentError, "takes the largest number of keypoints found in an image"),
    "fastspeech2-conformer": (DataDependentError, "branches on the sum of the predicted durations"),
    "dbrx": (DataDependentError, "loops over the experts that were hit"),
    "longcat-flash": (DataDependentError, "loops over the experts that were hit"),
    "mixtral-looped": (DataDependentError, "loops over the experts that were hit"),
    "switch-transformers": (DataDependentError, "loops over the experts that were hit"),
    "nllb-moe": (DataDependentError, "loops over the experts that were hit"),
    "udop": (DataDependentError, "branches on the contents of the layout's boxes"),
    "llava-next": (DataDependentError, "picks a grid by the image sizes in a tensor"),
    "mistral3": (DataDependentError, "cuts patches by the image sizes in a tensor"),
    "qwen2-vl": (DataDependentError, "splits attention by lengths in a tensor"),
}

# What is one graph for one size only: Python code counts up to the size, or needs it as a number.
DYNAMIC_REFUSED: dict[str, tuple[type[CaptureError], str]] = {
    "funnel": (DynamicShapeError, "makes a list of all positions"),
    "canine": (DynamicShapeError, "pools by a rate that the size must be a multiple of"),
    "longt5-global": (DynamicShapeError, "one_hot over a number of blocks"),
    "rt-detr": (DynamicShapeError, "len() of the batch"),
    "rt-detr-v2": (DynamicShapeError, "len() of the batch"),
    "d-fine": (DynamicShapeError, "len() of the batch"),
    "clipseg": (DynamicShapeError, "len() of the batch"),
    "encodec": (DynamicShapeError, "loops over chunks of the samples"),
    "mimi": (DataDependentError, "computes its padding from sizes that it holds in tensors"),
    "minimax": (DynamicShapeError, "loops over blocks of the sequence"),
    "xlstm": (DynamicShapeError, "loops over chunks of the sequence"),
    "falcon-mamba": (DynamicShapeError, "loops over the sequence"),
    "jamba": (DynamicShapeError, "loops over the sequence"),
    "mamba": (DynamicShapeError, "loops over the sequence"),
    "mamba-no-cache": (DynamicShapeError, "loops over the sequence"),
    "recurrent-gemma": (StateError, "keeps its recurrent state in plain attributes"),
    "rwkv": (DynamicShapeError, "loops over the sequence"),
    "zamba": (DynamicShapeError, "loops over the sequence"),
    "kimi-linear": (DynamicShapeError, "the example fills one chunk of 64, which is a size of 1"),
    "olmo-hybrid": (DynamicShapeError, "the example fills one chunk of 64, which is a size of 1"),
    "qwen3-next": (DynamicShapeError, "the example fills one chunk of 64, which is a size of 1"),
    "siglip2-vision": (DynamicShapeError, "loops over the batch"),
    "idefics3": (DynamicShapeError, "splits the images of each row into a list"),
    "smolvlm": (DynamicShapeError, "splits the images of each row into a list"),
    "llava": (DynamicShapeError, "makes a list of the images"),
    "llava-siglip": (DynamicShapeError, "makes a list of the images"),
}

# Python code takes another path for some sizes (it pads only what needs it); a call with one of those says so.
OTHER_PATHS = frozenset(
    {
        "longt5-local",
        "pegasus-x",
        "dac",
        "bamba",
        "falcon-h1",
        "granite-hybrid",
        "mamba2",
        "nemotron-h",
        "zamba2",
    }
)


def marked(names: frozenset[str], entries: list[Entry]) -> list[Any]:
    """Parameters for the entries; those outside the slice are slow."""
    return [pytest.param(e, id=e.name, marks=[] if e.name in names else [pytest.mark.slow]) for e in entries]


def assert_close(got: Any, want: Any, label: str) -> None:
    """Bit-equal, or within a few roundings of it where another kernel of torch does the same sum."""
    got_leaves, got_tree = pytree.flatten(got)
    want_leaves, want_tree = pytree.flatten(want)
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


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in ("fsmt", "mixtral-looped") else [pytest.mark.slow]) for n in REFUSED]
)
def test_refused(name: str) -> None:
    item = entry(name)
    with pytest.raises(IngotError) as caught:
        ingot.capture(item.build(), (), item.inputs(item.sizes))
    assert type(caught.value) is REFUSED[name][0]
    assert "  where: " in str(caught.value) and "  what to do: " in str(caught.value)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in ("mamba", "llava") else [pytest.mark.slow]) for n in DYNAMIC_REFUSED]
)
def test_refused_when_dynamic(name: str) -> None:
    item = entry(name)
    with pytest.raises(IngotError) as caught:
        ingot.capture(item.build(), (), item.inputs(item.sizes), dynamic_shapes=item.dynamic)
    assert type(caught.value) is DYNAMIC_REFUSED[name][0]
    assert "  where: " in str(caught.value) and "  what to do: " in str(caught.value)


def test_the_slices_are_wide_enough() -> None:
    captured = {e.name for e in ZOO} - REFUSED.keys()
    assert captured >= SLICE and len(SLICE) >= 65
    assert {e.name for e in ZOO if e.dynamic} - REFUSED.keys() - DYNAMIC_REFUSED.keys() - OTHER_PATHS >= DYNAMIC_SLICE
    assert len(DYNAMIC_SLICE) >= 32
    assert {entry(name).family for name in SLICE} == {e.family for e in ZOO}
