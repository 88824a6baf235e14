"""A compiled model in this process: torch tensors in and out, numpy in and out.

compiled = ingot.compile(model, args)
compiled(*args)              the model's own call
compiled.source              the C text
compiled.loop_ir             the loops that it was written from, as text
compiled.save("m.ingot")     a file that `ingot_runtime` runs without torch
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ingot._pages import call_viewer
from ingot.artifacts.device_calls import DeviceCalls
from ingot.artifacts.packaging import SampleCall, argument_names, call_of, result_names, write_native
from ingot.artifacts.profiler import Profile, ProfileRow, idle_shares, medians, trace_model
from ingot.artifacts.roofline import Roofline, measure_roofline
from ingot.artifacts.tensor_exchange import native_of, run_model, wants_arrays
from ingot.codegen.build.compile_process import save_error
from ingot.codegen.native_source import NativeSource, draws_numbers, is_image
from ingot.codegen.weight_blob import WeightBlob
from ingot.ir.clone import copy_written_state
from ingot.ir.execution import check_call
from ingot.ir.program import Program
from ingot.ir.pytree import LEAF, flatten, unflatten
from ingot.ir.signature import InputKind, OutputKind
from ingot.lowering.index_expr import Expr, Size, substitute
from ingot.lowering.loop_ir_printer import print_module
from ingot.lowering.loop_module import Module, Precision, SymbolSource
from ingot.serialization.program_file import pack
from ingot.targets.base import NativeTarget
from ingot_runtime.container.manifest import ABI, read_spec
from ingot_runtime.cpu_features import cores
from ingot_runtime.model import Model
from ingot_runtime.native.copy_guard import Uncopied

if TYPE_CHECKING:
    from ingot.viewer.entry import ModelView

_WEIGHTS, _LIBRARY = "weights", "library"


class CompiledModel(Uncopied):
    """A model as native code. Any number of threads may call it at once.

    Attributes: `program` (as it was lowered), `isa` (the instruction set that runs here), `libraries` (bytes by
    instruction set, and by architecture of a GPU; of a model on a GPU only the one for that GPU, until it is saved),
    `threads`.
    """

    def __init__(
        self,
        program: Program,
        module: Module,
        source: NativeSource,
        blob: WeightBlob,
        libraries: Mapping[str, bytes],
        target: NativeTarget[Any],
        threads: int | None = None,
        isa: str | None = None,
        complete: Callable[[Mapping[str, bytes]], Mapping[str, bytes]] | None = None,
    ) -> None:
        """Use `ingot.compile`. `complete` adds to the libraries what a file has besides."""
        self.program = copy_written_state(program)  # a call of the one that was compiled would change what is saved
        self.libraries = dict(libraries)
        self._complete = complete
        self.isa = isa or target.host_library()
        self._target = target
        self._source = source
        self._module = module
        self._manifest = _manifest(program, module)
        self._blob = blob
        self.threads = threads or cores()
        self.model = self._open(threads)
        self._device_calls = DeviceCalls.create(self.model)
        returned = program.signature
        # Whether a call returns one result, and nothing around it.
        self._is_single = returned.out_tree == LEAF and returned.user_outputs[0].kind is OutputKind.RESULT

    def __deepcopy__(self, memo: Any) -> CompiledModel:
        """A model of its own, with threads and memory of its own; library, weights and program never change and are
        shared. Raises CopyError where the model has state that calls change: nothing can read that."""
        if self.draws or any(buffer.kind == "state" for buffer in self._module.buffers.values()):
            raise self._refusal("copied")
        made = copy.copy(self)
        made.model = self.model.again()
        made._device_calls = DeviceCalls.create(made.model)
        return made

    @property
    def source(self) -> str:
        """The text of the kernels that were compiled: C, or CUDA C++."""
        return self._source.text

    @property
    def loop_ir(self) -> str:
        """The scheduled loops as text, as `ingot.lowering.loop_ir` has its grammar."""
        return print_module(self._module)

    @property
    def precision(self) -> Precision:
        """The dtype in which products with weights are computed."""
        return self._module.precision

    @property
    def kernels(self) -> int:
        """The number of different kernels in the text."""
        return self._source.kernel_count

    @property
    def launches(self) -> int:
        """The number of kernel launches of a call, where none is in a loop or branch."""
        return len(self._source.launches)

    @property
    def weight_bytes(self) -> int:
        """The size of the weights, packed as the kernels read them."""
        return self._source.weights_size

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model. Returns torch tensors, or NumPy arrays if the arguments hold arrays and no tensor."""
        if self._device_calls is not None and not kwargs:
            plain = self._device_calls.run(args)
            if plain is not None:
                return plain[0] if self._is_single else self._nest(plain)
        if wants_arrays(args, kwargs):
            return self.model.call(args, kwargs)
        return self._nest(run_model(self.model, self._leaves(args, kwargs)))

    def _nest(self, results: Sequence[Any]) -> Any:
        """What the model returns: these results among its literals, nested as they are there."""
        values = iter(results)
        outputs = self.program.signature.user_outputs
        leaves = [o.value if o.kind is OutputKind.LITERAL else next(values) for o in outputs]
        return unflatten(leaves, self.program.signature.out_tree)

    def _leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        if all(isinstance(value, torch.Tensor) for value in (*args, *kwargs.values())):
            return [native_of(leaf) for leaf in self.model.leaves(args, kwargs)]  # the runtime checks the rest
        # A model for a GPU takes tensors of the host and of the device, whatever it was captured with.
        leaves = check_call(self.program, tuple(args), dict(kwargs), devices=not self.model.spec.images)
        specs = self.program.signature.user_inputs
        return [native_of(leaf) for leaf, spec in zip(leaves, specs, strict=True) if spec.kind is InputKind.ARGUMENT]

    def profile(
        self, *args: Any, repeat: int = 10, trace: str | os.PathLike[str] | None = None, **kwargs: Any
    ) -> Profile:
        """Measures the time of each kernel in this call: medians over `repeat` runs after one warm-up run. In further
        runs, when each thread, or the GPU, works on which kernel; `trace` is a file to write that to, for
        chrome://tracing."""
        leaves = self._leaves(args, kwargs)
        runs = [self.model.profile(leaves, len(self._source.launches)) for _ in range(repeat + 1)][1:]
        intervals = trace_model(self.model, leaves, [launch.kernel for launch in self._source.launches], self.threads)
        idle = idle_shares(intervals, len(self._source.launches), self.threads)
        sizes = self._symbols(leaves)
        rows = [
            ProfileRow(
                launch.kernel,
                launch.origin.op,
                launch.origin.module,
                launch.origin.source,
                seconds,
                _evaluate_size(launch.flops, sizes),
                _evaluate_size(launch.effort, sizes),
                _evaluate_size(launch.bytes, sizes),
                share,
            )
            for launch, seconds, share in zip(self._source.launches, medians(runs), idle, strict=True)
        ]
        known = self._target.peak_rates
        limits = measure_roofline(self.threads) if known is None else Roofline(*known)
        made = Profile(tuple(rows), limits, self.threads, intervals)
        if trace is not None:
            made.chrome_trace(trace)
        return made

    def view(self, *, profile: bool = False, numbers: Mapping[str, Any] | None = None) -> ModelView:
        """The lowered program, its loops and its code as a page: shown by a notebook, opened by `.show()`, written by
        `.save("page.html")`. `profile` measures the kernels on the example. `numbers` are those of `program.view`,
        which shows every stage."""
        options = {"profile": profile, "numbers": numbers}
        made: ModelView = call_viewer("entry", "view_compiled", self, self._module, self._source, **options)
        return made

    def __repr__(self) -> str:
        text: str = call_viewer("summary", "describe_compiled", self)
        return text

    def _repr_html_(self) -> str:
        text: str = call_viewer("summary", "compiled_html", self)
        return text

    def _symbols(self, leaves: Sequence[Any]) -> dict[str, int]:
        def read_symbol(known: SymbolSource) -> int:
            leaf = leaves[known.place]
            return (int(leaf if known.dim < 0 else leaf.shape[known.dim]) - known.offset) // known.slope

        return {name: read_symbol(known) for name, known in self._module.symbols.items()}

    def seed(self, value: int) -> None:
        """Seeds the random numbers of later calls."""
        self.model.seed(value)

    def save(self, path: str | os.PathLike[str], *, program: bool = False) -> None:
        """Writes a `.ingot` file atomically: libraries, weights, source, and a sample for a self-test.

        With `program=True` the file also holds the program and its weights, and is about twice as large:
        `ingot.load(path, native=False)` reads the program and runs no native code from the file.

        Raises SaveError if a file cannot describe the model, StorageError if the file cannot be written.
        """
        members, fields = pack(self.program) if program else ({}, {})
        if self._complete is not None:
            self.libraries = dict(self._complete(self.libraries))
        try:
            write_native(
                path,
                manifest_native=self._manifest,
                libraries={name: data for name, data in self.libraries.items() if not is_image(name)},
                images=self._images(),
                source=self._source.files,
                weights=self._blob.tensors(),
                sample=self._sample(),
                members=members,
                fields=fields,
            )
        except OSError as error:
            raise save_error(error, path) from error

    def close(self) -> None:
        """Releases the model's threads and memory."""
        self.model.close()

    def _images(self) -> dict[str, bytes]:
        return {name: data for name, data in self.libraries.items() if is_image(name)}

    def _open(self, threads: int | None) -> Model:
        images = self._images()
        manifest = {
            "native": {
                **self._manifest,
                "abi": ABI,
                "libraries": [{"isa": self.isa, "member": _LIBRARY}],
                "images": [{"architecture": name, "member": name} for name in images],
                "weights": _WEIGHTS,
                "weights_sha256": "",
            }
        }
        spec = read_spec(manifest, {_LIBRARY, _WEIGHTS, *images}, "<memory>")
        library = self._target.load_library(self.libraries[self.isa], _LIBRARY)
        return self._target.open_model(
            spec, library, self._blob.memory, images, threads, find_device(self.program) or 0
        )

    def _sample(self) -> SampleCall | None:
        """The example call, with torch's result."""
        example = self.program.example_inputs
        if example is None or self.draws:
            return None
        args, kwargs = _clone(example)
        names = [item["name"] for item in self._manifest["inputs"]]
        inputs = dict(zip(names, self._leaves(args, kwargs), strict=True))
        given = {
            name: value.clone() if isinstance(value, torch.Tensor) else np.asarray(value)
            for name, value in inputs.items()
        }
        with torch.no_grad():
            result = copy_written_state(self.program)(*args, **kwargs)
        kinds = [output.kind for output in self.program.signature.user_outputs]
        leaves = [leaf for leaf, kind in zip(flatten(result)[0], kinds, strict=True) if kind is OutputKind.RESULT]
        made = zip(leaves, self._manifest["outputs"], strict=True)
        outputs = {output["name"]: _value(leaf, output["dtype"]) for leaf, output in made}
        mutated = {i["name"]: inputs[i["name"]] for i in self._manifest["inputs"] if i["mutated"]}
        return SampleCall(given, outputs, mutated, tolerance=_tolerance(self._manifest, self.precision))

    @property
    def draws(self) -> bool:
        """Whether the model draws random numbers."""
        return draws_numbers(self._source)


def find_device(program: Program) -> int | None:
    """The number of the GPU that the program's tensors lie on; None where they lie on none."""
    values = [*program.state_dict.values(), *program.constants.values(), *flatten(program.example_inputs)[0]]
    return next((x.get_device() for x in values if isinstance(x, torch.Tensor) and x.is_cuda), None)


def _tolerance(manifest: Mapping[str, Any], precision: str) -> float:
    dtypes = {precision, *(item["dtype"] for item in (*manifest["inputs"], *manifest["outputs"]))}
    return 5e-2 if dtypes & {"float16", "bfloat16", "tf32"} else 1e-3


def _value(leaf: Any, dtype: str) -> Any:
    return leaf.detach() if isinstance(leaf, torch.Tensor) else np.asarray(leaf, dtype)


def _manifest(program: Program, module: Module) -> dict[str, Any]:
    symbols = {
        name: {"name": known.name, "min": known.low, "max": known.high} for name, known in module.symbols.items()
    }
    bound = {known.place: name for name, known in module.symbols.items() if known.dim < 0}
    inputs: list[dict[str, Any]] = []
    for number, (name, argument) in enumerate(zip(argument_names(program), module.inputs, strict=True)):
        item = {
            "name": name,
            "dtype": argument.dtype,
            "shape": [_size(size) for size in argument.shape],
            "mutated": argument.mutated,
        }
        if number in bound:
            item["symbol"] = bound[number]
        inputs.append(item)
    outputs: list[dict[str, Any]] = []
    for name, argument in zip(result_names(program), module.outputs, strict=True):
        item = {"name": name, "dtype": argument.dtype, "shape": [_size(size) for size in argument.shape]}
        if argument.scalar:
            item["scalar"] = True
        outputs.append(item)
    made = {"inputs": inputs, "outputs": outputs, "symbols": symbols, "call": call_of(program)}
    return made if module.precision == "float32" else {**made, "precision": module.precision}


def _evaluate_size(size: Size, sizes: Mapping[str, int]) -> int:
    """A size as a number; 0 where it is data-dependent."""
    found = substitute(size, sizes)
    return found if isinstance(found, int) else 0


def _size(size: Size) -> int | str:
    return str(size) if isinstance(size, Expr) else size


def _clone(value: Any) -> Any:
    leaves, tree = flatten(value)
    return unflatten([leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], tree)
