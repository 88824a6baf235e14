"""The CPU target: one C file, compiled to a library by this machine's C compiler."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, get_args

import torch

from ingot.codegen.build.cache import Cache
from ingot.codegen.build.isa import find_isas, host
from ingot.codegen.build.page_prefault import Pages
from ingot.codegen.build.toolchain import find_for
from ingot.codegen.weight_blob import WeightBlob, fill
from ingot.config import Settings
from ingot.ir.operators import fourier
from ingot.ir.program import Program
from ingot.lowering.index_expr import require_static
from ingot.lowering.loop_ir import Buffer
from ingot.lowering.loop_module import Module, PackedWeight
from ingot.scheduling.buffer_planning import byte_size, plan
from ingot.targets.base import NativeTarget, ScheduleObserver, ignore_pass
from ingot.targets.cpu.codegen.module_emitter import CSource, emit
from ingot.targets.cpu.codegen.weight_packing import pack_weight
from ingot.targets.cpu.kernel_selection.choices import KERNELS
from ingot.targets.cpu.kernel_selection.strategy import CpuStrategy
from ingot.targets.cpu.schedule.pipeline import SCHEDULE, schedule
from ingot.targets.cpu.schedule.reference_semantics import REFERENCE_RULES
from ingot.targets.cpu.schedule.weight_layouts import PackedLayout
from ingot_runtime.container.manifest import Spec
from ingot_runtime.cpu_features import cores
from ingot_runtime.model import Model
from ingot_runtime.native.native_library import Blob, NativeLibrary

_log = logging.getLogger("ingot.codegen")

# C compilers that may work on one model at the same time. The C text does not depend on it; the library's bytes do.
PARTS = 8


class CpuTarget(NativeTarget[CSource]):
    name = "cpu"
    precisions = ("float32", "bfloat16")
    optional_operators: Mapping[str, Collection[Any]] = {"dft": fourier.OPERATORS}
    optional_passes = (*KERNELS, *optional_operators, *dict.fromkeys(name for name, _ in SCHEDULE))
    layouts = get_args(PackedLayout)
    reference_rules = REFERENCE_RULES

    def strategy(self, disabled: Collection[str] = ()) -> CpuStrategy:
        return CpuStrategy(disabled)

    def schedule(
        self,
        module: Module,
        disabled: Collection[str] = (),
        *,
        verify: bool = False,
        observe: ScheduleObserver = ignore_pass,
    ) -> Module:
        return schedule(module, disabled, verify=verify, observe=observe)

    def emit(self, module: Module, *, title: str = "model") -> CSource:
        source = emit(module, plan(module), title=title)
        _log.info(
            "%s: %d bytes of C, %d kernel launches, %d bytes of weights",
            title,
            len(source.text.encode()),
            len(source.launches),
            source.weights_size,
        )
        return source

    def build(
        self, source: CSource, machines: str | Sequence[str] | None = None, *, cache: bool = True
    ) -> dict[str, bytes]:
        """A library for this machine, and for each instruction set named; "portable" names several."""
        names = [machines] if isinstance(machines, str) else list(machines or ())
        wanted = {host().name: host(), **{one.name: one for one in find_isas(names)}}
        parts = 1 + min(source.groups, cores(), PARTS)
        store = Cache.from_settings(Settings.from_environment()) if cache else Cache(None)
        return {
            name: store.read_library(source.text, one, find_for(one), extra_flags=(f'-DIG_ISA="{name}"',), parts=parts)
            for name, one in wanted.items()
        }

    def pack_weight(self, weight: PackedWeight, buffer: Buffer, state: torch.Tensor) -> torch.Tensor:
        made = torch.empty(require_static(byte_size(buffer)), dtype=torch.uint8)
        pack_weight(made, weight, buffer, state)
        return made.view(getattr(torch, buffer.dtype))

    def pack_weights(self, program: Program, module: Module, source: CSource, pages: Pages | None = None) -> WeightBlob:
        """The program's state as the module's kernels read it."""
        return fill(program, module, source.weights, source.weights_size, pack_weight, pages)

    def host_library(self) -> str:
        return host().name

    def open_model(
        self,
        spec: Spec,
        library: NativeLibrary,
        weights: Blob,
        images: Mapping[str, bytes],
        threads: int | None,
        device: int,
    ) -> Model:
        return Model("<memory>", spec, library, weights, threads or 0, None)


CPU = CpuTarget()
