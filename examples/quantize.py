"""A network is trained, quantized after training and in training, and compared layer by layer."""

import torch
from torch import nn

import ingot
from ingot.quantize import accuracy_control, calibrate, convert, int8_static, prepare, prepare_qat, report

torch.manual_seed(0)
x = torch.randn(512, 1, 8, 8)
y = (x[:, 0, :4].mean((1, 2)) > x[:, 0, 4:].mean((1, 2))).long()  # which half of the picture is brighter
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8, eps=1e-3), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Dropout(0.1), nn.Linear(128, 2),
)  # fmt: skip


def train(module: nn.Module, steps: int, rate: float) -> None:
    optimizer = torch.optim.Adam(module.parameters(), rate)
    module.train()
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    module.eval()


def accuracy(program: ingot.Program) -> float:
    with torch.no_grad():
        return float((program(x).argmax(1) == y).double().mean())


train(model, 40, 0.01)
program = ingot.capture(model, (x,))
print(f"float: {accuracy(program):.3f}")

quantized = convert(calibrate(prepare(program, int8_static()), [x]))
print(f"after training: {accuracy(quantized):.3f}")
report(program, quantized, [x])

kept = accuracy_control(program, int8_static(), [x], accuracy, max_drop=0.01)
print(f"accuracy control left {len(kept.in_float)} layers in float: {kept.score:.3f}")

module = prepare_qat(program, int8_static())
train(module, 10, 0.001)
trained = convert(module)
trained.verify()
print(f"in training: {accuracy(trained):.3f}")
