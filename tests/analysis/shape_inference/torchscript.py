"""TorchScript's own shape pass on one call, to stand beside ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ingot.ir import pytree

GRADES = ("known", "some dims unknown", "rank unknown", "unknown", "wrong")
REFUSED = "refused"


def grade(run: Callable[..., Any], real: list[torch.Tensor], wanted: Any) -> str:
    """What torch.jit's analysis of the traced call tells of its result, every dim of every argument known."""
    try:
        graph = torch.jit.trace(run, tuple(real), check_trace=False).graph
        torch._C._jit_pass_inline(graph)
        torch._C._jit_pass_erase_shape_information(graph)
        torch._C._jit_pass_complete_shape_analysis(graph, tuple(real), False)
    except Exception:
        return REFUSED
    kinds = [out.type() for out in graph.outputs()]
    leaves = [leaf for leaf in pytree.flatten(wanted)[0] if isinstance(leaf, torch.Tensor)]
    if len(kinds) == 1 and kinds[0].kind() == "TupleType":
        kinds = kinds[0].elements()
    if len(kinds) != len(leaves) or any(kind.kind() != "TensorType" for kind in kinds):
        return "unknown"
    grades = []
    for kind, leaf in zip(kinds, leaves, strict=True):
        sizes, dtype, rank = kind.sizes(), kind.dtype(), kind.dim()
        if (
            (sizes is not None and list(sizes) != list(leaf.shape))
            or (dtype is not None and dtype is not leaf.dtype)
            or (rank is not None and rank != leaf.dim())
        ):
            grades.append("wrong")
        elif rank is None:
            grades.append("unknown" if dtype is None else "rank unknown")
        else:
            grades.append("known" if sizes is not None and dtype is not None else "some dims unknown")
    return max(grades, key=GRADES.index) if grades else "known"
