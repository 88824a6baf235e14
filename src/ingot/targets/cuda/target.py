"""The CUDA target: kernels in CUDA C++, compiled by NVRTC for each architecture, and a library for the host in C."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import torch

from ingot.codegen.build.cache import Cache
from ingot.codegen.build.isa import ISAS, Isa, find_isa
from ingot.codegen.build.page_prefault import Pages
from ingot.codegen.build.toolchain import find
from ingot.codegen.native_source import is_image
from ingot.codegen.weight_blob import WeightBlob, fill
from ingot.config import Settings
from ingot.errors import UnsupportedMachine, format_error
from ingot.ir.operators import fourier
from ingot.ir.program import Program
from ingot.lowering.index_expr import require_static
from ingot.lowering.loop_ir import Buffer
from ingot.lowering.loop_module import Module, PackedWeight
from ingot.scheduling.buffer_planning import byte_size, plan
from ingot.targets.base import NativeTarget, ScheduleObserver, ignore_pass
from ingot.targets.cuda.build import nvrtc
from ingot.targets.cuda.build.image_parts import FORMAT, pack_parts
from ingot.targets.cuda.codegen.module_emitter import CudaSource, emit
from ingot.targets.cuda.codegen.weight_packing import pack_weight
from ingot.targets.cuda.kernel_selection.strategy import SELECTED_KERNELS, CudaStrategy
from ingot.targets.cuda.schedule.pipeline import SCHEDULE, schedule
from ingot.targets.cuda.schedule.quantized.layouts import CodeFragments, CodeRows, FragmentScales
from ingot.targets.cuda.schedule.reference_semantics import REFERENCE_RULES
from ingot.targets.cuda.schedule.weight_layouts import ReorderedLayout, SwizzledTiles
from ingot_runtime.container.manifest import Spec
from ingot_runtime.cpu_features import architecture, cores
from ingot_runtime.device_model import DeviceModel
from ingot_runtime.errors import DeviceUnavailable
from ingot_runtime.native import cuda_driver
from ingot_runtime.native.native_library import Blob, NativeLibrary

_log = logging.getLogger("ingot.codegen")

# Hopper with all that it can do, and everything from Ampere on that has its major version.
ARCHITECTURES = ("sm_90a", "sm_80")
# What PTX is written for: GPUs that came later compile it when a model is opened.
PTX = "compute_80"
_ARCHITECTURE = re.compile(r"sm_\d{2,3}a?")
# The host's part only launches: to optimize it takes longer than to compile the kernels of a small model, and saves
# 0.3 µs of a call.
_HOST_FLAGS = ("-O0",)
_BASELINES = {"x86_64": "x86-64", "aarch64": "aarch64"}


class CudaTarget(NativeTarget[CudaSource]):
    name = "cuda"
    precisions = ("float32", "tf32")
    peak_rates = (0.0, 0.0)  # not known: no row of a profile is compared with them
    optional_passes = (*SELECTED_KERNELS, *dict.fromkeys(name for name, _ in SCHEDULE))
    layouts = (ReorderedLayout, SwizzledTiles, CodeFragments, FragmentScales, CodeRows)
    reference_rules = REFERENCE_RULES

    def preserved_ops(self, disabled: Collection[str] = ()) -> tuple[Any, ...]:
        """Without transforms: they become products."""
        return tuple(op for op in super().preserved_ops(disabled) if op not in fourier.OPERATORS)

    def strategy(self, disabled: Collection[str] = ()) -> CudaStrategy:
        return CudaStrategy(disabled)

    def schedule(
        self,
        module: Module,
        disabled: Collection[str] = (),
        *,
        verify: bool = False,
        observe: ScheduleObserver = ignore_pass,
    ) -> Module:
        return schedule(module, disabled, verify=verify, observe=observe)

    def emit(self, module: Module, *, title: str = "model") -> CudaSource:
        source = emit(module, plan(module), title=title)
        _log.info(
            "%s: %d bytes of CUDA C++, %d kernel launches, %d bytes of weights",
            title,
            len(source.device.encode()),
            len(source.launches),
            source.weights_size,
        )
        return source

    def build(
        self, source: CudaSource, machines: str | Sequence[str] | None = None, *, cache: bool = True
    ) -> dict[str, bytes]:
        """A library for the host, and an image for each architecture: those that are named, else `ARCHITECTURES`.

        "sm_86" names an architecture, "ptx" text that newer ones compile, any other name an instruction set of a host
        to build for besides this one's. Needs no GPU.
        """
        names = [machines] if isinstance(machines, str) else list(machines or ())
        architectures, hosts = split_machines(names)
        return self._build(source, architectures, hosts, cache)

    def choose_machines(self, device: int | None) -> tuple[str, ...]:
        """The architecture, among those of the default, whose code the GPU runs: a file is for the others, too."""
        if device is None:
            return ()
        try:
            found = cuda_driver.find_driver().devices()[device].architecture
        except (DeviceUnavailable, IndexError):  # the call of the model raises it
            return ()
        return choose_architecture(found)

    def build_rest(self, source: CudaSource, libraries: Mapping[str, bytes], *, cache: bool = True) -> dict[str, bytes]:
        missing = [name for name in ARCHITECTURES if name not in libraries]
        made = {**libraries, **(self._build(source, missing, [], cache) if missing else {})}
        return {name: made[name] for name in (*(name for name in libraries if not is_image(name)), *ARCHITECTURES)}

    def _build(
        self, source: CudaSource, architectures: Sequence[str], hosts: Sequence[Isa], cache: bool
    ) -> dict[str, bytes]:
        store = Cache.from_settings(Settings.from_environment()) if cache else Cache(None)
        # NVRTC runs without Python's lock, and as often at once as it is called.
        with ThreadPoolExecutor(cores()) as workers, ThreadPoolExecutor(len(architectures)) as threads:
            images = threads.map(lambda name: self.build_image(source, name, store, workers), architectures)
            flags = (*_HOST_FLAGS, f"-DIG_CUDA_VERSION={self.toolkit_version()}")
            made = {
                isa.name: store.read_library(source.host, isa, find(), extra_flags=(*flags, f'-DIG_ISA="{isa.name}"'))
                for isa in hosts
            }
            return {**made, **dict(zip(architectures, images, strict=True))}

    def build_image(self, source: CudaSource, name: str, store: Cache, workers: Executor) -> bytes:
        """The device text compiled for an architecture, its parts at the same time."""
        version = ".".join(map(str, nvrtc.version()))
        made_by = ("nvrtc", version, name, *nvrtc.FLAGS, FORMAT)
        is_text = name.startswith("compute_")

        def compile_part(text: str) -> bytes:
            return nvrtc.compile_text(text, name.replace("compute_", "sm_"), ptx=is_text)

        def compile_all() -> bytes:
            texts = source.parts
            order = sorted(range(len(texts)), key=lambda number: -len(texts[number]))  # what takes longest, first
            made = dict(zip(order, workers.map(compile_part, [texts[number] for number in order]), strict=True))
            return pack_parts([made[number] for number in range(len(texts))])

        return store.read_image("\0".join(source.parts), made_by, compile_all)  # also which kernels are together

    def toolkit_version(self) -> int:
        """Of what compiles the images, as the driver counts: 13000 for CUDA 13.0."""
        major, minor = nvrtc.version()
        return 1000 * major + 10 * minor

    def pack_weight(self, weight: PackedWeight, buffer: Buffer, state: torch.Tensor) -> torch.Tensor:
        made = torch.empty(require_static(byte_size(buffer)), dtype=torch.uint8)
        pack_weight(made, weight, buffer, state)
        return made.view(getattr(torch, buffer.dtype))

    def pack_weights(
        self, program: Program, module: Module, source: CudaSource, pages: Pages | None = None
    ) -> WeightBlob:
        """The program's state as the module's kernels read it."""
        return fill(program, module, source.weights, source.weights_size, pack_weight, pages)

    def host_library(self) -> str:
        return baseline().name

    def open_model(
        self,
        spec: Spec,
        library: NativeLibrary,
        weights: Blob,
        images: Mapping[str, bytes],
        threads: int | None,
        device: int,
    ) -> DeviceModel:
        """The device is looked for by the first call: a model can be compiled and saved where there is none."""
        return DeviceModel("<memory>", spec, library, weights, images, device, None, is_lazy=True)


def baseline() -> Isa:
    """The instruction set that every host of this kind has: the GPU computes."""
    return ISAS[_BASELINES.get(architecture(), "plain")]


def split_machines(names: Sequence[str]) -> tuple[list[str], list[Isa]]:
    """Architectures of GPUs to build images for, and hosts to build libraries for. Raises UnsupportedMachine."""
    hosts = {baseline().name: baseline()}
    architectures = []
    for name in names:
        if name == "ptx":
            continue
        if _ARCHITECTURE.fullmatch(name):
            architectures.append(name)
        elif name in ISAS:
            hosts[name] = find_isa(name)
        else:
            raise UnsupportedMachine(
                format_error(
                    f"there is no architecture called {name!r}",
                    why='a GPU\'s is called "sm_80", "sm_90a" and so on; "ptx" is text that future GPUs can compile',
                    fix=f"use such a name, or an instruction set of a host: {', '.join(ISAS)}",
                )
            )
    wanted = architectures or list(ARCHITECTURES)
    return list(dict.fromkeys([*wanted, *([PTX] if "ptx" in names else [])])), list(hosts.values())


def choose_architecture(device: str) -> tuple[str, ...]:
    """The one of `ARCHITECTURES` whose code a device of this architecture ("sm_90") runs best, as `ig_rank_image` of
    c/driver.h ranks them; none where it runs none."""
    own = int(device.removeprefix("sm_"))
    if f"{device}a" in ARCHITECTURES:
        return (f"{device}a",)
    plain = [int(name.removeprefix("sm_")) for name in ARCHITECTURES if not name.endswith("a")]
    return tuple(f"sm_{number}" for number in sorted(n for n in plain if n // 10 == own // 10 and n <= own)[-1:])


CUDA = CudaTarget()
