"""Writes down what shape analysis knows of every value, where it is more or less than what capture saw.

before   cat: f32[6] = aten.cat([x, x])         (captured with x: f32[3])
after    cat: f32[2*n] = aten.cat([x, x])       shapes{inputs={x: [n]}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingot.analysis.shape_inference import UNKNOWN, shapes_of
from ingot.analysis.shape_inference.lattice import type_of
from ingot.ir import metadata
from ingot.ir.dialects import CAPTURED
from ingot.ir.program import Program
from ingot.passes.manager import register


@register(takes=CAPTURED)
def annotate_shapes(program: Program, inputs: Mapping[str, Any] | None = None) -> int:
    """Infers the type of every node, in every graph, and keeps it where print(program) and other passes find it.

    `inputs` is as for `ingot.shapes_of`. A node whose type is what its recorded value says keeps no type of its own.
    Returns how many nodes have another type than before. Raises ShapeError at the user's line.
    """
    inferred = shapes_of(program, inputs)
    changes = 0
    for node, found in inferred.types.items():
        if node.op == "get_attr" or (found is UNKNOWN and not metadata.has_value(node)):
            continue
        wanted = None if found == type_of(metadata.value_of(node)) else found
        if metadata.inferred_type_of(node) != wanted:
            metadata.set_inferred_type(node, wanted)
            changes += 1
    return changes
