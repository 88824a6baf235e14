"""What a test of a script is: the script, five sets of arguments, and what its program must still have."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Case:
    """A script, what to call it with, and which operators the program must still have."""

    name: str
    make: Callable[[], Any]
    inputs: Callable[[], list[tuple[Any, ...]]]
    keeps: tuple[str, ...] = ()
    method: str = "forward"
    dynamic: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    within: float = 0.0  # how far a result may be off: a step of quantization, where sums are rounded elsewhere

    def script(self) -> Any:
        """The script, made quietly: torch says of each that TorchScript is deprecated."""
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.make()

    def arguments(self) -> list[tuple[Any, ...]]:
        torch.manual_seed(1)
        made = self.inputs()
        assert len(made) == 5
        return made


CASES: list[Case] = []


def case(name: str, make: Callable[[], Any], inputs: Any, *keeps: str, **more: Any) -> None:
    """Registers a case; `inputs` is a list of argument tuples, or the sizes of five random tensors."""
    if isinstance(inputs, list):
        CASES.append(Case(name, make, lambda: inputs, keeps, **more))
    else:
        CASES.append(Case(name, make, lambda: [tuple(torch.randn(s) for s in inputs) for _ in range(5)], keeps, **more))


def scripted(function: Callable[..., Any]) -> Callable[[], Any]:
    return lambda: torch.jit.script(function)


def module(kind: Callable[[], nn.Module]) -> Callable[[], Any]:
    return lambda: torch.jit.script(kind().eval())


def traced(kind: Callable[[], Any], *sizes: tuple[int, ...]) -> Callable[[], Any]:
    def make() -> Any:
        made = kind()
        return torch.jit.trace(
            made.eval() if isinstance(made, nn.Module) else made, tuple(torch.randn(s) for s in sizes)
        )

    return make


def several(*values: Any) -> list[tuple[Any, ...]]:
    """Five sets of arguments, given as such or as single ones."""
    return [value if isinstance(value, tuple) else (value,) for value in values]


GROWING = several(*(torch.full((3,), float(k)) for k in (-2, 0, 1, 7, 200)))
