"""A Python function → an ATen pattern graph → its matches in a program.

    pattern = ingot.rewriting.trace(before, example_inputs)
    for match in ingot.rewriting.matches(pattern, program.graph_module): ...

`ingot.rewrite(program, before, after, example_inputs)` does the whole of it.
"""

from ingot.rewriting.matching import Match, matches
from ingot.rewriting.pattern import Pattern, trace

__all__ = ["Match", "Pattern", "matches", "trace"]
