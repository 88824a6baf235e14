"""What eager's results share memory with, for torch's own samples of every operator, and what fakes say of it."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from ingot import torch_internals as internals
from ingot.ir.meta_kernels import on_fakes
from ingot.ir.metadata import tensors_in

SAMPLES = 6

_PATTERN = list[tuple[int, int]]


class OnFakes(internals.DispatchMode):
    """Runs operators on fakes as a capture does."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return on_fakes(func)(*args, **(kwargs or {}))


def shared(inputs: list[torch.Tensor], out: Any) -> _PATTERN:
    """Which results share memory with which inputs."""
    results = [t for t in tensors_in(out if isinstance(out, list | tuple) else [out])]
    pairs = itertools.product(enumerate(results), enumerate(inputs))
    return [(i, j) for (i, a), (j, b) in pairs if _storage(a) == _storage(b) is not None]


def _storage(tensor: torch.Tensor) -> int | None:
    if tensor.layout is not torch.strided or not tensor.numel():
        return None
    return internals.storage_id(tensor)


def differences(op: Any) -> list[str]:
    """How the memory of an operator's results differs between eager and fakes."""
    if not op.dtypes:  # an operator of another device
        return []
    dtype = torch.float32 if torch.float32 in op.dtypes else next(iter(op.dtypes))
    found = []
    for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), SAMPLES):
        leaves, tree = torch.utils._pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        mode, _ = internals.new_fake_mode()
        mode.cache_enabled = False
        fakes = [
            mode.from_tensor(leaf, static_shapes=True) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
        ]
        try:
            first, args, kwargs = torch.utils._pytree.tree_unflatten(fakes, tree)
            with mode, OnFakes():
                expected = shared(tensors_in(fakes), op(first, *args, **kwargs))
            real = shared(tensors_in(leaves), op(sample.input, *sample.args, **sample.kwargs))
        except Exception:
            continue  # data-dependent, or not to be run on a fake
        if real != expected:
            found.append(f"{op.name}: eager {real}, fakes {expected}")
    return found


@pytest.mark.slow
def test_fakes_share_memory_as_real_tensors_do() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [text for op in op_db for text in differences(op)]
    assert not found, "\n".join(sorted(set(found)))
