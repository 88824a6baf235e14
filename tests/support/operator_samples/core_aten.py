"""Whether a sample reaches core ATen: whether torch's own rules take it down to the operators of that set alone.

    outside(case, captured)       () if it does, else what stands in the way

Which samples a compiler for core ATen owes an answer is torch's to say: an operator is of the set if it carries
`torch.Tag.core`, and what is none of it must be made of such operators by torch's table of decompositions. Where our
own capture or passes fail, torch.export is asked, so that a bug of ours does not take a sample out of the count.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import fx

from ingot import passes
from ingot.ir.outlining import graph_modules
from ingot.ir.program import Program
from tests.support.operator_samples.samples import Case, fresh


def outside(case: Case, captured: Program | None) -> tuple[str, ...]:
    """The operators that stay outside the core set, by name, or the reason why there are none to look at.

    `captured` is the case's program as it was captured, None if it could not be.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if captured is None:
            return _outside_by_torch(case)
        try:
            lowered = passes.transform(captured, passes.DEFAULT_PIPELINE, check=None)
        except Exception:
            return _outside_by_torch(case)
        return _foreign(node for module in graph_modules(lowered.graph_module) for node in module.graph.nodes)


def _outside_by_torch(case: Case) -> tuple[str, ...]:
    logging.disable(logging.CRITICAL)  # torch logs at length what it refuses
    try:
        exported = torch.export.export(case.module, fresh(case), strict=False).run_decompositions()
    except Exception as error:
        return (f"torch.export: {type(error).__name__}",)
    finally:
        logging.disable(logging.NOTSET)
    return _foreign(
        node
        for module in exported.graph_module.modules()
        if isinstance(module, fx.GraphModule)
        for node in module.graph.nodes
    )


def _foreign(nodes: Iterable[fx.Node]) -> tuple[str, ...]:
    return tuple(
        sorted({str(node.target) for node in nodes if node.op == "call_function" and not _is_core(node.target)})
    )


@cache
def _is_core(target: Any) -> bool:
    """Also: questions about sizes, arithmetic on them, assertions, and torch's primitives, which lie below the set."""
    if not isinstance(target, torch._ops.OpOverload):
        return True
    if target.namespace == "ingot_aten":  # an effect, in order by its token
        target = getattr(getattr(torch.ops.aten, target._opname), target._overloadname)
    return (
        torch.Tag.core in target.tags
        or target.namespace in ("prims", "ingot")
        or target._opname.startswith(("sym_", "_assert"))
    )
