"""A compiled model's library, called through ctypes: the functions of include/ingot.h, and nothing more.

    library = Library(container.read("native/x86-64-v4.so"))      in memory, or in a private temporary file
    model = NativeModel(library, weights, threads=2)
    model.sizes(inputs), model.run(inputs, outputs), model.seed(7), model.close()

The bytes of a library are run, its constructors by loading it already: its caller trusts the file, and has
checked it first. docs/security.md says what that means.
"""

import ctypes
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import (
    AssertionFailed,
    ClosedModel,
    DamagedFile,
    DeviceUnavailable,
    DivisionByZero,
    IndexOutOfRange,
    IngotError,
    InputError,
    OutOfMemory,
    format_error,
)
from . import elf, macho
from .copy_guard import Uncopied

ALIGNMENT = 64
THREADS_LIMIT = 1024

_MESSAGE_SIZE = 2048
_STATUS: dict[int, tuple[type[IngotError], str]] = {
    1: (InputError, "the model was called with something it was not compiled for"),
    2: (AssertionFailed, "an assertion of the model failed"),
    3: (IndexOutOfRange, "an index is out of range"),
    4: (OutOfMemory, "there is no memory for what the model needs"),
    5: (DivisionByZero, "an integer was divided by zero"),
    6: (DeviceUnavailable, "there is no device that the model can run on"),
}
# Checks of a library's bytes before they are loaded, by system.
_CHECKS = {"linux": elf.find_problem, "darwin": macho.find_problem}
_RTLD_NOLOAD = 4  # glibc's and musl's; Python's os module does not always have it


class NativeTensor(ctypes.Structure):
    """`ingot_tensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("device", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    )


TENSOR_SIZE = ctypes.sizeof(NativeTensor)


class CallFrame:
    """What one call of known sizes writes its addresses to: the tensors, inputs first, and room for a message."""

    __slots__ = ("_tensors", "addresses", "inputs", "message", "message_at", "outputs")

    def __init__(self, tensors: bytes, inputs: int) -> None:
        """`tensors`: of the call, without addresses; `inputs`: how many of them are inputs."""
        self._tensors = ctypes.create_string_buffer(tensors, max(len(tensors), 1))
        self.inputs = ctypes.addressof(self._tensors)
        self.outputs = self.inputs + inputs * TENSOR_SIZE
        words = memoryview(self._tensors).cast("B")[: len(tensors)].cast("Q")
        self.addresses = words[:: TENSOR_SIZE // 8]  # the first word of each tensor
        self.message = ctypes.create_string_buffer(_MESSAGE_SIZE)
        self.message_at = ctypes.addressof(self.message)


class _Info(ctypes.Structure):
    _fields_ = (
        ("abi", ctypes.c_int32),
        ("inputs", ctypes.c_int32),
        ("outputs", ctypes.c_int32),
        ("symbols", ctypes.c_int32),
        ("isa", ctypes.c_char_p),
        ("weights", ctypes.c_char_p),
        ("weights_size", ctypes.c_uint64),
    )


_Tensors = ctypes.POINTER(NativeTensor)
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ingot_describe": (ctypes.POINTER(_Info), ()),
    "ingot_open": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))),
    "ingot_sizes": (
        ctypes.c_int,
        (ctypes.c_void_p, _Tensors, ctypes.POINTER(ctypes.c_int64), ctypes.c_char_p, ctypes.c_size_t),
    ),
    "ingot_run": (ctypes.c_int, (ctypes.c_void_p, _Tensors, _Tensors, ctypes.c_char_p, ctypes.c_size_t)),
    "ingot_seed": (None, (ctypes.c_void_p, ctypes.c_uint64)),
    "ingot_close": (None, (ctypes.c_void_p,)),
}


class Interval(ctypes.Structure):
    """`ig_interval`: when a thread worked on a launch, in seconds from the start of the call; thread -1 is of the
    launch itself, until all threads were done."""

    _fields_ = (
        ("begin", ctypes.c_double),
        ("end", ctypes.c_double),
        ("launch", ctypes.c_int64),
        ("thread", ctypes.c_int64),
    )

    begin: float
    end: float
    launch: int
    thread: int


# Not part of the header: only Ingot's own profiler uses them. Libraries of other versions may be without.
_PROFILING: dict[str, tuple[Any, ...]] = {
    "ingot_profile": (_Tensors, _Tensors, ctypes.POINTER(ctypes.c_double), ctypes.c_char_p, ctypes.c_size_t),
    "ingot_trace": (
        _Tensors, _Tensors, ctypes.POINTER(Interval), ctypes.c_int64, ctypes.POINTER(ctypes.c_int64), ctypes.c_char_p,
        ctypes.c_size_t,
    ),
}  # fmt: skip
# ingot_run and ingot_enqueue with plain numbers: to convert arrays takes longer than many calls.
_PLAIN = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_PlainRun = ctypes.CFUNCTYPE(*_PLAIN, ctypes.c_void_p, ctypes.c_size_t)
_PlainEnqueue = ctypes.CFUNCTYPE(*_PLAIN, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class NativeImage(ctypes.Structure):
    """`ingot_image`."""

    _fields_ = (("architecture", ctypes.c_char_p), ("data", ctypes.c_void_p), ("size", ctypes.c_size_t))


_DEVICE_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "ingot_open_device": (
        ctypes.c_void_p, ctypes.POINTER(NativeImage), ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_char_p, ctypes.c_size_t,
    ),
    "ingot_enqueue": (ctypes.c_void_p, _Tensors, _Tensors, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t),
}  # fmt: skip


class NativeLibrary(Uncopied):
    """A loaded library. It is unloaded when the last reference to it goes.

    Raises DamagedFile for bytes that are not a library with these functions, where that can be seen before anything of
    them runs; `path` and `member` are for the message.
    """

    ingot_open: Any
    ingot_sizes: Any
    ingot_run: Any
    ingot_seed: Any
    ingot_close: Any
    ingot_profile: Any
    ingot_trace: Any
    ingot_open_device: Any
    ingot_enqueue: Any
    ingot_describe: Any

    def __init__(self, data: memoryview, *, path: str | None = None, member: str | None = None) -> None:
        def damage_error(why: str) -> DamagedFile:
            fix = "compile the model again, on this kind of machine and system"
            return DamagedFile("the library cannot be loaded", why, fix, path=path, member=member)

        find_problem = _CHECKS.get(sys.platform)
        if find_problem is not None and (problem := find_problem(data, _FUNCTIONS)) is not None:
            raise damage_error(problem)
        try:
            library, unload = load_bytes(data)
        except OSError as failure:
            raise damage_error(str(failure)) from None
        _on_release(self, unload)
        for name, (result, arguments) in _FUNCTIONS.items():
            try:
                function = getattr(library, name)
            except AttributeError:
                raise damage_error(f"it has no function {name}") from None
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        profiling = {name: (ctypes.c_void_p, *arguments) for name, arguments in _PROFILING.items()}
        for name, arguments in (profiling | _DEVICE_FUNCTIONS).items():
            function = getattr(library, name, None)
            if function is not None:
                function.restype, function.argtypes = ctypes.c_int, arguments
            setattr(self, name, function)
        info = self.ingot_describe().contents
        self.abi: int = info.abi
        self.inputs: int = info.inputs
        self.outputs: int = info.outputs
        self.isa = (info.isa or b"").decode("utf-8", "replace")
        self.weights_sha256 = (info.weights or b"").decode("utf-8", "replace")
        self.weights_size: int = info.weights_size


class NativeModel(Uncopied):
    """One `ingot_model`: its buffers, its random state, its threads. Any number of threads may call it at once."""

    def __init__(self, library: NativeLibrary, weights: "Blob", threads: int = 0) -> None:
        """`threads`: 0 for one per core."""
        handle = ctypes.c_void_p()
        message = ctypes.create_string_buffer(_MESSAGE_SIZE)
        status = self._open(library, weights, threads, handle, message)
        if status or not handle.value:
            raise _error_of(status, message, "The model could not be opened.")
        self._library = library
        self._handle = handle.value
        self._plain_run = _PlainRun(_address(library.ingot_run))
        self._lock = threading.Lock()
        self._calls = 0
        self._is_closing = False

        def release(kept: Blob = weights) -> None:  # the library reads the weights for as long as the model is open
            library.ingot_close(handle.value)

        self._release = _on_release(self, release)

    def _open(
        self, library: NativeLibrary, weights: "Blob", threads: int, handle: ctypes.c_void_p, message: Any
    ) -> int:
        status: int = library.ingot_open(weights.address, threads, ctypes.byref(handle))
        return status

    def sizes(self, inputs: Any, count: int) -> list[int]:
        """The sizes of every output, one after another: `count` numbers."""
        sizes = (ctypes.c_int64 * max(count, 1))()
        self._call(self._library.ingot_sizes, inputs, sizes)
        return sizes[:count]

    def run(self, inputs: Any, outputs: Any) -> None:
        self._call(self._library.ingot_run, inputs, outputs)

    def run_frame(self, frame: CallFrame, stream: int = 0) -> None:
        """As `run`, with what the frame holds. Only a model on a GPU has streams."""
        self._enter()
        try:
            status = self._plain_run(self._handle, frame.inputs, frame.outputs, frame.message_at, _MESSAGE_SIZE)
        finally:
            self._leave()
        if status:
            raise _error_of(status, frame.message)

    def profile(self, inputs: Any, outputs: Any, launches: int) -> list[float]:
        """As `run`; returns the seconds of each launch."""
        seconds = (ctypes.c_double * max(launches, 1))()
        self._call(self._library.ingot_profile, inputs, outputs, seconds)
        return seconds[:launches]

    @property
    def can_trace(self) -> bool:
        return self._library.ingot_trace is not None

    def trace(self, inputs: Any, outputs: Any, room: int) -> tuple[int, list[Interval]]:
        """As `run`; returns how many intervals there were, and those for which there was room."""
        intervals, count = (Interval * max(room, 1))(), ctypes.c_int64()
        self._call(self._library.ingot_trace, inputs, outputs, intervals, room, ctypes.byref(count))
        return count.value, intervals[: min(room, count.value)]

    def seed(self, value: int) -> None:
        self._enter()
        try:
            self._library.ingot_seed(self._handle, value)
        finally:
            self._leave()

    def close(self) -> None:
        """Releases threads and memory, now or when the last call that is under way returns."""
        with self._lock:
            self._is_closing = True
            if self._calls:
                return
        self._release()

    def _call(self, function: Callable[..., int], *arguments: Any) -> None:
        message = ctypes.create_string_buffer(_MESSAGE_SIZE)
        self._enter()
        try:
            status = function(self._handle, *arguments, message, _MESSAGE_SIZE)
        finally:
            self._leave()
        if status:
            raise _error_of(status, message)

    def _enter(self) -> None:
        with self._lock:
            if self._is_closing:
                raise ClosedModel("The model is closed: load it again.")
            self._calls += 1

    def _leave(self) -> None:
        with self._lock:
            self._calls -= 1
            is_last = self._is_closing and not self._calls
        if is_last:
            self._release()


class NativeDeviceModel(NativeModel):
    """One `ingot_model` on a GPU: weights, state and memory lie there."""

    def __init__(
        self, library: NativeLibrary, weights: "Blob", images: Mapping[str, bytes | memoryview], device: int
    ) -> None:
        """`images` are by architecture; weights and images need not stay. Raises DeviceUnavailable."""
        self._images = {name: bytes(data) for name, data in images.items()}
        self._device = device
        super().__init__(library, weights)
        self._images = {}
        self._plain_enqueue = _PlainEnqueue(_address(library.ingot_enqueue))

    def _open(
        self, library: NativeLibrary, weights: "Blob", threads: int, handle: ctypes.c_void_p, message: Any
    ) -> int:
        if library.ingot_open_device is None:
            return 6
        images = (NativeImage * max(len(self._images), 1))()
        for image, (name, data) in zip(images, self._images.items(), strict=False):
            image.architecture, image.size = name.encode(), len(data)
            image.data = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p)
        status: int = library.ingot_open_device(
            weights.address, images, len(self._images), self._device, ctypes.byref(handle), message, len(message)
        )
        return status

    def enqueue(self, inputs: Any, outputs: Any, stream: int) -> None:
        """Queues a run on a stream of the driver's: its number, 0 for the default one."""
        self._call(self._library.ingot_enqueue, inputs, outputs, ctypes.c_void_p(stream))

    def run_frame(self, frame: CallFrame, stream: int = 0) -> None:
        """As `enqueue`, with what the frame holds."""
        self._enter()
        try:
            status = self._plain_enqueue(
                self._handle, frame.inputs, frame.outputs, stream, frame.message_at, _MESSAGE_SIZE
            )
        finally:
            self._leave()
        if status:
            raise _error_of(status, frame.message)


def _error_of(status: int, message: Any, what: str = "The call failed.") -> IngotError:
    """The error for a status, with the library's own message where there is one."""
    kind, sentence = _STATUS.get(status, (IngotError, f"the library returned the code {status}"))
    return kind(message.value.decode("utf-8", "replace") or format_error(what, why=sentence))


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class Blob:
    """The weights' bytes where they are mapped, from `begin` of a member on."""

    def __init__(self, member: memoryview, begin: int) -> None:
        self._bytes: NDArray[np.uint8] = np.frombuffer(member, np.uint8)
        self._begin = begin
        self.size = len(member) - begin

    @property
    def address(self) -> int:
        return int(self._bytes.ctypes.data) + self._begin

    @property
    def view(self) -> memoryview:
        return self._bytes[self._begin :].data


def tensors(shapes: Sequence[Sequence[int]], codes: Sequence[int]) -> Any:
    """An array of contiguous `ingot_tensor`s without data. It keeps what it points to alive; copies of it do not."""
    made: Any = (NativeTensor * max(len(shapes), 1))()
    made.kept = []
    for tensor, shape, code in zip(made, shapes, codes, strict=False):
        sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        made.kept.append(sizes)
        tensor.dtype, tensor.rank, tensor.shape = code, len(shape), sizes
    return made


def load_bytes(data: memoryview) -> tuple[ctypes.CDLL, Callable[[], None]]:
    """A library from memory, and how to unload it. Raises OSError."""
    if sys.platform == "linux":
        try:
            return _load_from_memory(data)
        except OSError:
            pass  # no memfd or no /proc here, or none that may hold code: a file then, whose error is the one to see
    import tempfile  # here, because what it imports costs more time than loading a library

    with tempfile.TemporaryDirectory(prefix="ingot-") as folder:  # no other user may enter it
        path = os.path.join(folder, "model.so")
        with open(path, "wb") as file:
            file.write(data)
        library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
    return library, lambda: _unload(library._handle)


def _load_from_memory(data: memoryview) -> tuple[ctypes.CDLL, Callable[[], None]]:
    descriptor = os.memfd_create("ingot")
    path = f"/proc/self/fd/{descriptor}"
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except BaseException:
        os.close(descriptor)
        raise

    def unload() -> None:
        _unload(library._handle)
        try:
            ctypes.CDLL(path, mode=_RTLD_NOLOAD)
        except OSError:
            os.close(descriptor)
        # Otherwise it is still there, for reasons of its own. The loader knows libraries by their paths, and would take
        # the next one at this path for the same: the number must not be used again.

    return library, unload


def _unload(handle: int) -> None:
    close = ctypes.CDLL(None).dlclose
    close.argtypes = (ctypes.c_void_p,)
    close(handle)


def _on_release(owner: object, act: Callable[[], None]) -> Callable[[], None]:
    finalizer = weakref.finalize(owner, act)
    finalizer.atexit = False  # a process that ends gives everything back by itself, and sooner
    return finalizer
