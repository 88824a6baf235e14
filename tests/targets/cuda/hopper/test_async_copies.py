"""Barriers in shared memory, copies that they count, and clusters: a kernel that has nothing else."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import numpy as np
import pytest
import torch

from ingot.lowering.index_expr import Size
from ingot.targets.cuda.codegen.device_library import DeviceLibrary
from ingot.targets.cuda.codegen.kernel import MAP_WORDS, CudaKernel, Grid, TensorMap, map_words
from ingot.targets.cuda.codegen.module_emitter import kernel_text
from tests.support.cuda_emulation.kernels import GuardedMemory, KernelContext, build_text, check_cubin
from tests.support.cuda_emulation.toolkit import needs_nvrtc

ROWS, TERMS, BOX, THREADS = 13, 72, 8, 64

# Each of two blocks copies a box of 8 rows and 64 terms, and 1024 bytes; one warp asks for them, and the other one adds
# them and sends the sums of the first four terms of each row to the other block.
TEXT = """
#ifdef IG_HOPPER
    const ig_place base = ig_place_of(ig_shared()), full = base + 2048 + 128, sent = full + 8;
    const unsigned rank = ig_cluster_rank();
    if (threadIdx.x == 0) {
        ig_set_up_barrier(full, 1);
        ig_set_up_barrier(sent, 1);
        ig_show_barriers();
        ig_arrive_expecting(sent, 8 * 16);
    }
    __syncthreads();
    ig_arrive_at_cluster();
    ig_wait_for_cluster();
    if (ig_warp() == 1) {
        if (ig_lane() == 0) {
            ig_prefetch_map(map0);
            ig_arrive_expecting(full, 2048);
            ig_copy_box(base, map0, 16, (int)rank * 8, full);
            ig_copy_bytes(base + 1024, p0, 1024, full);
        }
        ig_syncwarp();
        return;
    }
    ig_wait_at_barrier(full, 0);
    const int row = ig_lane() % 8;
    float sums[4] = {0, 0, 0, 0};
    for (int term = 0; term < 64; ++term) {
        const int at = row * 128 + ((term / 8 ^ row) * 16 + term % 8 * 2);
        const uint16_t *const one = (const uint16_t *)(ig_shared() + at);
        sums[term % 4] += ig_bf16_to_f32(one[0]) + ig_bf16_to_f32(one[512]);
    }
    if (ig_lane() < 8) ig_send_floats(ig_place_in(base + 2048 + row * 16, rank ^ 1), sums, ig_place_in(sent, rank ^ 1));
    ig_wait_for_blocks(sent, 0);
    const float *const from = (const float *)(ig_shared() + 2048) + ig_lane();
    p1[blockIdx.x * 32 + ig_lane()] = *from;
    (void)context;
#endif
"""


def make_kernel() -> CudaKernel:
    tensor = TensorMap("a", 8, "bfloat16", (TERMS, ROWS), (80,), (64, BOX))
    signature = ("const uint16_t *__restrict__ p0", "float *p1")
    shared = 2048 + 128 + 16
    return CudaKernel(TEXT, signature, ("b", "out"), (), Grid(2), THREADS, shared, cluster=2, maps=(tensor,))


def write_text(kernel: CudaKernel) -> str:
    library = DeviceLibrary()
    library.use("async_copies.cuh")
    return f"{library.text()}\n{kernel_text('k0', kernel)}"


def test_copies_and_clusters() -> None:
    kernel = make_kernel()
    generator = torch.Generator().manual_seed(3)
    a = torch.randint(-8, 9, (ROWS * 80 + 8,), generator=generator).to(torch.bfloat16)
    b = torch.randint(-8, 9, (8, 64), generator=generator).to(torch.bfloat16)
    memory = {name: GuardedMemory(size) for name, size in (("a", 2 * a.numel()), ("b", 1024), ("out", 256))}
    for name, value in (("a", a), ("b", b)):
        memory[name].view[:] = value.reshape(-1).view(torch.uint8).numpy()
    (tensor,) = kernel.maps
    sizes: list[Size] = map_words(tensor)
    words = [memory["a"].address + 16, *map(int, map(str, sizes))]
    status = (ctypes.c_uint * 1)()
    arguments = [
        (ctypes.c_uint64 * MAP_WORDS)(*words),
        ctypes.c_void_p(memory["b"].address),
        ctypes.c_void_p(memory["out"].address),
        KernelContext(ctypes.addressof(status), 0, 0, 0),
    ]
    addresses = (ctypes.c_void_p * 4)(*[ctypes.addressof(one) for one in arguments])
    assert isinstance(kernel.shared, int)
    build_text(write_text(kernel)).k0__entry(
        addresses, (ctypes.c_uint * 3)(2, 1, 1), THREADS, ctypes.c_size_t(kernel.shared)
    )
    matrix = torch.zeros(16, 80)
    matrix[:ROWS, :TERMS] = torch.as_strided(a, (ROWS, TERMS), (80, 1), 8).float()
    row = torch.arange(8)[:, None]
    packed = b.float().reshape(8, 8, 8)[row, torch.arange(8)[None, :] ^ row].reshape(8, 64)
    expected = torch.stack([matrix[8 * (1 - one) : 8 * (1 - one) + 8, 16:] + packed for one in range(2)])
    sums = expected.reshape(2, 8, 16, 4).sum(2)
    for name, one in memory.items():
        one.check(name)
    np.testing.assert_array_equal(memory["out"].view.view(np.float32).reshape(2, 8, 4), sums.numpy())


FAULTS = {
    "was not set up": ("ig_set_up_barrier(full, 1);", ""),
    "than it expects": ("ig_arrive_expecting(full, 2048);", "ig_arrive_expecting(full, 2048); ig_arrive(full);"),
    "and others have ended": ("ig_arrive_expecting(full, 2048);", "ig_arrive_expecting(full, 2064);"),
    "is not aligned": ("p0, 1024, full", "p0 + 1, 1024, full"),
    "does not fit its layout": ("ig_copy_box(base,", "ig_copy_box(base + 64,"),
}


@pytest.mark.parametrize("message", FAULTS)
def test_faults_are_reported(message: str) -> None:
    """Mistakes end the process with a sentence."""
    before, after = FAULTS[message]
    assert before in TEXT
    program = (
        "import tests.targets.cuda.hopper.test_async_copies as module\n"
        f"module.TEXT = module.TEXT.replace({before!r}, {after!r})\nmodule.test_copies_and_clusters()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode < 0 and message in done.stderr, done.stderr[-2000:]


@needs_nvrtc
def test_copies_compile() -> None:
    cubins = check_cubin(write_text(make_kernel()))
    assert b"\x00k0" in cubins["sm_90a"] and len(cubins["sm_90a"]) > len(cubins["sm_80"])
