"""How much of torch's core ATen set has a rule here: python -m tests.onnx.core_share"""

from __future__ import annotations

import torch

import ingot.onnx.rules  # noqa: F401
from ingot.ir.dialects import SHAPE_QUERY_OPS
from ingot.onnx.registry import rule_of
from ingot.passes.legalize import _table


def core_operators() -> list[torch._ops.OpOverload]:
    """Every operator that carries torch's own mark for the core set."""
    found = {}
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        packet = getattr(torch.ops.aten, name, None) if namespace == "aten" else None
        overload = getattr(packet, schema.overload_name or "default", None)
        if overload is not None and torch.Tag.core in overload.tags:
            found[str(overload)] = overload
    return [found[name] for name in sorted(found)]


def share() -> tuple[list[str], list[str]]:
    """Core operators that are exported, and those that are not. A question about a size is arithmetic on sizes."""
    yes, no = [], []
    for op in core_operators():
        covered = rule_of(op) is not None or op in SHAPE_QUERY_OPS or op in _table()
        (yes if covered else no).append(str(op))
    return yes, no


if __name__ == "__main__":
    with_rule, without = share()
    print(f"{len(with_rule)} of {len(with_rule) + len(without)}; without: {', '.join(without)}")
