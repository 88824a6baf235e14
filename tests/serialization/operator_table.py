"""The rule behind src/ingot/serialization/allowed_operators.txt: which operators of torch a Program file may call.

    python -m tests.serialization.operator_table --write      for the installed torch; read the diff before you commit

An operator is allowed if all of this holds:

    - it is one of the namespaces below, and a kernel of the dispatcher (TorchScript's own are not: they print, save, …)
    - it takes and returns tensors, numbers, bools, dtypes, devices and lists of these: no storage, stream or object
    - its texts are options (a mode, an equation, a message of an assertion), never the name of a file
    - its name is not among EXCLUDED, whose reasons stand there
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ingot import torch_internals as internals
from ingot.serialization.allowed_operators import NAMESPACES, TABLE

_KINDS = frozenset({"Tensor", "int", "bool", "float", "number", "complex", "Device", "Generator"})
_RESULTS = _KINDS - {"Device", "Generator"}
_OPTION_NAMES = """
    reduce activation algorithm padding_side norm assert_msg approximate mode ord rounding_mode interpolation driver p
    pad_mode UPLO side padding equation indexing api_name qk_matmul_output_mode
"""
_OPTIONS = frozenset(_OPTION_NAMES.split())
EXCLUDED = {
    "memory of the caller's choice, or pointers inside tensors": r"_?pin_memory|is_pinned|record_stream|set_?"
    r"|set_data|_reshape_alias(_copy)?|fbgemm_.*|_wrapped_.*|_cslt.*|_copy_from(_and_resize)?|_?resize_output_?|_lazy_clone",
    "layouts whose indices kernels do not check, and that a file cannot describe": r".*sparse.*|.*nested.*|.*jagged.*"
    r"|.*mkldnn.*|.*(csr|csc|bsr|bsc|coo).*|_?to_dense.*|_coalesced?_?|_(indices|values)(_copy)?|_nnz|_dim[IV]"
    r"|_sp(solve|diags)|_rowwise_prune|_sobol_engine.*|is_coalesced|coalesce|crow_indices.*|col_indices.*"
    r"|ccol_indices.*|row_indices.*|indices(_copy)?|values(_copy)?",
    "state of the process: autograd, functorch, caches, tests": r"_backward|retain_grad|_cufft_.*|_test_.*|_foobar"
    r"|.*_dual(_copy|_level)?|_fw_primal(_copy)?|_(add|remove)_batch_dim|_propagate_xla_data|_version"
    r"|_cudnn_init_dropout_state",
}
_EXCLUDED = re.compile("|".join(EXCLUDED.values()))


def is_allowed(schema: Any) -> bool:
    """Whether a Program file may call the operator with this schema."""
    if schema.name.partition("::")[0] not in NAMESPACES or _EXCLUDED.fullmatch(schema.name.partition("::")[2]):
        return False
    for argument in schema.arguments:
        kind = _kind(argument.type)
        if kind not in _KINDS and not (kind == "str" and argument.name in _OPTIONS):
            return False
    return all(_kind(result.type) in _RESULTS for result in schema.returns)


def allowed() -> Iterator[str]:
    """The operators of this torch that are allowed: "aten::add.Tensor"."""
    internals.operator_named("quantized_decomposed", "quantize_per_tensor", "default")  # registers that namespace
    for module in ("torch.nn.attention.varlen", "torch.onnx.ops"):  # which register theirs
        with contextlib.suppress(ImportError):  # an older torch
            importlib.import_module(module)
    dispatched = set(torch._C._dispatch_get_all_op_names())
    for schema in torch._C._jit_get_all_schemas():
        name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        if name in dispatched and is_allowed(schema):
            yield f"{schema.name}.{schema.overload_name or 'default'}"


def table_of(operators: Iterable[str]) -> str:
    """The text of the table: a line for each name, with its overloads."""
    lines: dict[str, list[str]] = {}
    for operator in sorted(set(operators)):
        name, _, overload = operator.partition(".")
        lines.setdefault(name, []).append(overload)
    head = (
        "# Operators of torch that a Program file may call; "
        "made by `python -m tests.serialization.operator_table --write`.\n"
    )
    return head + "".join(f"{name} {' '.join(overloads)}\n" for name, overloads in lines.items())


def _kind(kind: Any) -> str:
    text = str(kind)
    while inner := re.fullmatch(r"(?:List|Optional)\[(.*)\]", text):
        text = inner[1]
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true")
    text = table_of(allowed())
    if parser.parse_args().write:
        TABLE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
