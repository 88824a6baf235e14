"""Two texts per model: the device's kernels in CUDA C++, and the host's run and exports in C.

    emit(module, plan) -> CudaSource(device, host, weights, …)

Identical kernels are written once. The run records their launches, each with the module path and the user's line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ingot.codegen.entry_points import PlacedWeight, place_weights
from ingot.codegen.native_source import KernelLaunch
from ingot.errors import UnsupportedOperator, format_error
from ingot.lowering.cost_model import bytes_moved, flops
from ingot.lowering.loop_ir import SourceLocation, Stmt
from ingot.lowering.loop_module import Module
from ingot.scheduling.buffer_planning import MemoryPlan
from ingot.targets.cuda.codegen import writer_modules as writer_modules
from ingot.targets.cuda.codegen.device_library import DeviceLibrary
from ingot.targets.cuda.codegen.host_text import HostText, KernelTable
from ingot.targets.cuda.codegen.kernel import MAP_WORDS, CudaKernel
from ingot.targets.cuda.codegen.kernel_rules import KERNELS
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter, StepScratch

# Bytes of arguments that every driver takes.
ARGUMENT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class CudaSource:
    """The texts, and the blob of weights that they expect."""

    device: str
    host: str
    weights: tuple[PlacedWeight, ...]
    weights_size: int
    launches: tuple[KernelLaunch, ...] = ()
    kernel_count: int = 0
    # The device text as it is compiled: the library with a share of the kernels each.
    parts: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return self.device

    @property
    def files(self) -> Mapping[str, str]:
        return {"model.cu": self.device, "model.c": self.host}


def emit(module: Module, plan: MemoryPlan, *, title: str = "model") -> CudaSource:
    return CudaModuleEmitter(module, plan, title).emit()


def kernel_text(name: str, kernel: CudaKernel, origin: SourceLocation | None = None) -> str:
    """A kernel as the device text has it."""
    maps = [f"const __grid_constant__ ig_tensor_map map{number}" for number in range(len(kernel.maps))]
    shape = f"{len(kernel.table)}, {len(kernel.table[0])}" if kernel.table else ""
    table = [f"const __grid_constant__ ig_layer_table<{shape}> layers"] if shape else []
    parameters = ", ".join([*maps, *table, *kernel.signature, "ig_context context"])
    comment = f"/* {str(origin).replace('*/', '* /')} */\n" if origin is not None else ""
    bounds = f"{kernel.block}, IG_RESIDENT({kernel.resident})" if kernel.resident > 1 else f"{kernel.block}"
    cluster, entry = "", f"IG_KERNEL_ENTRY({name})"
    if kernel.cluster > 1:
        cluster, entry = f"IG_CLUSTER({kernel.cluster}) ", f"IG_CLUSTER_ENTRY({name}, {kernel.cluster})"
    if kernel.together:
        entry = f"IG_GRID_ENTRY({name})"
    return (
        f'{comment}extern "C" __global__ void {cluster}__launch_bounds__({bounds}) {name}({parameters})\n'
        f"{{\n{kernel.text}\n}}\n{entry}\n"
    )


@dataclass
class CudaModuleEmitter:
    module: Module
    plan: MemoryPlan
    title: str
    library: DeviceLibrary = field(default_factory=DeviceLibrary)  # of all kernels
    used: DeviceLibrary = field(default_factory=DeviceLibrary)  # by the kernels that are being written
    table: KernelTable = field(default_factory=KernelTable)
    texts: list[str] = field(default_factory=list)
    libraries: list[DeviceLibrary] = field(default_factory=list)  # what each kernel uses
    launches: list[KernelLaunch] = field(default_factory=list)

    def emit(self) -> CudaSource:
        weights, size = place_weights(self.module)
        text = HostText(self.module, self.plan, self.table, self._write_step, self._add_kernel, self.writer)
        host = text.write(weights, size)
        count = len(self.table.shared)
        banner = (
            f"/* {self.title}, compiled by Ingot: {{}}.\n\n   {len(self.module.inputs)} inputs, "
            f"{len(self.module.outputs)} outputs, {count} kernels. */\n"
        )
        head = banner.format("what runs on the GPU")
        device = "\n".join([head, self.library.text(), *self.texts])
        parts = tuple(map(self._write_part, self.table.parts()))
        return CudaSource(
            device, banner.format("what runs on the host") + host, weights, size, tuple(self.launches), count, parts
        )

    def _write_part(self, kernels: Sequence[int]) -> str:
        """The text of some kernels, with as much of the library as they use."""
        library = self.library.select(self.libraries[kernel] for kernel in kernels)
        return "\n".join([library.text(), *(self.texts[kernel] for kernel in kernels)])

    def _write_step(self, step: Stmt) -> tuple[Sequence[CudaKernel], StepScratch]:
        write = KERNELS.get(type(step))
        if write is None:
            raise UnsupportedOperator(
                format_error(
                    f"{step.origin.op or 'An operator'} cannot be compiled for the CUDA target.",
                    where=", ".join(part for part in (step.origin.source, step.origin.module) if part) or None,
                    why=f"there is no kernel for a {type(step).__name__} yet",
                    fix='compile the model for target="cpu", or rewrite this line with other operators',
                )
            )
        writer = self.writer()
        made = write(writer, step)
        kernels = (made,) if isinstance(made, CudaKernel) else tuple(made)
        return kernels, writer.scratch

    def writer(self) -> CudaKernelWriter:
        """Writes kernels that are added before the next ones are written."""
        self.used = DeviceLibrary()
        return CudaKernelWriter(self.module.buffers, self.used, self.module.hints)

    def _add_kernel(self, kernel: CudaKernel, step: Stmt, is_first: bool) -> tuple[int, int]:
        """The number of the kernel, which is written once, and of this launch of it. A step's work counts for its
        first kernel."""
        words = MAP_WORDS * len(kernel.maps) + kernel.table_words + len(kernel.buffers) + len(kernel.sizes)
        if 8 * words + 32 > ARGUMENT_BYTES:
            raise UnsupportedOperator(
                format_error(
                    "A kernel reads and writes more tensors than can be passed to it.",
                    where=str(step.origin),
                    fix="compile with disable_passes that fuse less",
                )
            )
        known = self.table.find(kernel)
        if known is None:
            known = self.table.add(kernel)
            self.library.add(self.used)
            self.libraries.append(self.used)
            self.texts.append(kernel_text(f"k{known}", kernel, step.origin))
        work = flops(step) if is_first else 0
        moved = bytes_moved(step, self.module.buffers) if is_first else 0
        self.launches.append(KernelLaunch(f"k{known}", step.origin, work, work, moved))
        return known, len(self.launches) - 1
