"""Sparse tensors that a model holds: constants, which products take in their dense form.

Fakes know strided tensors alone. What forward computes of sparse tensors and nothing else is computed once, while the
model is captured; a product with another tensor is recorded with the dense matrix.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ingot import torch_internals as internals
from ingot.errors import UntraceableError, format_error
from ingot.ir import metadata

aten = torch.ops.aten

_DENSE_FORMS = {
    aten._sparse_mm.default: aten.mm.default,
    aten._sparse_addmm.default: aten.addmm.default,
    aten.addmm.default: aten.addmm.default,
    aten.mm.default: aten.mm.default,
    aten.matmul.default: aten.matmul.default,
    aten.linear.default: aten.linear.default,
    aten.mv.default: aten.mv.default,
}


class DenseCall(NamedTuple):
    """A call that takes dense tensors in the place of sparse ones."""

    operator: Any
    args: tuple[Any, ...]


class SparseConstants:
    """The dense forms of the sparse tensors that one capture met, by the sparse tensors' ids."""

    def __init__(self) -> None:
        self._dense: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def compute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], place: str) -> Any:
        """What a call on sparse constants alone returns, or the call to record in its place."""
        tensors = metadata.tensors_in([*args, *kwargs.values()])
        if not any(isinstance(tensor, internals.FakeTensor) for tensor in tensors) and not func._schema.is_mutable:
            with internals.real_tensors(), internals.pause_recording(), torch.no_grad():
                return func(*args, **kwargs)
        if func not in _DENSE_FORMS:
            raise UntraceableError(
                format_error(
                    f"{func} takes a sparse tensor.",
                    where=place,
                    why="a Program holds dense tensors, and sparse ones that the model holds in products alone",
                    fix="use its to_dense() there",
                )
            )
        return DenseCall(_DENSE_FORMS[func], tuple(self._dense_form(a) if is_sparse(a) else a for a in args))

    def _dense_form(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in self._dense:
            with internals.real_tensors(), internals.pause_recording(), torch.no_grad():
                self._dense[id(tensor)] = tensor, tensor.detach().to_dense()
        return self._dense[id(tensor)][1]


def is_sparse(value: Any) -> bool:
    """Whether a value is a real tensor that is not strided."""
    return (
        isinstance(value, torch.Tensor)
        and not isinstance(value, internals.FakeTensor)
        and not internals.is_strided(value)
    )
