"""A pass of your own: every GELU becomes its tanh approximation, in a program that is then compiled.

The rewrite changes numbers a little. `check="numerics"` finds that out and names the node, so it has to be allowed.
"""

import torch
from torch import nn

import ingot
from ingot.ir.outlining import graph_modules

aten = torch.ops.aten


def approximate_gelu(program: ingot.Program) -> int:
    """gelu becomes its tanh approximation.

    before   gelu = aten.gelu(linear)
    after    gelu = aten.gelu(linear, approximate="tanh")
    """
    changes = 0
    for module in graph_modules(program.graph_module):  # branches and loop bodies as well
        for node in module.graph.nodes:
            if node.target is aten.gelu.default and node.kwargs.get("approximate", "none") == "none":
                node.kwargs = {**node.kwargs, "approximate": "tanh"}
                changes += 1
    return changes


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4)).eval()
x = torch.randn(5, 16)
program = ingot.capture(model, (x,))

try:
    ingot.transform(program, [approximate_gelu], check="numerics")
except ingot.errors.NumericsError as error:
    print(f"with check='numerics': {str(error).splitlines()[0]}\n")

changed = ingot.transform(program, [approximate_gelu])  # structure is checked always
step = changed.history[-1]
print(f"{step.name}: {step.changes} changes")

compiled = ingot.compile(changed)
with torch.no_grad():
    for layer in model:
        if isinstance(layer, nn.GELU):
            layer.approximate = "tanh"
    torch.testing.assert_close(compiled(x), model(x))
print("the compiled program gives what eager gives with the approximation")
