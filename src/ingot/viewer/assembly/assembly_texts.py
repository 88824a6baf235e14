"""The machine code of a view's kernels as a text of its stage of code."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ingot.codegen.build.cache import Cache
from ingot.codegen.build.isa import host
from ingot.codegen.build.toolchain import find_for
from ingot.codegen.native_source import is_image
from ingot.config import Settings
from ingot.errors import CompileError, ViewError
from ingot.targets.cpu.codegen.module_emitter import CSource
from ingot.targets.cpu.target import PARTS
from ingot.targets.cuda.build.image_parts import unpack_parts
from ingot.targets.cuda.codegen.module_emitter import CudaSource
from ingot.targets.cuda.target import ARCHITECTURES, CUDA
from ingot.viewer.assembly.disassemblers import find_nvdisasm
from ingot.viewer.assembly.gpu_code import list_cubin, list_ptx
from ingot.viewer.assembly.machine_code import AssemblyLine, list_machine_code
from ingot.viewer.view_data import NOWHERE, Json, ViewData
from ingot_runtime.cpu_features import cores

_NO_NVDISASM = (
    "The disassembly is PTX: nvdisasm, which shows a GPU's instructions, is not installed. "
    "pip install nvidia-cuda-nvdisasm"
)
_PTX = "compute_90"

# The name of a listing, and its lines.
Listing = tuple[str, list[AssemblyLine]]


def add_assembly(view: ViewData, source: Any) -> None:
    """Builds a source for this machine with the lines of its text, and adds what that became. What is not possible here
    is a note."""
    names = [kernel["name"] for kernel in view.kernels]
    if isinstance(source, CSource):
        _add(view, lambda: _list_c(source, names))
    elif isinstance(source, CudaSource):
        _add(view, lambda: _list_cuda(view, source, names))


def add_assembly_of(view: ViewData, libraries: Mapping[str, bytes]) -> None:
    """Adds the machine code of what is built already: libraries by instruction set, images by architecture. A library
    for the machine that this is comes before others, and an image before a library, which only launches it."""
    names = [kernel["name"] for kernel in view.kernels]
    images = [name for name in libraries if is_image(name)]
    if images:
        _add(view, lambda: _list_images(view, {name: libraries[name] for name in images}, names))
    elif libraries:
        isa = host().name if host().name in libraries else next(iter(libraries))
        _add(view, lambda: (isa, list_machine_code(libraries[isa], isa, names)))


def _add(view: ViewData, make: Callable[[], Listing]) -> None:
    try:
        name, lines = make()
    except (CompileError, ViewError) as error:
        view.notes.append(f"{type(error).__name__}: {error}")
        return
    stage = view.last_stage("code")
    if not any(line.kernel for line in lines):
        view.notes.append("The disassembly has none of the kernels: the library does not name them.")
        return
    stage["texts"].append(_text_of(view, name, lines))


def _text_of(view: ViewData, name: str, lines: Sequence[AssemblyLine]) -> Json:
    numbers = {kernel["name"]: number for number, kernel in enumerate(view.kernels)}
    links = [numbers.get(line.kernel, NOWHERE) for line in lines]
    runs = [
        part for source, run in itertools.groupby(line.source for line in lines) for part in (source, len(list(run)))
    ]
    pooled = view.lines.add([line.text for line in lines], links)
    return {"name": name, "language": "assembly", "lines": pooled, "sources": runs}


def _list_c(source: CSource, kernels: Sequence[str]) -> Listing:
    """Of the code that `compile` makes: lines for a debugger leave it as it is."""
    isa = host()
    parts = 1 + min(source.groups, cores(), PARTS)
    store = Cache.from_settings(Settings.from_environment())
    flags = (f'-DIG_ISA="{isa.name}"', "-g1")
    library = store.read_library(source.text, isa, find_for(isa), extra_flags=flags, parts=parts)
    return isa.name, list_machine_code(library, isa.name, kernels)


def _list_cuda(view: ViewData, source: CudaSource, kernels: Sequence[str]) -> Listing:
    name = ARCHITECTURES[0] if find_nvdisasm() is not None else _PTX
    store = Cache.from_settings(Settings.from_environment())
    with ThreadPoolExecutor(cores()) as workers:
        return _list_images(view, {name: CUDA.build_image(source, name, store, workers)}, kernels)


def _list_images(view: ViewData, images: Mapping[str, bytes], kernels: Sequence[str]) -> Listing:
    tool = find_nvdisasm()
    machine = next((name for name in images if name.startswith("sm_")), None)
    if tool is not None and machine is not None:
        return machine, list_cubin(tool, unpack_parts(images[machine]), kernels)
    if tool is None:
        view.notes.append(_NO_NVDISASM)
    text = next((name for name in images if name.startswith("compute_")), None)
    if text is None:
        return machine or "", []
    parts = (bytes(part).rstrip(b"\0").decode(errors="replace") for part in unpack_parts(images[text]))
    return f"PTX, {text}", list_ptx(parts, kernels)
