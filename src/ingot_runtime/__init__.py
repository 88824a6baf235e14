"""Loads and runs a compiled `.ingot` file with the standard library and numpy: never torch, never ingot.

    model = ingot_runtime.load("m.ingot")               # runs native code of the file: whose file is it?
    model = ingot_runtime.load("m.ingot", trust="release.pub.pem")  # only if the holder of that key signed it
    logits = model(ids, mask=mask)                      # the original's arguments; numpy arrays, torch tensors, buffers
    model.self_test()                                   # the sample stored in the file, on this machine
    ingot_runtime.describe("m.ingot")                   # what it takes and returns; nothing of it runs

    $ python -m ingot_runtime describe|run|self-test|extract m.ingot

The file itself, for those who want what is in it:

    with ingot_runtime.open_container("m.ingot") as container:
        weights = container.read("weights.safetensors")             # a view, no copy
        for name, entry in ingot_runtime.parse_header(weights).items():
            array = ingot_runtime.as_numpy(weights, entry)
"""

# The start of a process pays for what is imported here. So records are named tuples, because making one dataclass takes
# 0.4 ms, and a module that only some calls need is imported in the function that needs it.

from .container import SCHEMA, Container, Member, StreamedMember, check_container, open_container, write_container
from .container.safetensors_member import DTYPES, TensorEntry, TensorsMember, as_numpy, parse_header
from .container.signing import Key, Trust, sign_file, write_keys
from .description import describe
from .errors import (
    AssertionFailed,
    CallError,
    ClosedModel,
    CopyError,
    DamagedFile,
    DeviceUnavailable,
    DivisionByZero,
    FileError,
    IndexOutOfRange,
    IngotError,
    InputError,
    InvalidKey,
    LiteralError,
    MissingFile,
    MissingFolder,
    MissingInstructionSet,
    MissingMember,
    NotAnIngotFile,
    NotCompiled,
    OutOfMemory,
    OutputError,
    SelfTestFailed,
    SigningUnavailable,
    StructureError,
    UnreadableFile,
    UnsafeFile,
    UnsupportedSchema,
    UntrustedFile,
    UnwritableFile,
)
from .model import Model, load
from .native.bfloat16 import BFloat16Array
from .native.device_array import DeviceArray
from .pytree import FieldTuple, Record

__all__ = [
    "DTYPES",
    "SCHEMA",
    "AssertionFailed",
    "BFloat16Array",
    "CallError",
    "ClosedModel",
    "Container",
    "CopyError",
    "DamagedFile",
    "DeviceArray",
    "DeviceUnavailable",
    "DivisionByZero",
    "FieldTuple",
    "FileError",
    "IndexOutOfRange",
    "IngotError",
    "InputError",
    "InvalidKey",
    "Key",
    "LiteralError",
    "Member",
    "MissingFile",
    "MissingFolder",
    "MissingInstructionSet",
    "MissingMember",
    "Model",
    "NotAnIngotFile",
    "NotCompiled",
    "OutOfMemory",
    "OutputError",
    "Record",
    "SelfTestFailed",
    "SigningUnavailable",
    "StreamedMember",
    "StructureError",
    "TensorEntry",
    "TensorsMember",
    "Trust",
    "UnreadableFile",
    "UnsafeFile",
    "UnsupportedSchema",
    "UntrustedFile",
    "UnwritableFile",
    "as_numpy",
    "check_container",
    "describe",
    "load",
    "open_container",
    "parse_header",
    "sign_file",
    "write_container",
    "write_keys",
]
