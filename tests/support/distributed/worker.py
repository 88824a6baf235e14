"""One process of a job that trains: torchrun --standalone --nproc-per-node 2 -m tests.support.distributed.worker WAYS

Each way trains a model compiled and in eager, with the same batches, and prints a line of JSON per process.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import ingot
from tests.dynamo.recording import Recording

STEPS = 5
ROWS = 16

Wrap = Callable[[nn.Module, "Compile"], tuple[nn.Module, Any]]
Compile = Callable[[Any], Any]
_WAYS: dict[str, Wrap] = {}


class Block(nn.Module):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.first = nn.Linear(inside, 32)
        self.norm = nn.LayerNorm(32)
        self.second = nn.Linear(32, outside)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(self.first(x)).relu())


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(8, 16), Block(16, 16), Block(16, 4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def way(wrap: Wrap) -> Wrap:
    _WAYS[wrap.__name__] = wrap
    return wrap


def _identity(model: Any) -> Any:
    return model


# Each way: what has the parameters, and what to call. `compile` does nothing in eager.


@way
def ddp_of_compiled(model: nn.Module, compile: Compile) -> tuple[nn.Module, Any]:
    whole = DistributedDataParallel(compile(model))
    return whole, whole


@way
def compiled_ddp(model: nn.Module, compile: Compile) -> tuple[nn.Module, Any]:
    whole = DistributedDataParallel(model)
    return whole, compile(whole)


@way
def ddp_of_trained(model: nn.Module, compile: Compile) -> tuple[nn.Module, Any]:
    if compile is not _identity:
        model = ingot.compile(model, (torch.randn(ROWS, 8),), training=True, threads=1)
    whole = DistributedDataParallel(model)
    return whole, whole


@way
def fsdp_of_compiled(model: nn.Module, compile: Compile) -> tuple[nn.Module, Any]:
    for block in model.blocks:
        block.forward = compile(block.forward)
        fully_shard(block)
    fully_shard(model)
    return model, model


@way
def compiled_fsdp(model: nn.Module, compile: Compile) -> tuple[nn.Module, Any]:
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model, compile(model)


@way
def fsdp_of_trained(model: nn.Module, compile: Compile) -> tuple[nn.Module, Any]:
    if compile is not _identity:
        for place, (block, inside) in enumerate(zip(model.blocks, (8, 16, 16), strict=True)):
            model.blocks[place] = ingot.compile(block, (torch.randn(ROWS, inside),), training=True, threads=1)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model, model


@way
def compiled_tensor_parallel(model: nn.Module, compile: Compile) -> tuple[nn.Module, Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        del block.norm
        block.norm = nn.Identity()
        parallelize_module(block, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
    return model, compile(model)


def train(wrap: Wrap, compile: Compile, at_step: Callable[[int], None] = lambda _: None) -> dict[str, Any]:
    torch.manual_seed(0)
    whole, call = wrap(Model(), compile)
    optimizer = torch.optim.SGD(whole.parameters(), 0.1, momentum=0.9)
    same_data = wrap is compiled_tensor_parallel
    draws = torch.Generator().manual_seed(0 if same_data else dist.get_rank())
    losses = []
    for step in range(STEPS):
        x, labels = torch.randn(ROWS, 8, generator=draws), torch.randint(0, 4, (ROWS,), generator=draws)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(call(x), labels)
        at_step(step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    norms = [float(_whole(p).norm()) for p in whole.parameters()]
    return {"losses": losses, "norms": norms}


def _whole(parameter: Any) -> torch.Tensor:
    made = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    return made.detach()


def compare(name: str) -> dict[str, Any]:
    torch._dynamo.reset()
    eager = train(_WAYS[name], _identity)
    recording = Recording()
    found = train(_WAYS[name], functools.partial(torch.compile, backend=recording))
    return {
        "losses": found["losses"], "losses of eager": eager["losses"],
        "norms": found["norms"], "norms of eager": eager["norms"],
        "native": recording.native, "halves": recording.halves,
        "communications": [report.communications for report in recording.reports],
        "pieces": [report.pieces for report in recording.reports],
    }  # fmt: skip


def die(name: str) -> dict[str, Any]:
    """The last process is killed between the forward and the backward of its third step."""

    def at_step(step: int) -> None:
        if step == 2 and dist.get_rank() == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)

    return train(_WAYS[name], functools.partial(torch.compile, backend="ingot"), at_step)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for text in sys.argv[1:]:
        kind, _, name = text.rpartition(":")
        begin = time.monotonic()
        found = (die if kind == "die" else compare)(name)
        line = {"way": name, "rank": dist.get_rank(), "seconds": time.monotonic() - begin, **found}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
