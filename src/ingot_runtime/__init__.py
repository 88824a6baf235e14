"""Loads and runs a compiled `.ingot` file with the standard library and numpy: never torch, never ingot.

For now it holds the file itself:

    with ingot_runtime.open_container("m.ingot") as container:      # every byte is checked here
        weights = container.read("weights.safetensors")             # a view, no copy
        for name, entry in ingot_runtime.parse_header(weights).items():
            array = ingot_runtime.as_numpy(weights, entry)
"""

from .container import SCHEMA, Container, Member, StreamedMember, check_container, open_container, write_container
from .errors import DamagedFile, FileError, IngotError, MissingMember, NotAnIngotFile, UnsafeFile, UnsupportedSchema
from .tensors import DTYPES, TensorEntry, TensorsMember, as_numpy, parse_header

__all__ = [
    "DTYPES",
    "SCHEMA",
    "Container",
    "DamagedFile",
    "FileError",
    "IngotError",
    "Member",
    "MissingMember",
    "NotAnIngotFile",
    "StreamedMember",
    "TensorEntry",
    "TensorsMember",
    "UnsafeFile",
    "UnsupportedSchema",
    "as_numpy",
    "check_container",
    "open_container",
    "parse_header",
    "write_container",
]
