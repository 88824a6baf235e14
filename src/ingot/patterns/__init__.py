"""A Python function → an ATen pattern graph → its matches in a program.

    pattern = ingot.patterns.trace(before, example_inputs)
    for match in ingot.patterns.matches(pattern, program.graph_module): ...

`ingot.rewrite(program, before, after, example_inputs)` does the whole of it.
"""

from ingot.patterns.matching import Match, matches
from ingot.patterns.pattern import Pattern, trace

__all__ = ["Match", "Pattern", "matches", "trace"]
