"""When a GPU ran which kernel, by CUPTI: NVIDIA's library of records, which comes with CUDA toolkits, with torch for
CUDA, and as the package nvidia-cuda-cupti."""

import contextlib
import ctypes
import functools
import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_NAMES = ("libcupti.so.13", "libcupti.so.12", "libcupti.so")
_CONCURRENT_KERNEL, _FORCED = 10, 1  # of CUpti_ActivityKind, CUpti_ActivityFlag
_BUFFER = 1 << 20
_Request = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_Complete = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)


class KernelRecord(NamedTuple):
    """A kernel that ran: its name, and nanoseconds on the GPU's clock."""

    name: str
    begin: int
    end: int


class _Record(ctypes.Structure):
    """The first members of CUpti_ActivityKernel4 and all later ones, up to the kernel's name."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("configuration", ctypes.c_char * 12),
        ("start", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
        ("completed", ctypes.c_uint64),
        ("places", ctypes.c_uint32 * 3),
        ("grid", ctypes.c_int32 * 3),
        ("block", ctypes.c_int32 * 3),
        ("shared", ctypes.c_int32 * 2),
        ("local", ctypes.c_uint32 * 2),
        ("correlation", ctypes.c_uint32),
        ("grid_id", ctypes.c_int64),
        ("name", ctypes.c_char_p),
    )


class KernelRecorder:
    """CUPTI's records of one process. One thread records at a time."""

    def __init__(self, library: Any) -> None:
        """Use `find_recorder`."""
        self._library = library
        self._lock = threading.Lock()
        self._buffers: dict[int, Any] = {}
        self._records: list[KernelRecord] = []
        self._callbacks = (_Request(self._give_buffer), _Complete(self._take_buffer))

    @contextlib.contextmanager
    def record(self) -> Iterator[list[KernelRecord]]:
        """A list that holds, at the end, the kernels that ran meanwhile, in the order in which they began. It stays
        empty where CUPTI cannot record: another profiler has the GPU, or it is not allowed."""
        made: list[KernelRecord] = []
        with self._lock:
            self._records = []
            is_on = not self._library.cuptiActivityRegisterCallbacks(*self._callbacks)
            is_on = is_on and not self._library.cuptiActivityEnable(_CONCURRENT_KERNEL)
            try:
                yield made
            finally:
                if is_on:
                    self._library.cuptiActivityFlushAll(_FORCED)
                    self._library.cuptiActivityDisable(_CONCURRENT_KERNEL)
                made += sorted(self._records, key=lambda record: record.begin)

    def _give_buffer(self, buffer: Any, size: Any, most: Any) -> None:
        memory = ctypes.create_string_buffer(_BUFFER + 8)
        address = (ctypes.addressof(memory) + 7) // 8 * 8
        self._buffers[address] = memory
        buffer[0], size[0], most[0] = address, _BUFFER, 0

    def _take_buffer(self, context: Any, stream: int, buffer: int, size: int, valid: int) -> None:
        record = ctypes.c_void_p()
        while not self._library.cuptiActivityGetNextRecord(
            ctypes.c_void_p(buffer), ctypes.c_size_t(valid), ctypes.byref(record)
        ):
            found = ctypes.cast(record, ctypes.POINTER(_Record)).contents
            if found.kind == _CONCURRENT_KERNEL:
                self._records.append(KernelRecord((found.name or b"").decode(), found.start, found.end))
        self._buffers.pop(buffer, None)


@functools.cache
def find_recorder() -> KernelRecorder | None:
    """The recorder of this process; None where CUPTI is not installed."""
    for name in _candidates():
        with contextlib.suppress(OSError):
            return KernelRecorder(ctypes.CDLL(name))
    return None


def _candidates() -> Iterator[str]:
    yield from _NAMES
    package = importlib.util.find_spec("nvidia")
    folders = [Path(place) / "*" / "lib" for place in (package.submodule_search_locations or ())] if package else []
    folders += [Path("/usr/local/cuda/lib64"), Path("/usr/local/cuda/extras/CUPTI/lib64")]
    for folder in folders:
        root = Path(folder.anchor)
        for name in _NAMES:
            yield from map(str, sorted(root.glob(str(folder.relative_to(root) / name))))
