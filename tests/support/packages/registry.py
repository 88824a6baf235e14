"""The registry: models of public packages, chosen for variety. Each package is imported only where it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.support.packages import images
from tests.support.packages.entry import Model

PACKAGES: dict[str, Callable[[], Iterator[Model]]] = {
    "timm": images.timm,
    "vit-pytorch": images.vit_pytorch,
    "efficientnet-pytorch": images.efficientnet_pytorch,
    "segmentation-models-pytorch": images.segmentation_models_pytorch,
}


def models_of(package: str) -> list[Model]:
    """The models of a package, in the registry's order."""
    models = list(PACKAGES[package]())
    names = [model.label for model in models]
    assert len({*names}) == len(names), sorted(name for name in names if names.count(name) > 1)
    return models
