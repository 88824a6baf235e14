"""NVIDIA's driver through ctypes: what there is, and memory for arrays of our own. Models do without: their library
opens the driver itself."""

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

from .. import config
from ..errors import DeviceUnavailable, OutOfMemory, format_error

_OUT_OF_MEMORY = 2
_MAJOR, _MINOR = 75, 76  # of CUdevice_attribute


class CudaDevice(NamedTuple):
    """One GPU: its name, its architecture as images are named, its memory in bytes."""

    number: int
    name: str
    architecture: str
    memory: int


class CudaDriver:
    """The loaded driver. Every method raises DeviceUnavailable, or OutOfMemory, where the driver fails."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Use `find_driver`."""
        self._library = library
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self.call("cuInit", ctypes.c_uint(0))
        version = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        # Of CUDA, as the driver supports it: (13, 0).
        self.version = (version.value // 1000, version.value % 1000 // 10)

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            why = ctypes.c_char_p()
            self._library.cuGetErrorString(status, ctypes.byref(why))
            said = f"{(why.value or b'an error without a name').decode()} ({status}, in {name})"
            if status == _OUT_OF_MEMORY:
                raise OutOfMemory(format_error("There is no memory left on the GPU.", why=said))
            raise DeviceUnavailable(format_error("The GPU cannot be used.", why=f"the CUDA driver says: {said}"))

    def devices(self) -> list[CudaDevice]:
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return [self._describe(number) for number in range(count.value)]

    def _describe(self, number: int) -> CudaDevice:
        device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(128), ctypes.c_size_t()
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(number))
        self.call("cuDeviceGetName", name, ctypes.c_int(len(name)), device)
        self.call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
        self.call("cuDeviceGetAttribute", ctypes.byref(major), ctypes.c_int(_MAJOR), device)
        self.call("cuDeviceGetAttribute", ctypes.byref(minor), ctypes.c_int(_MINOR), device)
        return CudaDevice(number, name.value.decode("utf-8", "replace"), f"sm_{major.value}{minor.value}", memory.value)

    @contextlib.contextmanager
    def context(self, number: int) -> Iterator[None]:
        """Makes the device's primary context current, and the one before it again afterwards."""
        if number not in self._contexts:
            device, made = ctypes.c_int(), ctypes.c_void_p()
            self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(number))
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(made), device)
            self._contexts[number] = made  # held for as long as the process lives
        self.call("cuCtxPushCurrent_v2", self._contexts[number])
        try:
            yield
        finally:
            before = ctypes.c_void_p()
            self.call("cuCtxPopCurrent_v2", ctypes.byref(before))

    def allocate(self, size: int, device: int) -> int:
        address = ctypes.c_uint64()
        with self.context(device):
            self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        return address.value

    def free(self, address: int, device: int) -> None:
        with self.context(device):
            self.call("cuMemFree_v2", ctypes.c_uint64(address))

    def copy_to_host(self, to: int, address: int, size: int, device: int) -> None:
        """Waits for all that the default stream has before."""
        with self.context(device):
            if size:
                where = (ctypes.c_void_p(to), ctypes.c_uint64(address))
                self.call("cuMemcpyDtoHAsync_v2", *where, ctypes.c_size_t(size), ctypes.c_void_p(0))
            self.call("cuStreamSynchronize", ctypes.c_void_p(0))

    def copy_to_device(self, address: int, source: int, size: int, device: int) -> None:
        with self.context(device):
            if size:
                where = (ctypes.c_uint64(address), ctypes.c_void_p(source))
                self.call("cuMemcpyHtoDAsync_v2", *where, ctypes.c_size_t(size), ctypes.c_void_p(0))
            self.call("cuStreamSynchronize", ctypes.c_void_p(0))

    def synchronize(self, device: int) -> None:
        """Waits for the default stream."""
        with self.context(device):
            self.call("cuStreamSynchronize", ctypes.c_void_p(0))


def find_driver() -> CudaDriver:
    """The driver of this machine. Raises DeviceUnavailable where there is none, or no device."""
    return _open_driver(config.driver_library())


@functools.cache
def _open_driver(name: str) -> CudaDriver:
    try:
        library = ctypes.CDLL(name)
    except OSError as failure:
        raise DeviceUnavailable(
            format_error("There is no CUDA driver.", why=str(failure), fix="install the NVIDIA driver on this machine")
        ) from None
    return CudaDriver(library)
