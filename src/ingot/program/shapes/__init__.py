"""Shape analysis: what is known of every value of a program, for every run of it.

lattice.py   types: dtype, device, rank, dims that are numbers, symbols, expressions, or unknown; and their join
given.py     what a caller says of arguments, read and checked
kernels.py   an operator's type, from its own fake kernel: one run for each way that sizes can make it go
sizes.py     which sizes are worth a run
agreement.py what the runs have in common
infer.py     a whole program: branches are joined, loops iterated to a fixpoint
memory.py    what is resized in place, and is unknown

types = ingot.shapes_of(program)                            # as it was captured
types = ingot.shapes_of(program, {"x": ("batch", None, 3)}) # other dims: named, unknown, a number
types["linear"], types["x"], types.outputs
"""

from ingot.program.shapes.infer import Inferred, shapes_of
from ingot.program.shapes.kernels import Doubt
from ingot.program.shapes.lattice import UNKNOWN, NumberType, TensorType, TupleType, Type, contains, join

__all__ = [
    "UNKNOWN",
    "Doubt",
    "Inferred",
    "NumberType",
    "TensorType",
    "TupleType",
    "Type",
    "contains",
    "join",
    "shapes_of",
]
