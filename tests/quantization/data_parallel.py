"""One of two processes that train together; test_qat starts them."""

from __future__ import annotations

import sys

import torch
from torch import nn

import ingot
from ingot.quantize import convert, int8_static, prepare_qat
from tests.quantization.qat_scenarios import Situation


def main(folder: str, rank: int) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    situation = Situation(2, False, True, "relu")
    x = torch.ones_like(situation.batch())
    module = prepare_qat(ingot.capture(situation.model().train(), (x,)), int8_static()).train()
    parallel = nn.parallel.DistributedDataParallel(module)
    optimizer = torch.optim.SGD(parallel.parameters(), 0.05)
    torch.manual_seed(rank)
    for _ in range(3):
        optimizer.zero_grad()
        parallel(situation.batch()).square().mean().backward()
        optimizer.step()
    parallel(x)  # what the first process observed, all know from now on
    made = {name: tensor for name, tensor in module.state_dict().items() if "quantizers" not in name}
    torch.save({**made, "result": convert(module.eval())(x).detach()}, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
