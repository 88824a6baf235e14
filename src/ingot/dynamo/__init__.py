"""`torch.compile(model, backend="ingot")`: every graph that torch.compile makes becomes native code.

    compiled = torch.compile(model, backend="ingot")
    compiled(x).sum().backward()

Graphs for inference and for training alike: torch's AOTAutograd makes functional graphs of them, one without gradients,
a forward and a backward one with. What has no native code runs in eager, and a message of the logger "ingot.dynamo"
says why. Weights are packed when a graph for inference is compiled; if they change, they are packed again.
torch finds this package by the entry point group "torch_dynamo_backends".

    backend         what torch.compile calls
    native_graph    a functional graph as native code
    arguments       which arguments are tensors, state, and sizes
    results         strides of results, and results that share memory
    options, report what users choose, and what they hear
"""

from ingot.dynamo.backend import compile_graph
from ingot.dynamo.options import BackendOptions
from ingot.dynamo.report import GraphReport

__all__ = ["BackendOptions", "GraphReport", "compile_graph"]
