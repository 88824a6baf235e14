"""What the manifest says about native code, checked and typed. docs/reference/file_format.md shows the JSON."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

from .. import dtypes, pytree
from ..dtypes import Dtype
from ..errors import DamagedFile, NotCompiled, UnsupportedSchema
from ..expressions import Expression, NotAnExpression, parse
from .member_names import MANIFEST

ABI = 2
# What float32 products are multiplied in.
PRECISIONS = ("float32", "bfloat16", "tf32")

T = TypeVar("T")

_RANK_LIMIT = 32
_NAME = re.compile(r"[A-Za-z_]\w*")
_ARCHITECTURE = re.compile(r"(sm|compute)_\d{2,3}[a-z]?")
_SIZE_LIMIT = 2**62
_TOLERANCE_LIMIT = 1e30  # an int beyond what a float holds is below infinity, too


class InputSpec(NamedTuple):
    """One input. `symbol` is set for an int that is itself a size: its value, not its shape, binds the symbol."""

    name: str
    dtype: Dtype
    shape: tuple[int | Expression, ...]
    spelled: str
    mutated: bool
    symbol: str | None


class OutputSpec(NamedTuple):
    """One output. `is_scalar` for a number in the model's result that is not a tensor."""

    name: str
    dtype: Dtype
    rank: int
    spelled: str
    is_scalar: bool


class SymbolSpec(NamedTuple):
    """A size that differs from call to call, under the name the user gave it. `high` is None: no bound."""

    name: str
    low: int
    high: int | None

    def __str__(self) -> str:
        return f"{self.name} from {self.low}" + (" on" if self.high is None else f" to {self.high}")


class SampleSpec(NamedTuple):
    """The members with a stored call, and how far a result may be from the stored one."""

    inputs: str
    outputs: str
    tolerance: float


class Spec(NamedTuple):
    """Everything that the manifest says. `libraries` maps instruction sets to members, `images` the architectures of
    GPUs: where there are any, the model runs on one."""

    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    symbols: Mapping[str, SymbolSpec]
    arguments: pytree.Branch
    result: pytree.Tree
    parameters: tuple[str, ...]
    libraries: Mapping[str, str]
    source: str | None
    weights: str
    weights_sha256: str
    sample: SampleSpec | None
    precision: str = "float32"
    images: Mapping[str, str] = {}


def read_spec(manifest: Mapping[str, Any], members: Collection[str], path: str) -> Spec:
    """What the manifest of a file with these members says about its native code; `path` is for messages.

    Raises NotCompiled where it has none, UnsupportedSchema for another ABI, DamagedFile for what Ingot would not write.
    """
    native = manifest.get("native")
    if native is None:
        raise NotCompiled(
            "the file holds no native code",
            why="it was saved from a program that was not compiled",
            fix="compile it first: ingot compile, or ingot.compile(…).save(…)",
            path=path,
        )
    abi = native.get("abi") if isinstance(native, dict) else None
    if type(abi) is int and abi != ABI:
        newer = abi > ABI
        raise UnsupportedSchema(
            f"the native code is of ABI {abi}, this release runs ABI {ABI}",
            why=f"it was compiled by {'a newer' if newer else 'an older'} release of Ingot",
            fix="update Ingot's runtime" if newer else "compile the model again with this release",
            path=path,
        )
    try:
        return _read(native, members)
    except ValueError as failure:
        raise DamagedFile(
            "the manifest's native part is not what Ingot writes",
            why=str(failure),
            fix="compile the model again",
            path=path,
            member=MANIFEST,
        ) from None


def _read(native: Any, members: Collection[str]) -> Spec:
    if _get(native, "abi", int) != ABI:
        _wrong("abi", native["abi"])
    symbols = {key: _symbol(f"symbols.{key}", item) for key, item in _get(native, "symbols", dict).items()}
    inputs = tuple(_input(f"inputs[{n}]", item, symbols) for n, item in enumerate(_get(native, "inputs", list)))
    outputs = tuple(_output(f"outputs[{n}]", item, symbols) for n, item in enumerate(_get(native, "outputs", list)))
    for what, names in (("inputs", [i.name for i in inputs]), ("outputs", [o.name for o in outputs])):
        if len(set(names)) != len(names):
            raise ValueError(f"two {what} have the same name")
    call = _get(native, "call", dict)
    arguments = pytree.read(call.get("in"), {"input": len(inputs)})
    result = pytree.read(call.get("out"), {"input": len(inputs), "output": len(outputs)})
    if sorted(leaf.number for leaf in pytree.leaves(arguments)) != list(range(len(inputs))):
        raise ValueError("call.in does not name every input once")
    match arguments:
        case pytree.Branch("tuple", children=(pytree.Branch("tuple"), pytree.Branch("dict"))):
            pass
        case _:
            raise ValueError("call.in is not a tuple of positional arguments and a dict of the others")
    precision = _get(native, "precision", str) if "precision" in native else "float32"
    if precision not in PRECISIONS:
        _wrong("precision", precision)
    libraries = {_get(item, "isa", str): _get(item, "member", str) for item in _get(native, "libraries", list)}
    images = {}
    if "images" in native:
        images = {_get(item, "architecture", str): _get(item, "member", str) for item in _get(native, "images", list)}
        for architecture in images:
            if _ARCHITECTURE.fullmatch(architecture) is None:
                _wrong("images", architecture)
    sample = native.get("sample")
    spec = Spec(
        inputs=inputs,
        outputs=outputs,
        symbols=symbols,
        arguments=arguments,
        result=result,
        parameters=tuple(_texts("call.parameters", call.get("parameters", []))),
        libraries=libraries,
        source=_get(native, "source", str) if "source" in native else None,
        weights=_get(native, "weights", str),
        weights_sha256=_get(native, "weights_sha256", str),
        sample=None if sample is None else _sample(sample),
        precision=precision,
        images=images,
    )
    named = [*libraries.values(), *images.values(), spec.weights, spec.source]
    named += [] if spec.sample is None else [spec.sample.inputs, spec.sample.outputs]
    if absent := [member for member in named if member is not None and member not in members]:
        raise ValueError(f"it names members that are not there: {', '.join(absent)}")
    return spec


def _input(place: str, item: Any, symbols: Mapping[str, SymbolSpec]) -> InputSpec:
    shape = _get(item, "shape", list)
    sizes = tuple(_size(f"{place}.shape", size, symbols) for size in shape)
    symbol = _get(item, "symbol", str) if "symbol" in item else None
    made = InputSpec(
        name=_get(item, "name", str),
        dtype=_dtype(item),
        shape=sizes,
        spelled=_spell(item["dtype"], shape, symbols),
        mutated=_get(item, "mutated", bool) if "mutated" in item else False,
        symbol=symbol,
    )
    if len(shape) > _RANK_LIMIT:
        _wrong(f"{place}.shape", shape)
    if symbol is not None and (symbol not in symbols or shape or made.dtype.name != "int64"):
        _wrong(f"{place}.symbol", symbol)
    return made


def _output(place: str, item: Any, symbols: Mapping[str, SymbolSpec]) -> OutputSpec:
    shape = _get(item, "shape", list)
    is_scalar = _get(item, "scalar", bool) if "scalar" in item else False
    if len(shape) > _RANK_LIMIT or not all(type(size) in (int, str) for size in shape) or (is_scalar and shape):
        _wrong(f"{place}.shape", shape)
    return OutputSpec(
        _get(item, "name", str), _dtype(item), len(shape), _spell(item["dtype"], shape, symbols), is_scalar
    )


def _size(place: str, size: Any, symbols: Mapping[str, SymbolSpec]) -> int | Expression:
    if type(size) is int and 0 <= size < _SIZE_LIMIT:
        return size
    if not isinstance(size, str):
        _wrong(place, size)
    try:
        expression = parse(size)
    except NotAnExpression as failure:
        raise ValueError(f"{place} has {size!r}, which is not a size: {failure}") from None
    if unknown := sorted(expression.symbols - symbols.keys()):
        raise ValueError(f"{place} has {size!r}, and {', '.join(unknown)} is not among the symbols")
    return expression


def _spell(dtype: str, shape: Sequence[int | str], symbols: Mapping[str, SymbolSpec]) -> str:
    """As print(program) shows it: float32[batch, 768]"""

    def name_symbol(found: re.Match[str]) -> str:
        return symbols[found[0]].name if found[0] in symbols else found[0]

    sizes = [_NAME.sub(name_symbol, str(size)) for size in shape]
    return f"{dtype}[{', '.join(sizes)}]"


def _symbol(place: str, item: Any) -> SymbolSpec:
    low, high = _get(item, "min", int), item.get("max")
    if low < 0 or not (high is None or (type(high) is int and high >= low)):
        _wrong(place, item)
    return SymbolSpec(_get(item, "name", str), low, high)


def _sample(item: Any) -> SampleSpec:
    tolerance: Any = item.get("tolerance") if isinstance(item, dict) else None
    if type(tolerance) not in (int, float) or not 0 <= tolerance <= _TOLERANCE_LIMIT:
        _wrong("sample.tolerance", tolerance)
    return SampleSpec(_get(item, "inputs", str), _get(item, "outputs", str), float(tolerance))


def _dtype(item: Any) -> Dtype:
    name = _get(item, "dtype", str)
    if name not in dtypes.BY_NAME:
        _wrong("dtype", name)
    return dtypes.BY_NAME[name]


def _texts(place: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        _wrong(place, value)
    return value


def _get(item: Any, key: str, kind: type[T]) -> T:
    value = item.get(key) if isinstance(item, dict) else None
    if type(value) is not kind:
        raise ValueError(f"{key} is {str(value)[:60]!r}, not a {kind.__name__}")
    return value


def _wrong(place: str, value: Any) -> NoReturn:
    raise ValueError(f"{place} is {str(value)[:60]!r}, which is not allowed")
