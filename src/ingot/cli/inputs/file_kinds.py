"""What kind of file a command was given: found by what the file holds, not by its name. Nothing of it is run.

identify(path)      Kind.ONNX, …; None where it is none of those that are known
explain(path)       the error for a file that is neither a factory nor a file of Ingot's: what it is, and what to do
"""

from __future__ import annotations

import ast
import pickletools
import zipfile
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import BinaryIO

from ingot.errors import format_error


class Kind(Enum):
    """Kinds of files that people have when they have a model; the value is what a message calls one."""

    INGOT = "a file of Ingot"
    PYTHON = "a Python file"
    SCRIPT = "a TorchScript file"
    EXPORTED = "a file of torch.export"
    STATE_DICT = "a file of tensors that torch.save wrote"
    PICKLED = "a pickled module that torch.save wrote"
    PACKAGE = "a file of torch.package"
    ONNX = "an ONNX model"
    SAFETENSORS = "a file of tensors in safetensors"
    GGUF = "a GGUF model"
    TFLITE = "a TensorFlow Lite model"
    HDF5 = "an HDF5 file"
    NUMPY = "a file of NumPy arrays"
    LIBRARY = "a compiled library"
    FOLDER = "a folder"


# What names of such files end in: of a file that is not there, nothing else is known.
SUFFIXES = (
    *(".ingot", ".py", ".pt", ".pth", ".pt2", ".ts", ".ptl", ".onnx", ".safetensors", ".bin", ".gguf", ".tflite"),
    *(".h5", ".npy", ".npz", ".so"),
)
# Of the first bytes: (offset, bytes).
_MAGIC = {
    Kind.GGUF: (0, b"GGUF"),
    Kind.TFLITE: (4, b"TFL3"),
    Kind.HDF5: (0, b"\x89HDF\r\n\x1a\n"),
    Kind.NUMPY: (0, b"\x93NUMPY"),
    Kind.LIBRARY: (0, b"\x7fELF"),
}
_HEAD = 32
# Larger files are not read as Python.
_TEXT = 1 << 20
# The pickled number 0x1950a86a20f9469cfc6c at the head of what torch.save wrote before 1.6.
_OLD_TORCH = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
# Where the classes of a pickle of tensors and containers come from.
_PLAIN = ("torch._utils", "torch", "torch.storage", "collections", "builtins", "numpy", "_codecs")


def identify(path: Path) -> Kind | None:
    """The kind of a file or folder, None where it is not known. Raises OSError where it cannot be read."""
    if path.is_dir():
        return Kind.FOLDER
    with path.open("rb") as file:
        head = file.read(_HEAD)
        for kind, (offset, magic) in _MAGIC.items():
            if head[offset : offset + len(magic)] == magic:
                return kind
        if zipfile.is_zipfile(file):
            return _identify_zip(file)
        if _OLD_TORCH in head:
            return Kind.STATE_DICT
        if head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") < 1 << 40:
            return Kind.SAFETENSORS
        if _is_onnx(file):
            return Kind.ONNX
    return Kind.PYTHON if _parse(path) is not None else None


def _identify_zip(file: BinaryIO) -> Kind | None:
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            inner = {name.partition("/")[2] for name in names}
            if "manifest.json" in names:
                return Kind.INGOT
            if "archive_format" in inner or "serialized_exported_program.json" in {*names, *inner}:
                return Kind.EXPORTED
            if "constants.pkl" in inner:
                return Kind.SCRIPT
            if ".data/extern_modules" in inner:
                return Kind.PACKAGE
            pickled = [name for name in names if name.endswith("/data.pkl")]
            if pickled:
                modules = set(_list_modules(archive.read(pickled[0])))
                return Kind.STATE_DICT if modules <= set(_PLAIN) else Kind.PICKLED
            return Kind.NUMPY if names and all(name.endswith(".npy") for name in names) else None
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return None


def _list_modules(pickled: bytes) -> Iterator[str]:
    """The modules whose names a pickle would import, read without unpickling it. Raises ValueError."""
    texts: list[str] = []
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name == "GLOBAL":
            yield str(argument).partition(" ")[0]
        elif opcode.name == "STACK_GLOBAL" and len(texts) >= 2:
            yield texts[-2]
        elif isinstance(argument, str):
            texts.append(argument)


# Fields of ONNX's ModelProto, and how protobuf writes each: 0 a number, 2 so many bytes.
_MODEL_FIELDS = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2}


def _is_onnx(file: BinaryIO) -> bool:
    """Whether a file is a ModelProto that holds a graph; only the heads of its fields are read."""
    size = file.seek(0, 2)
    file.seek(0)
    seen: set[int] = set()
    while file.tell() < size:
        tag = _number(file)
        if tag is None or _MODEL_FIELDS.get(tag >> 3) != tag & 7:
            return False
        value = _number(file)
        if value is None or (tag & 7 == 2 and file.tell() + value > size):
            return False
        if tag & 7 == 2:
            file.seek(value, 1)
        seen.add(tag >> 3)
    return {1, 7} <= seen


def _number(file: BinaryIO) -> int | None:
    """A number of protobuf's variable length; None where there is none."""
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            return None
        value |= (byte[0] & 127) << shift
        if byte[0] < 128:
            return value
    return None


def _parse(path: Path) -> ast.Module | None:
    """A file as Python, where it is a text that looks like it: a word alone is Python, too."""
    if path.stat().st_size > _TEXT:
        return None
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    made = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign)
    return tree if path.suffix == ".py" or any(isinstance(node, made) for node in tree.body) else None


def list_functions(path: Path) -> list[str]:
    """The functions of a Python file that can be called without arguments, in their order; the file does not run."""
    tree = _parse(path)
    found = []
    for node in tree.body if tree is not None else ():
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            given = node.args
            needed = len(given.posonlyargs) + len(given.args) - len(given.defaults)
            if needed <= 0 and all(default is not None for default in given.kw_defaults):
                found.append(node.name)
    return found


def explain(path: Path, kind: Kind | None) -> str:
    """Why a file that is neither a factory nor of Ingot cannot be taken, and what to do."""
    if kind is None:
        return format_error(
            f"{path} is neither a factory nor a file of Ingot.",
            why="its content is not of any kind that Ingot knows",
            fix="write pkg.module:factory, path/to/file.py:factory, or the name of a .ingot file",
        )
    what = {Kind.PYTHON: f"{path} names a Python file, and not the function in it that makes the model."}
    return format_error(what.get(kind, f"{path} is {kind.value}."), why=_WHY.get(kind), fix=_fix(path, kind))


_WHY = {
    Kind.SCRIPT: "`ingot capture` reads it, and writes a program that the other commands take",
    Kind.EXPORTED: "`ingot capture` reads it, and writes a program that the other commands take",
    Kind.STATE_DICT: "it holds weights, and not the model that they belong to",
    Kind.SAFETENSORS: "it holds weights, and not the model that they belong to",
    Kind.PICKLED: "reading it runs code that the file names, and needs the classes of its modules",
    Kind.ONNX: "Ingot writes ONNX, and reads models of PyTorch",
    Kind.FOLDER: "a model is named by a factory, a function that makes it",
}


def _fix(path: Path, kind: Kind) -> str:
    made = path.with_suffix(".ingot").name
    if kind is Kind.PYTHON:
        functions = list_functions(path)
        if functions:
            return "write " + " or ".join(f"{path}:{name}" for name in functions[:4])
        return f"add a function `def factory(): return model, (x,), {{}}` to it, and write {path}:factory"
    if kind is Kind.SCRIPT:
        return f'`ingot capture {path} --input "x=f32[1,3]" -o {made}`, with your sizes, then use {made}'
    if kind is Kind.EXPORTED:
        return f"`ingot capture {path} -o {made}`, then use {made}"
    if kind is Kind.STATE_DICT:
        return (
            "write a factory that builds the model and calls "
            f'model.load_state_dict(torch.load("{path}", weights_only=True)), and name it: file.py:factory'
        )
    if kind is Kind.SAFETENSORS:
        return (
            "write a factory that builds the model and calls "
            f'model.load_state_dict(safetensors.torch.load_file("{path}")), and name it: file.py:factory'
        )
    if kind is Kind.PICKLED:
        return f'write a factory that returns torch.load("{path}", weights_only=False), if you trust the file'
    if kind is Kind.ONNX:
        return "name the PyTorch model that the file was exported from: file.py:factory; ONNX Runtime runs the file"
    if kind is Kind.INGOT:
        return "give a command that takes files of Ingot: inspect, compile, bench, run"
    return "write a factory that makes the PyTorch model, and name it: file.py:factory"
