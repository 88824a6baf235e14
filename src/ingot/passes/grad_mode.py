"""Puts what runs in another grad mode than the program's own into regions.

before                                        after
set_grad_enabled = set_grad_enabled(False)    grad_region = self.grad_region
linear = aten.linear(x, w)                    call = wrap_with_set_grad_enabled(False, grad_region, x, w)
set_grad_enabled_1 = set_grad_enabled(True)   relu = aten.relu(call[0])
relu = aten.relu(linear)
"""

from __future__ import annotations

from ingot.ir.dialects import CAPTURED
from ingot.ir.program import Program
from ingot.ir.regions import cut_grad_mode
from ingot.passes.manager import register


@register(takes=CAPTURED)
def grad_mode(program: Program) -> int:
    """Each run of nodes between a switch away from the mode in force and the switch back becomes a region.

    The mode in force is the one that the program was captured in; inside a region it is the region's. A switch to the
    mode in force disappears, and so does a region that computes nothing.
    """
    return cut_grad_mode(program.graph_module)
