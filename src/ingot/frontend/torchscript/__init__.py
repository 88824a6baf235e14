"""TorchScript → Program.

    module_adapter.py     a ScriptModule becomes a tree of nn.Modules of the same names, with the same tensors
    interpreter.py        runs a TorchScript graph, node by node, on whatever values it is given
    node_handlers.py      what each node does: operators of torch as they are, the interpreter's own ones in Python
    scalar_ops.py         … those on numbers, and questions about a tensor
    container_ops.py      … those on lists, dicts and text
    cond.py               data-dependent branches become cond
    while_loop.py         and loops while_loop
    subgraph_capture.py   the inputs and outputs of either
    dynamic_lists.py      lists whose length is data-dependent
    runtime_values.py     what flows: tensors, plain values, data-dependent numbers
    quantized_ops.py      quantized tensors and layers; quantized_layers.py, those that are one operator on floats
    mkldnn_ops.py         what optimize_for_inference leaves
    source_locations.py   where in the user's code a node comes from
    importer.py           the entry point, and example arguments where none are given

The machine runs under the recorder of `capture`, so fake values, metadata, module calls and the signature come from
there. Nothing of a script is compiled or frozen first: what it says is what is recorded.
"""
