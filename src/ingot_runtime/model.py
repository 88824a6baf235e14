"""A compiled model, loaded from a `.ingot` file and called like the original.

    model = ingot_runtime.load("m.ingot")
    logits = model(ids, mask=mask)              arrays in, arrays out; nested as in the original
    model(ids, mask=mask, out=buffer)           into the caller's memory

Inputs are read where they lie; one that is not contiguous is copied once. Nothing here needs torch, and torch's
tensors are taken all the same, through DLPack.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from . import description, pytree, symbol_binding
from . import self_test as sampling
from .container import Container, open_container, signing, skip_program
from .container.manifest import ABI, InputSpec, OutputSpec, Spec, read_spec
from .container.signing import Trust
from .description import best_library, weights_of
from .dtypes import BFLOAT16
from .errors import (
    DamagedFile,
    InputError,
    OutOfMemory,
    OutputError,
    SelfTestFailed,
    UnsupportedSchema,
    UntrustedFile,
    format_error,
)
from .native import arrays, native_library
from .native.bfloat16 import BFloat16Array
from .native.bound_call import BoundCall
from .native.copy_guard import Uncopied
from .native.output_pool import ResultMemory

_PLANS_LIMIT = 256

Arrays = list[NDArray[Any]]


class _Plan(NamedTuple):
    """What depends on the sizes of a call only, worked out once for them."""

    inputs: Any
    outputs: Any
    output_shapes: tuple[tuple[int, ...], ...]


def load(path: str | os.PathLike[str], threads: int | None = None, *, trust: Trust = True, device: int = 0) -> "Model":
    """The model of a compiled file. Everything that is used is checked first; its weights are mapped, not read.

    Loading a compiled file runs native code that it holds, with all rights of this process: load files of people that
    you trust. `trust` says who that is: True, whoever wrote this file; a public key or several (paths of PEM files,
    bytes, or objects of `cryptography`), a holder of one of them, whose signature is verified before anything is
    mapped as code; False, nobody: the file is checked and UntrustedFile is raised.

    `threads`: how many to compute with; None for one per core. Raises a FileError for what is wrong with the file or
    with this machine, or where it cannot be opened. A model that was compiled for a GPU runs on the one with the number
    `device`; DeviceUnavailable says what is missing on a machine without one.
    """
    check_threads(threads)
    with open_container(path, writable=False, skip=skip_program) as container:
        return model_of(container, threads, trust, device)


def check_threads(threads: int | None) -> None:
    """Raises ValueError for a number of threads that no model can compute with."""
    if threads is not None and not (type(threads) is int and 1 <= threads <= native_library.THREADS_LIMIT):
        raise ValueError(f"threads is {threads!r}: give a number from 1 to {native_library.THREADS_LIMIT}, or None")


def model_of(container: Container, threads: int | None = None, trust: Trust = True, device: int = 0) -> "Model":
    """The model of an open file, which may be closed afterwards; as `load`."""
    check_threads(threads)
    signing.check_trust(container, trust)
    spec = read_spec(container.manifest, container.names, container.path)
    isa = best_library(spec, container.path)
    weights = weights_of(container, spec)
    sample = None if spec.sample is None else sampling.read_sample(container, spec, spec.sample)
    code = container.copy(spec.libraries[isa])
    images = {architecture: container.copy(member) for architecture, member in spec.images.items()}
    if trust is False:
        raise UntrustedFile(
            "the file holds native code, which was not loaded",
            why="nobody is trusted: trust=False",
            fix="give the public key of who signed it as `trust`; or compile it here, from the program that it holds: "
            "ingot.compile(ingot.load(path, native=False))",
            path=container.path,
            member=spec.libraries[isa],
        )
    # Here the code of the file begins to run: all checks of the file come before this line.
    library = native_library.NativeLibrary(memoryview(code), path=container.path, member=spec.libraries[isa])
    check_library(library, spec, isa, weights, container.path)
    if images:
        from .device_model import DeviceModel  # here, because only files for a GPU need it

        return DeviceModel(container.path, spec, library, weights, images, device, sample)
    return Model(container.path, spec, library, weights, threads or 0, sample)


class Model(Uncopied):
    """A loaded model. Any number of threads may call it at once; close it, or let it go."""

    def __init__(
        self,
        path: str,
        spec: Spec,
        library: native_library.NativeLibrary,
        weights: native_library.Blob,
        threads: int,
        sample: sampling.StoredSample | None,
    ) -> None:
        """Use `load`."""
        self.path = path
        self.spec = spec
        self.isa = library.isa
        self._library = library
        self._weights = weights
        self._threads = threads
        self._sample = sample
        self._opened: native_library.NativeModel | None = None
        self._memory = ResultMemory(len(spec.outputs))
        self._plans: dict[Any, _Plan] = {}
        self._places = description.argument_places(spec)
        self._symbols = [number for number, asked in enumerate(spec.inputs) if asked.symbol is not None]
        self._mutated = [number for number, asked in enumerate(spec.inputs) if asked.mutated]
        named = spec.arguments.children[1]
        self._has_own_out = "out" in spec.parameters or (isinstance(named, pytree.Branch) and "out" in named.keys)
        self._start()

    def _start(self) -> None:
        self._opened = self._open_native()

    def _open_native(self) -> native_library.NativeModel:
        """The model as it is in the file."""
        return native_library.NativeModel(self._library, self._weights, self._threads)

    @property
    def _native(self) -> native_library.NativeModel:
        assert self._opened is not None
        return self._opened

    def again(self) -> "Model":
        """The same model as it was when it was loaded: with threads, memory and state of its own."""
        return Model(self.path, self.spec, self._library, self._weights, self._threads, self._sample)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model with the original's arguments; returns numpy arrays, nested as the original's result is.

        bfloat16, which numpy lacks, comes as BFloat16Array. `out=` takes buffers for the outputs, nested as the result
        is, None to allocate one; where the model itself has an argument of that name, use `call`.
        Raises CallError for what the model was not compiled for, and what the model itself raises.
        """
        out = None if self._has_own_out else kwargs.pop("out", None)
        return self.call(args, kwargs, out)

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any = None) -> Any:
        """As `__call__`."""
        leaves = self.leaves(args, kwargs)
        buffers: list[Any] = [None] * len(self.spec.outputs)
        if out is not None:
            _place_buffers(self.spec.result, out, "out", buffers)
        results = self.run(leaves, buffers)
        return pytree.unflatten(self.spec.result, {"input": leaves, "output": results})

    def leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The inputs in a call's arguments, in the order of `spec.inputs`. Raises CallError for another structure."""
        spec = self.spec
        positional, keyed = pytree.arrange(spec.arguments, spec.parameters, tuple(args), kwargs)
        leaves: list[Any] = [None] * len(spec.inputs)
        first, second = spec.arguments.children
        assert isinstance(first, pytree.Branch)
        for number, (child, value) in enumerate(zip(first.children, positional, strict=True)):
            pytree.flatten(child, value, description.parameter(spec, number), leaves)
        pytree.flatten(second, keyed, "", leaves)
        return leaves

    def run(self, leaves: Sequence[Any], buffers: Sequence[Any] = ()) -> list[Any]:
        """Runs the model with one value per input, in the order of `spec.inputs`; returns one per output.

        `buffers` has one for each output, or None to allocate it.
        """
        return self._run(self._native, leaves, buffers)

    def bind(self, shapes: Sequence[tuple[int, ...]]) -> BoundCall | None:
        """What calls with contiguous inputs of these sizes share; None for a model that takes sizes as numbers or
        returns numbers: such calls need more checks. Raises InputError."""
        spec = self.spec
        if self._symbols or any(output.is_scalar for output in spec.outputs):
            return None
        given = [
            np.broadcast_to(np.empty((), asked.dtype.numpy), shape)
            for asked, shape in zip(spec.inputs, shapes, strict=True)
        ]
        plan = self._plan(self._native, given)
        names = [output.dtype.name for output in spec.outputs]
        counts = (len(spec.inputs), len(spec.outputs))
        return BoundCall(self._native, plan.inputs, plan.outputs, counts, plan.output_shapes, names)

    def allocate(self, size: int) -> NDArray[np.uint8]:
        """Memory for a result of so many bytes: that of an earlier one where it is free. Raises MemoryError."""
        return self._memory.empty((size,), np.dtype(np.uint8))

    def profile(self, leaves: Sequence[Any], launches: int) -> list[float]:
        """Runs the model as `run` does; returns the seconds of each of its kernel launches."""
        seconds: list[float] = []

        def time_call(model: native_library.NativeModel, inputs: Any, outputs: Any) -> None:
            seconds.extend(model.profile(inputs, outputs, launches))

        self._run(self._native, leaves, (), time_call)
        return seconds

    def trace(self, leaves: Sequence[Any], room: int) -> list[native_library.Interval]:
        """Runs the model as `run` does; returns when each thread worked on which launch. Where there are more than
        `room` intervals it runs again. Nothing of a library that cannot say it, as of one for a GPU."""
        if not self._native.can_trace:
            return []
        found: list[native_library.Interval] = []
        count = 0

        def trace_call(model: native_library.NativeModel, inputs: Any, outputs: Any) -> None:
            nonlocal found, count
            count, found = model.trace(inputs, outputs, room)

        self._run(self._native, leaves, (), trace_call)
        while len(found) < count:
            room = count
            self._run(self._native, leaves, (), trace_call)
        return sorted(found, key=lambda interval: (interval.begin, interval.thread))

    def seed(self, value: int) -> None:
        """Where the model draws random numbers, the draws of later calls follow from this number alone."""
        if type(value) is not int or not 0 <= value < 2**64:
            raise ValueError(f"the seed is {value!r}: give a number from 0 to 2**64 - 1")
        self._native.seed(value)

    @property
    def has_sample(self) -> bool:
        """Whether the file holds a sample call, which `self_test` needs."""
        return self._sample is not None

    def example(self) -> list[Any]:
        """The sample's inputs, as copies to pass to `run`. Raises SelfTestFailed where the file has none."""
        if self._sample is None:
            raise SelfTestFailed(
                format_error("The file has no sample to test with.", where=self.path, fix="compile the model again")
            )
        return [
            BFloat16Array(array.copy()) if asked.dtype.name == BFLOAT16 else array.copy()
            for asked, array in zip(self.spec.inputs, self._sample.inputs, strict=True)
        ]

    def self_test(self) -> float:
        """Runs the sample stored in the file on this machine; returns the largest difference from the stored result.

        The model's own state is left as it is. Raises SelfTestFailed where the difference is larger than the file
        allows, or where the file has no sample.
        """
        if self._sample is None:
            raise SelfTestFailed(
                format_error("The file has no sample to test with.", where=self.path, fix="compile the model again")
            )
        fresh = self._open_native()
        try:
            given = [array.copy() for array in self._sample.inputs]
            wrapped = [
                BFloat16Array(array) if asked.dtype.name == BFLOAT16 else array
                for asked, array in zip(self.spec.inputs, given, strict=True)
            ]
            results = self._run(fresh, wrapped, ())
        finally:
            fresh.close()
        return sampling.compare(self.spec, self._sample, results, given, self.path)

    def describe(self) -> str:
        """What the model takes and returns, for people to read."""
        return description.text_of(self.path, self.spec, self.isa, self._weights.size)

    def close(self) -> None:
        """Releases the model's threads and memory. Calls that are under way end first; later ones raise."""
        self._native.close()
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _run(
        self,
        model: native_library.NativeModel,
        leaves: Sequence[Any],
        buffers: Sequence[Any],
        execute: Callable[[native_library.NativeModel, Any, Any], None] | None = None,
    ) -> list[Any]:
        held: list[Any] = []
        given = self._take(leaves, held)
        plan = self._plan(model, given)
        made = self._make(plan, buffers, held)
        if self._mutated or buffers:
            self._check_overlaps(given, made, buffers)
        try:
            ready = [array if arrays.is_ready(array) else array.copy(order="C") for array in given]
        except MemoryError as failure:
            raise OutOfMemory(f"There is no memory for a contiguous copy of an input: {failure}") from None
        inputs = type(plan.inputs).from_buffer_copy(plan.inputs)
        outputs = type(plan.outputs).from_buffer_copy(plan.outputs)
        for tensor, array in zip(inputs, ready, strict=False):
            tensor.data = arrays.address(array)
        for tensor, array in zip(outputs, made, strict=False):
            tensor.data = arrays.address(array)
        if execute is None:
            model.run(inputs, outputs)
        else:
            execute(model, inputs, outputs)
        for number in self._mutated:
            if ready[number] is not given[number]:
                given[number][...] = ready[number]
        return [self._finish(number, array, buffers[number] if buffers else None) for number, array in enumerate(made)]

    def _take(self, leaves: Sequence[Any], held: list[Any]) -> Arrays:
        if len(leaves) != len(self.spec.inputs):
            raise InputError(f"The model takes {len(self.spec.inputs)} inputs, and got {len(leaves)}.")
        asked = zip(self.spec.inputs, self._places, leaves, strict=True)
        return [self._take_leaf(one, place, leaf, held) for one, place, leaf in asked]

    def _take_leaf(self, asked: InputSpec, place: str, leaf: Any, held: list[Any]) -> NDArray[Any]:
        if type(leaf) in (bool, int, float) and not asked.shape and not asked.mutated:
            return arrays.number(leaf, asked.dtype, place)
        array = arrays.view(leaf, asked.dtype, len(asked.shape), place, held, InputError)
        if asked.mutated and not array.flags.writeable:
            raise read_only_error(place)
        return array

    def _plan(self, model: native_library.NativeModel, given: Arrays) -> _Plan:
        sizes = tuple(array.shape for array in given)
        values = {number: int(given[number][()]) for number in self._symbols}
        key = (sizes, tuple(values.values()))
        found = self._plans.get(key)
        if found is not None:
            return found
        spec = self.spec
        symbol_binding.bind(spec, sizes, values, self._places)
        inputs = native_library.tensors(sizes, [asked.dtype.code for asked in spec.inputs])
        for number in self._symbols:
            inputs[number].data = arrays.address(given[number])
        flat = iter(model.sizes(inputs, sum(made.rank for made in spec.outputs)))
        output_shapes = tuple(tuple(next(flat) for _ in range(made.rank)) for made in spec.outputs)
        plan = _Plan(
            inputs, native_library.tensors(output_shapes, [made.dtype.code for made in spec.outputs]), output_shapes
        )
        if len(self._plans) >= _PLANS_LIMIT:
            self._plans.clear()
        self._plans[key] = plan
        return plan

    def _make(self, plan: _Plan, buffers: Sequence[Any], held: list[Any]) -> Arrays:
        made = []
        for number, (asked, shape) in enumerate(zip(self.spec.outputs, plan.output_shapes, strict=True)):
            buffer = buffers[number] if buffers else None
            if buffer is None:
                made.append(self._empty(asked, shape))
            else:
                made.append(self._take_buffer(buffer, asked, shape, f"the buffer for {asked.name}", held))
        return made

    def _empty(self, asked: OutputSpec, shape: tuple[int, ...]) -> NDArray[Any]:
        try:
            return self._memory.empty(shape, asked.dtype.numpy)
        except (MemoryError, ValueError) as failure:  # ValueError: more than numpy can count
            raise OutOfMemory(f"There is no memory for the output {asked.name}: {failure}") from None

    def _take_buffer(
        self, buffer: Any, asked: OutputSpec, shape: tuple[int, ...], place: str, held: list[Any]
    ) -> NDArray[Any]:
        array = arrays.view(buffer, asked.dtype, asked.rank, place, held, OutputError)
        if array.shape != shape:
            small = " too small" if array.size < np.prod(shape, dtype=np.int64) else ""
            raise OutputError(
                format_error(
                    f"{place} is{small}: {array.shape}, but the output is {shape}.",
                    fix="pass one of exactly that shape; of a larger one, a part: buffer[:n]",
                )
            )
        if not array.flags.writeable or not arrays.is_ready(array):
            raise OutputError(
                format_error(
                    f"{place} cannot be written to as it is.",
                    why="it is read-only" if not array.flags.writeable else "it is not contiguous, or not aligned",
                    fix=f"pass np.empty({shape}, np.{asked.dtype.numpy.name})",
                )
            )
        return array

    def _check_overlaps(self, given: Arrays, made: Arrays, buffers: Sequence[Any]) -> None:
        """What is written must not alias anything else: the model reads and writes in any order."""
        written = [(self._places[number], given[number], number) for number in self._mutated]
        if buffers:
            written += [
                (f"the buffer for {self.spec.outputs[number].name}", array, len(given) + number)
                for number, array in enumerate(made)
                if buffers[number] is not None
            ]
        names = [*self._places, *(f"the buffer for {output.name}" for output in self.spec.outputs)]
        everything = [*given, *made]
        for place, array, number in written:
            if arrays.overlaps_itself(array):
                raise (OutputError if number >= len(given) else InputError)(
                    format_error(
                        f"{place} is written to, and several of its elements share memory.",
                        why=f"its shape is {array.shape}, and its strides are {array.strides} bytes",
                        fix="pass a copy of it",
                    )
                )
            for other, (name, another) in enumerate(zip(names, everything, strict=True)):
                if other != number and arrays.overlap(array, another):
                    raise (OutputError if number >= len(given) else InputError)(
                        format_error(
                            f"{place} and {name} share memory, and the model writes to it.",
                            fix="pass a copy of one of them",
                        )
                    )

    def _finish(self, number: int, array: NDArray[Any], buffer: Any) -> Any:
        asked = self.spec.outputs[number]
        if buffer is not None:
            return buffer
        if asked.is_scalar:
            return array.item()
        return BFloat16Array(array) if asked.dtype.name == BFLOAT16 else array


def read_only_error(place: str) -> InputError:
    return InputError(
        format_error(
            f"{place} is read-only, but the model writes to it.",
            why="or its sign is kept apart from its memory: x.is_neg()",
            fix="pass a copy that can be written",
        )
    )


def check_library(
    library: native_library.NativeLibrary, spec: Spec, isa: str, weights: native_library.Blob, path: str
) -> None:
    if library.abi != ABI:
        raise UnsupportedSchema(
            f"the library is of ABI {library.abi}, this release runs ABI {ABI}",
            fix="compile the model again with this release of Ingot",
            path=path,
            member=spec.libraries[isa],
        )
    facts = (
        ("is for", library.isa, isa),
        ("has inputs:", library.inputs, len(spec.inputs)),
        ("has outputs:", library.outputs, len(spec.outputs)),
        ("reads weights of bytes:", library.weights_size, weights.size),
        ("reads weights of SHA-256", library.weights_sha256, spec.weights_sha256),
    )
    for what, found, expected in facts:
        if found != expected and found != "":  # a library that names no hash reads any weights of its layout
            raise DamagedFile(
                "the library is not the one of this file",
                why=f"it {what} {found}, the file says {expected}",
                fix="compile the model again",
                path=path,
                member=spec.libraries[isa],
            )


def _place_buffers(tree: pytree.Tree, value: Any, at: str, found: list[Any]) -> None:
    """The buffers of a nested `out=`, by number of output. None stands for a whole part as well as for one buffer."""
    if value is None or isinstance(tree, pytree.Literal):
        return
    if isinstance(tree, pytree.Branch):
        for key, child, part in zip(tree.keys, tree.children, pytree.parts(tree, value, at), strict=True):
            _place_buffers(child, part, pytree.step(at, key), found)
    elif tree.side == "output":
        found[tree.number] = value
