"""A library for another architecture, run by qemu in a process of its own and called as if it were loaded here.

    library = EmulatedLibrary(compiled_bytes, cpu="max")       what NativeLibrary is for this machine's own
    library.ingot_run(model, inputs, outputs, message, size)   the tensors of this process go there and back

The process runs driver.c, which is compiled for that architecture as well: no Python is needed there. A request is one
letter, the prefix of the functions (empty, or a sample's own in a library of many) and 64-bit numbers, texts with their
length before them, and tensors: dtype, rank, sizes, number of bytes, bytes.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ingot.codegen.build.isa import find_isa
from ingot_runtime import dtypes
from ingot_runtime.native.native_library import NativeLibrary, NativeTensor
from tests.support.operator_samples.batched_compile import Machine

ARCHITECTURE = "aarch64"
# The processors that qemu plays for each instruction set: none has more than the code may use.
PROCESSORS = {"aarch64": "cortex-a72", "aarch64-dotprod": "neoverse-n1", "aarch64-bf16": "max"}
# Where distributions put the C library of another architecture.
_SYSROOT = Path(f"/usr/{ARCHITECTURE}-linux-gnu")
_DRIVER = Path(__file__).with_name("driver.c")
_FOLDER = Path(tempfile.gettempdir()) / f"ingot-{ARCHITECTURE}-emulation"
_NUMBER = struct.Struct("<q")
_Run = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
)
_DIED = 99
_BYTES = {dtype.code: dtype.numpy.itemsize for dtype in dtypes.BY_NAME.values()}


def find_missing() -> str | None:
    """What this machine lacks to run such libraries, to skip a test with; None where it has all."""
    if not sys.platform.startswith("linux"):
        return "qemu-user runs on Linux only"
    if shutil.which(f"qemu-{ARCHITECTURE}") is None:
        return f"no qemu-{ARCHITECTURE}: install the system's package qemu-user"
    if not (_SYSROOT / "lib").is_dir():
        return f"no C library in {_SYSROOT}: install the system's package libc6-arm64-cross"
    if importlib.util.find_spec("ziglang") is None:
        return "no ziglang: pip install ziglang"
    return None


def compiler_command() -> list[str]:
    return [sys.executable, "-m", "ziglang", "cc", "-target", f"{ARCHITECTURE}-linux-gnu"]


@functools.cache
def build_driver() -> Path:
    text = _DRIVER.read_bytes()
    _FOLDER.mkdir(exist_ok=True)
    program = _FOLDER / f"driver-{hashlib.sha256(text).hexdigest()[:20]}"
    if not program.exists():
        made = program.with_suffix(f".{os.getpid()}")
        command = [*compiler_command(), "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o", made, _DRIVER]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:4000]
        made.rename(program)
    return program


class EmulatedMachine(Machine):
    """Runs operator samples, compiled for one instruction set."""

    def __init__(self, isa: str) -> None:
        self.isa = isa
        # zig adds checks of undefined behaviour where it does not optimize.
        self.compiler = (*compiler_command(), f"-mcpu={find_isa(isa).zig_cpu}", "-fno-sanitize=undefined")

    def load(self, library: Path) -> EmulatedLibrary:
        return EmulatedLibrary(library.read_bytes(), PROCESSORS[self.isa], has_several=True)


class EmulatorDied(AssertionError):
    """The process ended in the middle of a request."""


class _Process:
    """qemu with the driver and one library."""

    def __init__(self, library: bytes, cpu: str) -> None:
        handle, path = tempfile.mkstemp(suffix=".so", prefix=f"ingot-{ARCHITECTURE}-")
        with os.fdopen(handle, "wb") as file:
            file.write(library)
        command = [f"qemu-{ARCHITECTURE}", "-L", str(_SYSROOT), "-cpu", cpu, str(build_driver()), path]
        given = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # of this architecture
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=given
        )
        self._path = path
        weakref.finalize(self, _end, self._process, path)

    def write(self, *parts: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"".join(parts))
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._error() from None

    def read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        if len(data) < size:
            raise self._error()
        return data

    def number(self) -> int:
        value: int = _NUMBER.unpack(self.read(_NUMBER.size))[0]
        return value

    def text(self) -> bytes:
        return self.read(self.number())

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def _error(self) -> EmulatorDied:
        assert self._process.stderr is not None
        said = self._process.stderr.read().decode(errors="replace")
        return EmulatorDied(f"the emulator ended with {self._process.wait()}: {said[:2000]}")


def _end(process: subprocess.Popen[bytes], path: str) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    os.unlink(path)


class EmulatedLibrary(NativeLibrary):
    """Has what NativeLibrary has. `hwcaps` is what the emulated kernel says of the processor. For one thread."""

    def __init__(self, data: bytes | memoryview, cpu: str = "max", *, has_several: bool = False) -> None:
        self._data, self._cpu = bytes(data), cpu
        self._process = _Process(self._data, cpu)
        self._prefix = ""
        itself = weakref.ref(self)

        def run(model: int, inputs: int, outputs: int, message: int, room: int) -> int:
            library = itself()
            assert library is not None
            return library._run(model, inputs, outputs, message, room)

        self.ingot_run = _Run(run)  # whose address is taken
        if not has_several:
            self._describe()

    def __getitem__(self, name: str) -> Any:
        """A function of a library that has several models: its name with the prefix of one of them."""
        prefix, function = name.split("ingot_")
        if prefix != self._prefix:
            self._prefix = prefix
            if self._process.has_ended():
                self._process = _Process(self._data, self._cpu)
            self._describe()
        return getattr(self, f"ingot_{function}")

    def _describe(self) -> None:
        process = self._process
        self._request(b"d")
        self.hwcaps = (process.number(), process.number())
        self.abi, self.inputs, self.outputs, self.weights_size = (process.number() for _ in range(4))
        self.isa = process.text().decode()
        self.weights_sha256 = process.text().decode()

    def ingot_open(self, weights: Any, threads: Any, model: Any) -> int:
        address = _value(weights)
        data = ctypes.string_at(address, self.weights_size) if self.weights_size else b""
        self._request(b"o", _number(_value(threads)), _number(len(data)), data)
        status = self._process.number()
        ctypes.cast(model, ctypes.POINTER(ctypes.c_void_p))[0] = self._process.number()
        return status

    def ingot_sizes(self, model: Any, inputs: Any, sizes: Any, message: Any, room: Any) -> int:
        count = len(sizes)
        given = [_pack(inputs[i], inputs[i].data and not inputs[i].rank) for i in range(self.inputs)]
        self._request(b"s", _number(_value(model)), _number(self.inputs), _number(count), *given)
        status = self._answer(message)
        found = self._process.read(count * _NUMBER.size)
        ctypes.memmove(sizes, found, len(found))
        return status

    def _run(self, model: int, inputs: int, outputs: int, message: int, room: int) -> int:
        try:
            given = (NativeTensor * self.inputs).from_address(inputs)
            made = (NativeTensor * self.outputs).from_address(outputs)
            packed = [*(_pack(tensor, True) for tensor in given), *map(_head, made)]
            self._request(b"r", _number(model), _number(self.inputs), _number(self.outputs), *packed)
            status, said = self._process.number(), self._process.text()
            for tensor in (*given, *made):
                size = _size(tensor)
                data = self._process.read(size)
                # What the model did not change may lie in memory that cannot be written.
                if size and ctypes.string_at(tensor.data, size) != data:
                    ctypes.memmove(tensor.data, data, size)
        except Exception as error:  # which a function that is called from C cannot raise
            status, said = _DIED, str(error).encode()
        said = said[: room - 1]
        ctypes.memmove(message, said + b"\0", len(said) + 1)
        return status

    def ingot_seed(self, model: Any, seed: Any) -> None:
        value = _value(seed)
        self._request(b"e", _number(_value(model)), _number(value - (1 << 64) if value >> 63 else value))

    def ingot_close(self, model: Any) -> None:
        self._request(b"c", _number(_value(model)))

    def _request(self, letter: bytes, *parts: bytes) -> None:
        name = self._prefix.encode()
        self._process.write(letter, _number(len(name)), name, *parts)

    def _answer(self, message: Any) -> int:
        status = self._process.number()
        said = self._process.text()[: len(message) - 1]
        message.value = said
        return status


def _value(number: Any) -> int:
    found = getattr(number, "value", number)
    return 0 if found is None else int(found)


def _number(value: int) -> bytes:
    return _NUMBER.pack(value)


def _shape(tensor: Any) -> Sequence[int]:
    return [tensor.shape[d] for d in range(tensor.rank)]


def _size(tensor: Any) -> int:
    size: int = _BYTES[tensor.dtype]
    for extent in _shape(tensor):
        size *= extent
    return size


def _head(tensor: Any, size: int | None = None) -> bytes:
    numbers = [tensor.dtype, tensor.rank, *_shape(tensor), _size(tensor) if size is None else size]
    return b"".join(map(_number, numbers))


def _pack(tensor: Any, filled: bool) -> bytes:
    data = ctypes.string_at(tensor.data, _size(tensor)) if filled and tensor.data else b""
    return _head(tensor, len(data)) + data
