"""Shape inference: what is known about every value of a program, for all calls.

lattice.py            types and their join: dtype, device, rank, dims as numbers, symbols, expressions, or unknown
input_specs.py        what a caller says about arguments, read and checked
operator_types.py     an operator's type, for every rank that its arguments may have
kernel_evaluation.py  one fake kernel at known ranks: one run for each path that sizes can make it take
sample_sizes.py       which sizes are worth a run
sample_join.py        what the runs have in common
inference.py          a whole program: branches are joined, loops iterated to a fixpoint
resize_aliasing.py    what is resized in place, and is unknown

types = ingot.shapes_of(program)                            # as it was captured
types = ingot.shapes_of(program, {"x": ("batch", None, 3)}) # other dims: named, unknown, a number
types["linear"], types["x"], types.outputs
"""

from ingot.analysis.shape_inference.inference import Inferred, shapes_of
from ingot.analysis.shape_inference.lattice import UNKNOWN, NumberType, TensorType, TupleType, Type, contains, join
from ingot.analysis.shape_inference.operator_types import UnknownReason

__all__ = [
    "UNKNOWN",
    "Inferred",
    "NumberType",
    "TensorType",
    "TupleType",
    "Type",
    "UnknownReason",
    "contains",
    "join",
    "shapes_of",
]
