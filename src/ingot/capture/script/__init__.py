"""TorchScript → Program.

    parts.py        a ScriptModule becomes a tree of nn.Modules of the same names, with the same tensors
    machine.py      runs a TorchScript graph, node by node, on whatever values it is given
    operators.py    what each node does: operators of torch as they are, the interpreter's own ones in Python
    plain.py        … those on numbers, and questions about a tensor
    containers.py   … those on lists, dicts and text
    branches.py     branches that hang on values become cond
    loops.py        and loops while_loop
    functions.py    what goes in and out of either
    rows.py         lists that are as long as a run makes them
    values.py       what flows: tensors, plain values, numbers that only a run finds out
    quantized.py    quantized tensors and layers; quantized_layers.py, those that are one operator on floats
    inference.py    what optimize_for_inference leaves
    sources.py      where in the user's code a node comes from
    importing.py    the front door, and example arguments where none are given

The machine runs under the recorder of `capture`, so fake values, metadata, module calls and the signature come from
there. Nothing of a script is compiled or frozen first: what it says is what is recorded.
"""
