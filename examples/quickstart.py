"""A small model compiled to native code, called like the model, saved, and read."""

import torch
from torch import nn

import ingot

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10)).eval()
x = torch.randn(8, 64)

compiled = ingot.compile(model, (x,))
result = compiled(x)  # torch tensors in and out; numpy arrays in and out work as well

with torch.no_grad():
    torch.testing.assert_close(result, model(x))
print(f"equal to eager: {tuple(result.shape)}, largest difference {(result - model(x)).abs().max().item():.1e}")

# The whole model is one C file, with the module and the line of your code that each kernel comes from.
print(f"{compiled.kernels} kernels in {compiled.source.count(chr(10))} lines of C for {compiled.isa}; one of them:")
print("\n".join(line for line in compiled.source.splitlines() if line.startswith(("/* ", "IG_KERNEL void k"))))
