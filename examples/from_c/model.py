"""Compiles the model that main.c runs, and says what torch gives for the same input: 0, 1, 2, … in two rows of four."""

import sys

import torch
from torch import nn

import ingot

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3), nn.Softmax(-1)).eval()
x = torch.arange(8.0).reshape(2, 4)
compiled = ingot.compile(model, (x,), dynamic_shapes={"input": {0: "rows"}})
compiled.save(sys.argv[1])
with torch.no_grad():
    print("torch:", *("\n" + " ".join(f"{value:.6g}" for value in row) for row in model(x).tolist()), sep="")
