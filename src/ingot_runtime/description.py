"""A description of a compiled file, read from its manifest: none of its native code is loaded.

print(ingot_runtime.describe("m.ingot"))
"""

import os

from . import cpu_features, pytree
from .container import Container, open_container, skip_program
from .container.manifest import Spec, read_spec
from .container.safetensors_member import data_begin, parse_header
from .container.signing import Trust, check_trust
from .errors import DamagedFile, MissingInstructionSet
from .native import native_library


def describe(path: str | os.PathLike[str], *, trust: Trust = True) -> str:
    """What a compiled file takes and returns, for people to read. Runs nothing that the file holds.

    With keys as `trust` the file must be signed by one of them, as for `load`.
    """
    with open_container(path, writable=False, skip=skip_program) as container:
        check_trust(container, trust)
        spec = read_spec(container.manifest, container.names, container.path)
        text = text_of(container.path, spec, cpu_features.best(spec.libraries), weights_of(container, spec).size)
        if container.signature is None:
            return text
        verified = "not checked; give a key as `trust`" if isinstance(trust, bool) else "good"
        return f"{text}\n  signature: {verified}"


def text_of(path: str, spec: Spec, isa: str | None, weights_size: int) -> str:
    """What a model takes and returns, line by line. `isa` is the instruction set that runs here, if one does."""
    runs = f"runs {isa} here" if isa is not None else "none of them runs here"
    needs = f"; computes on a GPU: {', '.join(spec.images)}" if spec.images else ""
    return "\n".join(
        [
            f"{path}: {', '.join(spec.libraries)}; {runs}{needs}",
            *(
                f"  takes  {place}: {asked.spelled}{' (written to)' if asked.mutated else ''}"
                for place, asked in zip(argument_places(spec), spec.inputs, strict=True)
            ),
            *(f"  gives  {made.name}: {made.spelled}" for made in spec.outputs),
            *(f"  where  {symbol}" for symbol in spec.symbols.values()),
            f"  weights: {weights_size:,} bytes, mapped"
            + (f"; multiplied in {spec.precision}" if spec.precision != "float32" else ""),
        ]
    )


def argument_places(spec: Spec) -> list[str]:
    """Where in the caller's arguments each input stands, in the order of `spec.inputs`."""
    positional, named = spec.arguments.children
    assert isinstance(positional, pytree.Branch)
    found = {
        leaf.number: place
        for number, child in enumerate(positional.children)
        for leaf, place in pytree.places(child, parameter(spec, number))
    }
    found |= {leaf.number: place for leaf, place in pytree.places(named)}
    return [found[number] for number in range(len(spec.inputs))]


def parameter(spec: Spec, number: int) -> str:
    """The name of a positional argument."""
    return spec.parameters[number] if number < len(spec.parameters) else f"args[{number}]"


def best_library(spec: Spec, path: str, isa: str | None = None) -> str:
    """The instruction set of the library that this machine runs best, or the requested one.

    Raises MissingInstructionSet.
    """
    if isa is not None and isa in spec.libraries:
        return isa
    found = cpu_features.best(spec.libraries) if isa is None else None
    if found is not None:
        return found
    if isa is not None:
        why = f"it has {', '.join(spec.libraries)}"
    else:
        why = "; ".join(_lacking(name) for name in spec.libraries) or "it has no library at all"
    raise MissingInstructionSet(
        f"the file has no native code for {isa or 'this machine'}",
        why=why,
        fix="compile the model for this kind of machine: ingot compile --isa",
        path=path,
    )


def _lacking(isa: str) -> str:
    if isa not in cpu_features.FEATURES:
        return f"this release does not know {isa}"
    return f"{isa} needs {', '.join(cpu_features.missing(isa))}, which this machine lacks"


def weights_of(container: Container, spec: Spec) -> native_library.Blob:
    """The weights as the library reads them. Raises DamagedFile where they do not lie as it needs them."""
    member = container.read(spec.weights)
    parse_header(member, path=container.path, member=spec.weights)
    blob = native_library.Blob(member, data_begin(member))
    if blob.address % native_library.ALIGNMENT:
        raise DamagedFile(
            f"the weights do not lie on a multiple of {native_library.ALIGNMENT} bytes",
            fix="compile the model again",
            path=container.path,
            member=spec.weights,
        )
    return blob
