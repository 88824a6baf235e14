"""What a target's emitter gives to those who compile, package and profile a model, whatever the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ingot.codegen.entry_points import PlacedWeight
from ingot.lowering.index_expr import Size
from ingot.lowering.loop_ir import SourceLocation


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One call of a kernel, for the profiler: what it stands for, and the work that it must do at least."""

    kernel: str
    origin: SourceLocation
    flops: Size
    effort: Size
    bytes: Size


class NativeSource(Protocol):
    """The text of a module, the blob of weights that it expects, and its launches in the order in which they run."""

    @property
    def text(self) -> str:
        """The text that kernels are in."""

    @property
    def files(self) -> Mapping[str, str]:
        """Every text by the name of its file: the first is the one that the others are for."""

    @property
    def weights(self) -> tuple[PlacedWeight, ...]: ...

    @property
    def weights_size(self) -> int: ...

    @property
    def launches(self) -> tuple[KernelLaunch, ...]: ...

    @property
    def kernel_count(self) -> int:
        """How many different kernels there are."""


def draws_numbers(source: NativeSource) -> bool:
    """Whether a kernel draws random numbers."""
    return any(name in source.text for name in ("ig_uniform", "ig_normal", "ig_randint"))


def is_image(name: str) -> bool:
    """Whether what a target has built under that name is code for a GPU, and not a library."""
    return name.startswith(("sm_", "compute_"))
