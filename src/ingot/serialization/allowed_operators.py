"""Which operators a Program file may call.

A program is data, and calling it must not do more than compute. So operators are allowed by a list, and not refused by
one: allowed_operators.txt has those of torch, made by the rule of tests/serialization/operator_table.py. It has none
that opens files, starts something, or takes memory by its address.

Operators of other libraries exist only where this process has registered them. They are allowed unless the caller of
`load` passes trust=False: a file chooses their arguments.
"""

from __future__ import annotations

import functools
from pathlib import Path

from ingot.ir import effect_tokens, functional_custom_ops

TABLE = Path(__file__).with_name("allowed_operators.txt")

# Those whose operators the table lists, and the others that torch uses for itself, none of whose are allowed.
NAMESPACES = frozenset({"aten", "prims", "quantized_decomposed", "onnx", "torch_attn"})
_OTHERS_OF_TORCH = """
    prim _quantized quantized quantization sparse mkl mkldnn mkldnn_prepacked onednn prepacked xnnpack static_runtime
    inductor inductor_prims _inductor_test debugprims rngprims debug_mode_ops profiler record_function streams cuda xpu
    mps metal metal_prepack vulkan vulkan_prepack tensorexpr symm_mem c10d c10d_functional _c10d_functional
    _c10d_functional_autograd _dtensor fsdp dist_rpc rpc dist_autograd export flex_lib onnx_symbolic _native _test
    _nested higher_order fb caffe2 _caffe2 c10 aoti_torch nvprims bucketing_functions
"""
_HIGHER_ORDER = """
    cond while_loop while_loop_stack_output scan map_impl associative_scan flex_attention flex_attention_backward wrap
    wrap_with_autocast wrap_with_set_grad_enabled wrap_activation_checkpoint tag_activation_checkpoint invoke_subgraph
    strict_mode hints_wrapper out_dtype _export_tracepoint
"""
_TORCH = NAMESPACES.union(_OTHERS_OF_TORCH.split())
_OWN = "ingot"

# The higher-order operators that a file may call.
HIGHER_ORDER = frozenset(_HIGHER_ORDER.split())


def is_allowed(namespace: str, name: str, overload: str, *, custom: bool = True) -> bool:
    """Whether a file may call `namespace::name.overload`; without `custom`, of torch and Ingot only."""
    for prefix in (
        effect_tokens.PREFIX,
        functional_custom_ops.PREFIX,
    ):  # what Ingot makes of an operator does what the operator does
        if namespace.startswith(prefix):
            return is_allowed(namespace.removeprefix(prefix), name, overload, custom=custom)
    if namespace in _TORCH:
        return overload in _table().get(f"{namespace}::{name}", ())
    return namespace == _OWN or custom


@functools.cache
def _table() -> dict[str, frozenset[str]]:
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return {name: frozenset(overloads) for name, *overloads in (line.split() for line in lines) if name != "#"}
