"""Puts what runs under autocast into regions.

before                                                      after
enter_autocast = enter_autocast("cpu", bfloat16, True, True)   autocast_region = self.autocast_region
linear = aten.linear(x, w)                                  call = wrap_with_autocast("cpu", bfloat16, True, True,
exit_autocast = exit_autocast(enter_autocast)                                         autocast_region, x, w)
return (linear,)                                            return (call[0],)
"""

from __future__ import annotations

from ingot.ir.dialects import CAPTURED
from ingot.ir.program import Program
from ingot.ir.regions import cut_autocast
from ingot.passes.manager import register


@register(takes=CAPTURED)
def autocast(program: Program) -> int:
    """Each outermost pair of autocast switches becomes a region, nested pairs nested regions, in every graph.

    A region whose settings are in force already is not made, and neither is one that computes nothing.
    """
    return cut_autocast(program.graph_module)
