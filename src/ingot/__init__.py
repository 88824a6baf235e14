"""Ingot: PyTorch models captured as graphs, transformed by passes that are checked.

    program = ingot.capture(model, args, kwargs, dynamic_shapes={"x": {0: "batch"}})
    program(*args, **kwargs)        # runs through torch: the reference meaning
    print(program)                  # readable code with shapes, module paths and your source lines
    program.save("m.ingot")         # one file: graph as JSON, weights as safetensors
    program = ingot.load("m.ingot")
    program.module()                # an nn.Module that trains
    program.unflatten()             # an nn.Module with the original hierarchy
    program.verify()                # raises VerifyError

`ingot.errors` draws the tree of everything that can go wrong.
"""

from __future__ import annotations

from ingot import errors, passes
from ingot.errors import IngotError
from ingot.pipeline import capture
from ingot.program.program import Program

__version__ = "0.1.0"

__all__ = ["IngotError", "Program", "capture", "errors", "passes"]
