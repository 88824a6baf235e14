"""Deploying: this process compiles a model to one file, and another one, which has no torch, runs it."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import ingot

# All that the other process needs: Python, numpy, the package ingot_runtime and the file.
SERVER = """
import sys
sys.modules["torch"] = None  # importing torch is an error from here on

import numpy as np
import ingot_runtime

model = ingot_runtime.load(sys.argv[1])   # every byte is checked, weights are mapped
print(model.describe())
print(f"self-test: largest difference {model.self_test():.1e}")

result = model(images=np.load(sys.argv[2]))   # the model's own argument names; arrays in, arrays out
np.savez(sys.argv[3], **result)
"""


class Classifier(nn.Module):
    """A convolutional network with a dict as its result."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3),
            nn.ReLU(),
        )
        self.head = nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(self.body(images).mean((2, 3)))
        return {"logits": logits, "probabilities": logits.softmax(-1)}


torch.manual_seed(0)
model = Classifier().eval()
images = torch.randn(2, 3, 32, 32)

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    compiled = ingot.compile(model, (images,), dynamic_shapes={"images": {0: "batch"}})
    compiled.save(folder / "model.ingot")

    images = torch.randn(5, 3, 32, 32)  # another batch than the one it was compiled with
    np.save(folder / "images.npy", images.numpy())
    files = [str(folder / file) for file in ("model.ingot", "images.npy", "result.npz")]
    subprocess.run((sys.executable, "-c", SERVER, *files), check=True)

    result = np.load(folder / "result.npz")
    with torch.no_grad():
        for key, want in model(images).items():
            np.testing.assert_allclose(result[key], want.numpy(), rtol=1e-4, atol=1e-5)
            print(f"equal to eager: {key}, {result[key].shape}")
