"""The registry: models of public packages, chosen for variety. Each package is imported only where it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.support.packages import audio, generative, graphs, images, science, sequences, vision
from tests.support.packages.entry import Model


def _of(package: str, source: Callable[[], Iterator[Model]]) -> Callable[[], Iterator[Model]]:
    return lambda: (model for model in source() if model.package == package)


PACKAGES: dict[str, Callable[[], Iterator[Model]]] = {
    "gpytorch": graphs.gpytorch,
    "torch-geometric": graphs.torch_geometric,
    "e3nn": graphs.e3nn,
    "x-transformers": sequences.x_transformers,
    **sequences.SMALL,
    "openai-whisper": audio.whisper,
    "torchaudio": audio.torchaudio,
    "nnAudio": audio.nnaudio,
    "openunmix": audio.openunmix,
    "vocos": audio.vocos,
    "encodec": audio.encodec,
    "asteroid": audio.asteroid,
    "speechbrain": audio.speechbrain,
    "pytorch-tabnet": science.tabnet,
    "rtdl-revisiting-models": _of("rtdl-revisiting-models", science.rtdl),
    "rtdl-num-embeddings": _of("rtdl-num-embeddings", science.rtdl),
    "tabm": science.tabm,
    "deepctr-torch": science.deepctr,
    "torchdiffeq": science.torchdiffeq,
    "neuraloperator": science.neuraloperator,
    "pykan": science.kan,
    "snntorch": science.spikes,
    "spikingjelly": science.spikingjelly,
    "botorch": science.botorch,
    "torchsde": _of("torchsde", science.others),
    "pytorch-tcn": _of("pytorch-tcn", science.others),
    "pytorch-crf": _of("pytorch-crf", science.others),
    "kornia": vision.kornia,
    "diffusers": generative.diffusers,
    "denoising-diffusion-pytorch": generative.denoising_diffusion,
    "zuko": generative.zuko,
    "nflows": generative.nflows,
    "monai": generative.monai,
    "spandrel": vision.spandrel,
    "facenet-pytorch": vision.facenet,
    "open-clip-torch": vision.open_clip,
    "torchvision": vision.torchvision,
    "pytorchcv": vision.pytorchcv,
    "vit-pytorch": images.vit_pytorch,
    "efficientnet-pytorch": images.efficientnet_pytorch,
    "segmentation-models-pytorch": images.segmentation_models_pytorch,
    "timm": images.timm,
}


def models_of(package: str) -> list[Model]:
    """The models of a package, in the registry's order."""
    models = list(PACKAGES[package]())
    names = [model.label for model in models]
    assert len({*names}) == len(names), sorted(name for name in names if names.count(name) > 1)
    return models
