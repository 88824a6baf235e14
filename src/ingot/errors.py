"""Every exception Ingot raises on purpose.

    IngotError
    ├── CaptureError                the model could not become a Program
    │   ├── EagerError              it does not run in eager either
    │   ├── DataDependentError      Python needs a value that exists only at run time
    │   ├── UntraceableError        a tensor left torch: numpy, a C extension, an object we cannot see into
    │   ├── StateError              forward changed state that is neither a parameter nor a buffer
    │   └── DynamicShapeError       a dynamic dim is frozen, related to another, or narrower than declared
    ├── CallError                   a Program was called with something it was not captured for
    │   ├── StructureError          other argument names or nesting
    │   ├── LiteralError            another value for an argument that was captured as a constant
    │   └── InputError              another dtype, rank, size or device
    ├── DoubleBackwardError         a gradient of a gradient goes through a compiled model (also a RuntimeError)
    ├── AssertionFailed             an assertion of the model does not hold for what the Program was called with
    ├── NotAProgram                 something else was given where a Program is needed (also a TypeError)
    ├── VerifyError                 a Program breaks one of its invariants
    ├── StateDictError              a state dict lacks a key or holds a tensor of another shape
    ├── UnflattenError              the module hierarchy cannot be rebuilt
    ├── ConversionError             torch.export's form cannot express it, or ours cannot
    ├── SaveError                   a Program holds something a file cannot
    ├── ShapeError                  an operator of a Program cannot work on values of such shapes
    ├── PassError                   a pass was given what it cannot take
    │   ├── NumericsError           a pass changed what the program computes
    │   ├── PatternError            a function cannot be a pattern, or a replacement for one
    │   └── QuantizeError           a program cannot be quantized as asked, or is not calibrated
    ├── CompileError                a Program could not become native code
    │   ├── UnsupportedOperator     an operator has no rule
    │   ├── RegistrationError       a lowering rule or a C kernel cannot be registered as it is (also a ValueError)
    │   ├── ScheduleError           a scheduling pass broke the module that it was given: a bug in Ingot
    │   ├── InterpreterError        a step of a module accesses what it may not, or has no meaning: a bug in Ingot
    │   ├── UnknownTarget           there is no target of the name that was given
    │   ├── UnsupportedMachine      an instruction set that is not known, or that the compiler does not support
    │   ├── NoCompiler              there is no C compiler that works
    │   ├── CompilerFailed          the C compiler rejected the source, or built no library
    │   │   ├── CompilerTimeout     it did not finish in time
    │   │   └── CompilerKilled      a signal ended it: out of memory, most often
    │   └── StorageError            a disk is full, a folder is read-only or not there
    │       ├── CacheError          neither the cache nor a folder of temporary files can hold the library
    │       └── UnsafeCache         others may write to the cache: it is not used, and UnsafeCacheWarning says so
    ├── OnnxError                   a Program could not become an ONNX file
    │   ├── OnnxUnavailable         a package that exports or verifies ONNX files is not installed
    │   ├── UnsupportedByOnnx       an operator has no rule, or ONNX cannot say it
    │   └── OnnxMismatch            the file does not check, does not run, or does not match torch
    ├── ViewError                   a page cannot be shown: a part of it is missing, or of what it should show
    └── FileError                   a file cannot be used (ingot_runtime.errors draws that branch, and what a call of
        │                           a compiled model may raise)
        ├── MissingOperator         it uses an operator that is not registered in this process
        └── ForbiddenOperator       it uses an operator that a file may not call: one that touches files, for one

    UserWarning
    └── TrainModeWarning            a model in train mode is compiled or exported for inference

A message says what happened, where (the user's file and line), why, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from ingot_runtime.errors import (
    AssertionFailed,
    CallError,
    CopyError,
    DamagedFile,
    FileError,
    IngotError,
    InputError,
    InvalidKey,
    LiteralError,
    MissingFile,
    MissingFolder,
    MissingMember,
    NotAnIngotFile,
    OutOfMemory,
    SigningUnavailable,
    StructureError,
    UnreadableFile,
    UnsafeFile,
    UnsupportedSchema,
    UntrustedFile,
    UnwritableFile,
    format_error,
)


class TrainModeWarning(UserWarning):
    """A model in train mode, with layers that do something else there, becomes code for inference."""


class CaptureError(IngotError):
    """The model could not become a Program."""


class EagerError(CaptureError):
    """The model fails in eager with the same arguments; its own exception is the cause."""


class DataDependentError(CaptureError):
    """Python needed the value of a tensor while the model was being captured."""


class UntraceableError(CaptureError):
    """A tensor was handed to code that torch cannot see into."""


class StateError(CaptureError):
    """forward stored a tensor where a Program cannot follow it."""


class DynamicShapeError(CaptureError):
    """A dim declared dynamic is frozen, related to another, or supported on less than its range."""


class DoubleBackwardError(IngotError, RuntimeError):
    """A gradient of a gradient was asked for, and goes through a compiled model."""


class VerifyError(IngotError):
    """A Program breaks one of its invariants."""


class NotAProgram(IngotError, TypeError):
    """A function of Ingot that takes a Program was given something else."""


class StateDictError(IngotError):
    """A state dict does not fit the Program."""


class UnflattenError(IngotError):
    """The module hierarchy cannot be rebuilt from this Program."""


class ConversionError(IngotError):
    """A Program and torch.export's ExportedProgram cannot be turned into each other."""


class SaveError(IngotError):
    """A Program holds something that a file cannot."""


class MissingOperator(FileError):
    """A file uses an operator that nothing in this process has registered."""


class ForbiddenOperator(FileError):
    """A file uses an operator that is not on the list of those that a file may call."""


class ShapeError(IngotError):
    """An operator of a Program cannot work on values of the shapes that it would get."""


class PassError(IngotError):
    """A pass was given a program or an option that it cannot take."""


class NumericsError(PassError):
    """A pass changed what the program computes."""


class PatternError(PassError):
    """A function cannot be a pattern, or a replacement for one."""


class QuantizeError(PassError):
    """A program cannot be quantized as asked, or its ranges are not known yet."""


class CompileError(IngotError):
    """A Program could not become native code."""


class UnsupportedOperator(CompileError):
    """Operators of a Program have no rule that lowers them."""


class RegistrationError(CompileError, ValueError):
    """A lowering rule or a C kernel cannot be registered as it was given."""


class ScheduleError(CompileError):
    """A scheduling pass made a module that is not well formed: a bug in Ingot, named by its pass."""


class InterpreterError(CompileError):
    """A step of a module cannot be interpreted: it accesses memory outside its buffers, for one."""


class UnknownTarget(CompileError, ValueError):
    """There is no target of the name that was given."""


class UnsupportedPrecision(CompileError, ValueError):
    """A target's products cannot multiply in the precision that was given."""


class UnsupportedMachine(CompileError):
    """An instruction set is not known, or the compiler does not support it."""


class NoCompiler(CompileError):
    """No C compiler was found, or the requested one does not work."""


class CompilerFailed(CompileError):
    """A C compiler made no library of a source: the command, all that it said, and where the source is kept."""

    def __init__(
        self, message: str, *, command: Sequence[str] = (), output: str = "", kept: Path | None = None
    ) -> None:
        # The message alone is positional: this is what lets the exception be pickled between processes.
        super().__init__(message)
        self.command = tuple(command)
        self.output = output
        self.kept = kept


class CompilerTimeout(CompilerFailed):
    """A C compiler did not finish in time."""


class CompilerKilled(CompilerFailed):
    """A C compiler, or a program that it runs, was ended by a signal."""


class StorageError(CompileError):
    """A file could not be written: the disk is full, the folder is read-only or not there."""

    def __init__(self, message: str, *, place: str = "", why: str = "") -> None:
        super().__init__(message)
        self.place = place
        self.why = why


class CacheError(StorageError):
    """Neither the cache nor a folder of temporary files can hold a library."""


class UnsafeCache(StorageError):
    """The cache belongs to another user, or others may write to it: what it holds must not be run."""


class UnsafeCacheWarning(UserWarning):
    """The cache is not used, because of an UnsafeCache error: every compilation runs the C compiler."""


class OnnxError(IngotError):
    """A Program could not become an ONNX file."""


class UnsupportedByOnnx(OnnxError):
    """Operators of a Program have no rule, or ONNX has no way to say what they do."""


class OnnxUnavailable(OnnxError):
    """A package of the extra `onnx` is not installed."""


class OnnxMismatch(OnnxError):
    """An ONNX model does not check, does not run, or does not match torch."""


class ViewError(IngotError):
    """There is nothing to show, or nothing to show it with."""

    exit_code: ClassVar[int] = 2


__all__ = [
    "AssertionFailed",
    "CacheError",
    "CallError",
    "CaptureError",
    "CompileError",
    "CompilerFailed",
    "CompilerKilled",
    "CompilerTimeout",
    "ConversionError",
    "CopyError",
    "DamagedFile",
    "DataDependentError",
    "DoubleBackwardError",
    "DynamicShapeError",
    "EagerError",
    "FileError",
    "ForbiddenOperator",
    "IngotError",
    "InputError",
    "InterpreterError",
    "InvalidKey",
    "LiteralError",
    "MissingFile",
    "MissingFolder",
    "MissingMember",
    "MissingOperator",
    "NoCompiler",
    "NotAnIngotFile",
    "NumericsError",
    "OnnxError",
    "OnnxMismatch",
    "OnnxUnavailable",
    "OutOfMemory",
    "PassError",
    "SaveError",
    "ShapeError",
    "SigningUnavailable",
    "StateDictError",
    "StateError",
    "StorageError",
    "StructureError",
    "TrainModeWarning",
    "UnflattenError",
    "UnreadableFile",
    "UnsafeCache",
    "UnsafeCacheWarning",
    "UnsafeFile",
    "UnsupportedByOnnx",
    "UnsupportedMachine",
    "UnsupportedOperator",
    "UnsupportedSchema",
    "UntraceableError",
    "UntrustedFile",
    "UnwritableFile",
    "VerifyError",
    "ViewError",
    "format_error",
]
