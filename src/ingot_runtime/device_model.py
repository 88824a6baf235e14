"""A model that was compiled for a GPU.

    model = ingot_runtime.load("m.ingot", device=0)
    model(ids)                          arrays of the host in, arrays of the host out: they are copied
    model(DeviceArray.from_numpy(ids))  tensors of the device in, through DLPack; DeviceArrays out, nothing is copied
    model.run(leaves, stream=s)         queued on that stream; returns at once where every tensor lies on the device

A fault that the device finds in a call that was not waited for, a bad index, is raised by a later call.
"""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .container.manifest import InputSpec, OutputSpec, Spec
from .dtypes import BFLOAT16
from .errors import CallError, InputError, OutputError, format_error
from .model import Model, read_only_error
from .native import arrays, cuda_activity, dlpack, native_library
from .native.bfloat16 import BFloat16Array
from .native.bound_call import BoundCall
from .native.device_array import DeviceArray, DeviceTensor, stream_number, view_device
from .self_test import StoredSample

# What kernels of compiled models are called.
_KERNEL = re.compile(r"k\d+")
# Makes memory for a result: its shape, dtype and device; gives the result and its address.
Allocate = Callable[[tuple[int, ...], str, int], tuple[Any, int]]


def allocate_array(shape: tuple[int, ...], dtype: str, device: int) -> tuple[Any, int]:
    """A result as an array of our own."""
    made = DeviceArray(shape, dtype, device)
    return made, made.address


class DeviceModel(Model):
    """A loaded model on a GPU. Any number of threads may call it at once; one that has state runs one call at a time.

    `is_lazy`: the device is looked for when it is first needed.
    """

    def __init__(
        self,
        path: str,
        spec: Spec,
        library: native_library.NativeLibrary,
        weights: native_library.Blob,
        images: Mapping[str, bytes],
        device: int,
        sample: StoredSample | None,
        *,
        is_lazy: bool = False,
    ) -> None:
        """Use `load`."""
        self.device = device
        self._images = dict(images)
        self._is_lazy = is_lazy
        self._opening = threading.Lock()
        super().__init__(path, spec, library, weights, 0, sample)

    def again(self) -> "DeviceModel":
        return DeviceModel(
            self.path, self.spec, self._library, self._weights, self._images, self.device, self._sample,
            is_lazy=self._is_lazy,
        )  # fmt: skip

    def _start(self) -> None:
        if not self._is_lazy:
            self._opened = self._open_native()

    def _open_native(self) -> native_library.NativeDeviceModel:
        return native_library.NativeDeviceModel(self._library, self._weights, self._images, self.device)

    @property
    def _native(self) -> native_library.NativeModel:
        if self._opened is None:
            with self._opening:
                if self._opened is None:
                    self._opened = self._open_native()
        return self._opened

    def close(self) -> None:
        if self._opened is not None:
            super().close()

    # ------------------------------------------------------------------ calls

    def bind(self, shapes: Sequence[tuple[int, ...]]) -> BoundCall | None:
        """What calls with contiguous inputs of these sizes share, where all of them lie on the device; None for a model
        that writes to its inputs, or takes or returns numbers: such calls need more checks. Raises InputError."""
        spec = self.spec
        if self._mutated or self._symbols or any(output.is_scalar for output in spec.outputs):
            return None
        given: Any = [
            DeviceTensor(0, asked.dtype.name, tuple(shape), self.device)
            for asked, shape in zip(spec.inputs, shapes, strict=True)
        ]
        plan = self._plan(self._native, given)
        inputs, outputs = (type(one).from_buffer_copy(one) for one in (plan.inputs, plan.outputs))
        for tensor in (*inputs, *outputs):
            tensor.device = self.device + 1
        inputs.kept, outputs.kept = plan.inputs.kept, plan.outputs.kept  # the sizes that they point to
        names = [output.dtype.name for output in spec.outputs]
        counts = (len(spec.inputs), len(spec.outputs))
        return BoundCall(self._native, inputs, outputs, counts, plan.output_shapes, names)

    def run(
        self,
        leaves: Sequence[Any],
        buffers: Sequence[Any] = (),
        *,
        stream: Any = None,
        allocate: Allocate = allocate_array,
    ) -> list[Any]:
        """As `Model.run`, on a stream of the device's: its handle, None for the default one. Results lie on the device
        where an input does; `allocate` makes their memory."""
        number = stream_number(stream)
        return self._run_on_device(self._native, leaves, buffers, number, allocate)

    def record_kernels(self, leaves: Sequence[Any]) -> list[cuda_activity.KernelRecord]:
        """Runs the model as `run` does; returns its kernels as the GPU ran them. Nothing where CUPTI is not installed
        or may not record."""
        recorder = cuda_activity.find_recorder()
        if recorder is None:
            return []
        with recorder.record() as records:
            self._run(self._native, leaves, ())
        return [record for record in records if _KERNEL.fullmatch(record.name)]

    def _run(
        self,
        model: native_library.NativeModel,
        leaves: Sequence[Any],
        buffers: Sequence[Any],
        execute: Callable[[native_library.NativeModel, Any, Any], None] | None = None,
    ) -> list[Any]:
        return self._run_on_device(model, leaves, buffers, 0, allocate_array, execute)

    def _run_on_device(
        self,
        model: native_library.NativeModel,
        leaves: Sequence[Any],
        buffers: Sequence[Any],
        stream: int,
        allocate: Allocate,
        execute: Callable[[native_library.NativeModel, Any, Any], None] | None = None,
    ) -> list[Any]:
        held: list[Any] = []
        if len(leaves) != len(self.spec.inputs):
            raise InputError(f"The model takes {len(self.spec.inputs)} inputs, and got {len(leaves)}.")
        asked = zip(self.spec.inputs, self._places, leaves, strict=True)
        given = [self._take_tensor(one, place, leaf, held, stream) for one, place, leaf in asked]
        is_on_device = any(isinstance(one, DeviceTensor) for one in given)
        plan = self._plan(model, given)
        results, made = self._make_results(
            plan.output_shapes, buffers, held, stream, allocate if is_on_device else None
        )
        self._check_sharing(given, made, buffers)
        ready = [one if isinstance(one, DeviceTensor) or arrays.is_ready(one) else one.copy(order="C") for one in given]
        inputs = type(plan.inputs).from_buffer_copy(plan.inputs)
        outputs = type(plan.outputs).from_buffer_copy(plan.outputs)
        for tensors, values in ((inputs, ready), (outputs, made)):
            for tensor, value in zip(tensors, values, strict=False):
                if isinstance(value, DeviceTensor):
                    tensor.data, tensor.device = value.address, value.device + 1
                else:
                    tensor.data, tensor.device = arrays.address(value), 0
        if execute is not None:
            execute(model, inputs, outputs)
        elif is_on_device:
            assert isinstance(model, native_library.NativeDeviceModel)
            model.enqueue(inputs, outputs, stream)
        else:
            model.run(inputs, outputs)
        for number in self._mutated:
            before, after = given[number], ready[number]
            if not isinstance(before, DeviceTensor) and before is not after:
                before[...] = after
        return results if not any(out.is_scalar for out in self.spec.outputs) else _read_scalars(self.spec, results)

    def _take_tensor(self, asked: InputSpec, place: str, leaf: Any, held: list[Any], stream: int) -> Any:
        found = self._view(leaf, asked, len(asked.shape), place, stream, InputError)
        if found is None:
            return self._take_leaf(asked, place, leaf, held)
        if asked.symbol is not None:
            raise InputError(format_error(f"{place} is a size, and lies on the device.", fix="pass a Python number"))
        if asked.mutated and found.is_read_only:
            raise read_only_error(place)
        held.append(found.owner)
        return found

    def _view(
        self, value: Any, asked: InputSpec | OutputSpec, rank: int, place: str, stream: int, error: type[CallError]
    ) -> DeviceTensor | None:
        """A tensor on the model's device as the library can use it; None for one of the host. Raises `error`."""
        try:
            found = view_device(value, stream)
        except dlpack.NotImportable as failure:
            raise error(format_error(f"{place} cannot be used as it is.", why=str(failure))) from None
        if found is None:
            return None
        problem = None
        if found.dtype != asked.dtype.name:
            problem = f"is {found.dtype}, but the model was compiled for {asked.dtype.name}"
        elif len(found.shape) != rank:
            problem = f"has {len(found.shape)} dims, but the model was compiled for {rank}"
        elif found.device != self.device:
            problem = f"lies on the device {found.device}, and the model on {self.device}"
        elif not found.is_contiguous:
            problem = "is not contiguous"
        if problem is not None:
            raise error(format_error(f"{place} {problem}.", fix=f"pass a contiguous {asked.spelled} on that device"))
        return found

    def _make_results(
        self,
        shapes: Sequence[tuple[int, ...]],
        buffers: Sequence[Any],
        held: list[Any],
        stream: int,
        allocate: Allocate | None,
    ) -> tuple[list[Any], list[Any]]:
        """What the caller gets for each output, and where the library writes it."""
        results: list[Any] = []
        made: list[Any] = []
        for number, (asked, shape) in enumerate(zip(self.spec.outputs, shapes, strict=True)):
            buffer = buffers[number] if buffers else None
            place = f"the buffer for {asked.name}"
            if buffer is not None:
                found = self._view(buffer, asked, asked.rank, place, stream, OutputError)
                array = found if found is not None else self._take_buffer(buffer, asked, shape, place, held)
                if array.shape != shape or (found is not None and found.is_read_only):
                    raise OutputError(format_error(f"{place} is {array.shape}, but the output is {shape}."))
                results.append(buffer)
                made.append(array)
            elif allocate is not None and not asked.is_scalar:
                result, address = allocate(shape, asked.dtype.name, self.device)
                results.append(result)
                made.append(DeviceTensor(address, asked.dtype.name, shape, self.device))
            else:
                empty = self._empty(asked, shape)
                results.append(BFloat16Array(empty) if asked.dtype.name == BFLOAT16 and not asked.is_scalar else empty)
                made.append(empty)
        return results, made

    def _check_sharing(self, given: Sequence[Any], made: Sequence[Any], buffers: Sequence[Any]) -> None:
        """What is written must not alias anything else: the model reads and writes in any order."""
        written = [(self._places[number], number) for number in self._mutated]
        if buffers:
            written += [
                (f"the buffer for {self.spec.outputs[number].name}", len(given) + number)
                for number in range(len(made))
                if buffers[number] is not None
            ]
        if not written:
            return
        names = [*self._places, *(f"the buffer for {output.name}" for output in self.spec.outputs)]
        everything = [*given, *made]
        for place, number in written:
            one = everything[number]
            for other, another in enumerate(everything):
                if other != number and _share(one, another):
                    raise (OutputError if number >= len(given) else InputError)(
                        format_error(
                            f"{place} and {names[other]} share memory, and the model writes to it.",
                            fix="pass a copy of one of them",
                        )
                    )


def _share(one: Any, other: Any) -> bool:
    if isinstance(one, DeviceTensor) or isinstance(other, DeviceTensor):
        return isinstance(one, DeviceTensor) and isinstance(other, DeviceTensor) and one.overlaps(other)
    return arrays.overlap(one, other)


def _read_scalars(spec: Spec, results: Sequence[Any]) -> list[Any]:
    return [
        result.item() if asked.is_scalar and hasattr(result, "item") else result
        for asked, result in zip(spec.outputs, results, strict=True)
    ]
