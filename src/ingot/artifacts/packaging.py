"""A compiled model as one `.ingot` file that `ingot_runtime` runs.

    packed = pack_weights({"fc.weight": array, …})      # offsets, size and hash, which the C code is generated with
    write_native("m.ingot", manifest_native={"inputs": …, "outputs": …, "symbols": …, "call": call_of(program)},
                 libraries={"x86-64-v4": Path("m.so")}, source=c_text, weights=packed, sample=Sample(…))

The same arguments produce the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ingot.errors import SaveError, format_error
from ingot.ir.program import Program
from ingot.ir.pytree import Tree, leaf_paths
from ingot.ir.signature import Input, InputKind, Output, OutputKind
from ingot.serialization.values import Json, Unwritable, write_plain
from ingot_runtime import BFloat16Array, Member, TensorsMember, cpu_features, dtypes, write_container
from ingot_runtime.container.manifest import ABI, read_spec
from ingot_runtime.container.safetensors_member import Tensor
from ingot_runtime.self_test import MUTATED

FOLDER = "native"
SOURCE = f"{FOLDER}/model.c"
WEIGHTS = f"{FOLDER}/weights.safetensors"
SAMPLE_INPUTS = f"{FOLDER}/sample_inputs.safetensors"
SAMPLE_OUTPUTS = f"{FOLDER}/sample_outputs.safetensors"

# numpy and torch arrays, bfloat16 ones, bytes, or safetensors' (dtype, shape, data), data being perhaps a function.
ArrayLike = Any

_STORED = {dtype.numpy: dtype.stored for name, dtype in dtypes.BY_NAME.items() if name != dtypes.BFLOAT16}


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """The blob that kernels read: where each weight lies, how long it all is, and its SHA-256."""

    member: TensorsMember = field(repr=False)
    offsets: Mapping[str, int]
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class SampleCall:
    """A call to store as a self-test: arrays by the names of inputs and outputs, and how far a result may be off.

    `mutated` has what the inputs that the model writes to were after the call. A difference counts in units of
    max(1, |expected|).
    """

    inputs: Mapping[str, ArrayLike]
    outputs: Mapping[str, ArrayLike]
    mutated: Mapping[str, ArrayLike] = field(default_factory=dict)
    tolerance: float = 1e-4


def pack_weights(weights: Mapping[str, ArrayLike]) -> PackedWeights:
    """Lays the weights out one after the other, in the mapping's order, each at a multiple of 64 bytes."""
    member = TensorsMember({name: _tensor(name, value) for name, value in weights.items()}, aligned=True)
    sha256 = hashlib.sha256()
    for chunk in member.data_chunks():
        sha256.update(chunk)
    offsets = {name: member.offsets[name] for name in weights}
    return PackedWeights(member, offsets, member.data_size, sha256.hexdigest())


def write_native(
    path: str | PathLike[str],
    *,
    manifest_native: Mapping[str, Json],
    libraries: Mapping[str, Path | bytes],
    source: str | Mapping[str, str],
    weights: PackedWeights | Mapping[str, ArrayLike],
    images: Mapping[str, bytes] | None = None,
    sample: SampleCall | None = None,
    members: Mapping[str, Member] | None = None,
    fields: Mapping[str, Json] | None = None,
) -> None:
    """Writes a compiled file, whole or not at all.

    `manifest_native` has "inputs", "outputs", "symbols" and "call" of docs/reference/file_format.md; the rest of that
    part follows from the other arguments. `libraries` maps instruction sets to shared libraries, `images` architectures
    of GPUs to code for them. `source` is the C text, or several texts by the names of their files, that of the kernels
    first. `members` and `fields` are what else the file and its manifest hold: the program. Raises ValueError for what
    the runtime would not load.
    """
    packed = weights if isinstance(weights, PackedWeights) else pack_weights(weights)
    isas = [isa for isa in cpu_features.FEATURES if isa in libraries]  # the most able first
    if unknown := sorted(libraries.keys() - cpu_features.FEATURES.keys()):
        raise ValueError(
            f"no machine is known to run {', '.join(unknown)}; known are {', '.join(cpu_features.FEATURES)}"
        )
    texts = {SOURCE: source} if isinstance(source, str) else {f"{FOLDER}/{name}": text for name, text in source.items()}
    members_of = {name: _name_image(name) for name in images or {}}
    native: dict[str, Json] = {
        **manifest_native,
        "abi": ABI,
        "libraries": [{"isa": isa, "member": _name_library(isa)} for isa in isas],
        "source": next(iter(texts)),
        "weights": WEIGHTS,
        "weights_sha256": packed.sha256,
    }
    everything: dict[str, Member] = {
        **(members or {}),
        **{_name_library(isa): _library(libraries[isa]) for isa in isas},
        **{member: (images or {})[name] for name, member in members_of.items()},
        **{name: text.encode() for name, text in texts.items()},
        WEIGHTS: packed.member,
    }
    if members_of:
        native["images"] = [{"architecture": name, "member": member} for name, member in members_of.items()]
    if sample is not None:
        native["sample"] = {"inputs": SAMPLE_INPUTS, "outputs": SAMPLE_OUTPUTS, "tolerance": sample.tolerance}
        after = {MUTATED + name: value for name, value in sample.mutated.items()}
        everything[SAMPLE_INPUTS] = _tensors(sample.inputs)
        everything[SAMPLE_OUTPUTS] = _tensors({**sample.outputs, **after})
    manifest = {**(fields or {}), "native": native}
    try:
        read_spec(manifest, everything.keys(), str(path))
    except Exception as failure:
        raise ValueError(f"the runtime would not load this file: {failure}") from failure
    write_container(path, everything, manifest)


def _name_library(isa: str) -> str:
    return f"{FOLDER}/{isa}.{'dylib' if isa.endswith('-macos') else 'so'}"


def _name_image(architecture: str) -> str:
    kind = "ptx" if architecture.startswith("compute_") else "cubin"
    return f"{FOLDER}/{architecture}.{kind}"


def call_of(program: Program) -> Json:
    """The manifest's "call": how the arguments and the result of a program are nested.

    Inputs are numbered in the order of the program's argument placeholders, outputs in that of its results. Raises
    SaveError for a call that a file cannot describe.
    """
    signature = program.signature
    arguments = _leaves(signature.user_inputs, InputKind.ARGUMENT, "input")
    results = _leaves(signature.user_outputs, OutputKind.RESULT, "output")
    return {
        "in": _tree(signature.in_tree, iter(arguments)),
        "out": _tree(signature.out_tree, iter(results)),
        "parameters": list(program.parameter_names),
    }


def argument_names(program: Program) -> list[str]:
    """A name for each argument of the graph, by its place in the user's call: "mask", "cache.0.keys", "args.2"."""
    signature = program.signature
    places: list[tuple[str | int, ...]] = []
    for given, (side, key, *rest) in zip(signature.user_inputs, leaf_paths(signature.in_tree), strict=True):
        if given.kind is not InputKind.ARGUMENT:
            continue
        if side == 0:
            assert isinstance(key, int)
            named = key < len(program.parameter_names)
            places.append((program.parameter_names[key], *rest) if named else ("args", key, *rest))
        else:
            places.append((key, *rest))
    return _names(places, "input")


def result_names(program: Program) -> list[str]:
    """A name for each result of the graph, by its place in the user's result: "logits", "cache.0.keys", "output"."""
    signature = program.signature
    results = zip(signature.user_outputs, leaf_paths(signature.out_tree), strict=True)
    return _names([path for output, path in results if output.kind is OutputKind.RESULT], "output")


def _names(places: Sequence[Sequence[str | int]], bare: str) -> list[str]:
    names: list[str] = []
    for place in places:
        name = spelled = ".".join(map(str, place)) or bare
        count = 1
        while name in names:  # {"a.b": x, "a": {"b": y}}
            count += 1
            name = f"{spelled}_{count}"
        names.append(name)
    return names


def _leaves(values: tuple[Input, ...] | tuple[Output, ...], kind: InputKind | OutputKind, side: str) -> list[Json]:
    leaves: list[Json] = []
    count = 0
    for value in values:
        if value.kind is kind:
            leaves.append({side: count})
            count += 1
        elif value.target is not None:
            raise SaveError(
                format_error(
                    f"The tensor argument {value.name or value.target} is a constant of the program.",
                    why="a compiled file cannot check whether a later call passes the same tensor",
                    fix="capture the model with it as an argument like any other",
                )
            )
        else:
            try:
                leaves.append({"literal": write_plain(value.value)})
            except Unwritable as failure:
                raise SaveError(format_error(f"A file cannot hold {failure}.", where=f"a literal {side}")) from None
    return leaves


def _tree(tree: Tree, leaves: Any) -> Json:
    if tree.kind == "leaf":
        return next(leaves)
    children = [_tree(child, leaves) for child in tree.children]
    return {"kind": tree.kind, "name": tree.name, "keys": list(tree.keys), "children": children}


def _library(library: Path | bytes) -> bytes:
    return library if isinstance(library, bytes) else Path(library).read_bytes()


def _tensors(values: Mapping[str, ArrayLike]) -> TensorsMember:
    return TensorsMember({name: _tensor(name, value) for name, value in values.items()})


def _tensor(name: str, value: ArrayLike) -> Tensor:
    if isinstance(value, tuple):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return "U8", (memoryview(value).nbytes,), value
    if isinstance(value, BFloat16Array):
        return "BF16", value.shape, np.ascontiguousarray(value.bits)
    if isinstance(value, torch.Tensor):
        dtype = dtypes.BY_NAME.get(str(value.dtype).removeprefix("torch."))
        if dtype is None:
            raise ValueError(f"{name} is {value.dtype}, which native code does not have")
        return dtype.stored, tuple(value.shape), lambda: _torch_bytes(value)
    array = np.asarray(value)
    if array.dtype not in _STORED:
        raise ValueError(f"{name} is {array.dtype}, which native code does not have")
    return _STORED[array.dtype], array.shape, np.ascontiguousarray(array)


def _torch_bytes(tensor: torch.Tensor) -> Any:
    dense = tensor.detach().cpu().contiguous()
    # One element counts as contiguous whatever its stride is, but its bytes are only seen at a stride of 1.
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy()
