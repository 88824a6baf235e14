"""Writes what src/ingot/onnx/ort_kernel_types.py holds: python -m tests.onnx.kernel_table

Which types each operator's CPU kernel of ONNX Runtime takes, at the oldest opset that we write and at every newer one.
"""

from __future__ import annotations

from onnxruntime.capi import onnxruntime_pybind11_state as state

from ingot.onnx.dtypes import CODES

OLDEST, NEWEST = 18, 26


def kernels() -> dict[str, dict[str, frozenset[str]]]:
    """For each operator and type variable, the codes of the types that its kernels take at every opset."""
    names = {f"tensor({name})": code for code, name in CODES.items()}
    found: dict[str, dict[str, dict[int, set[str]]]] = {}
    for kernel in state.get_all_opkernel_def():
        if kernel.provider != "CPUExecutionProvider" or kernel.domain:
            continue
        first, last = kernel.version_range
        for opset in range(max(first, OLDEST), min(last, NEWEST) + 1):
            for variable, types in kernel.type_constraints.items():
                codes = {names[t] for t in types if t in names}
                found.setdefault(kernel.op_name, {}).setdefault(variable, {}).setdefault(opset, set()).update(codes)
    return {
        name: {
            variable: frozenset.intersection(*map(frozenset, by_opset.values())) for variable, by_opset in of.items()
        }
        for name, of in sorted(found.items())
    }


def limits() -> dict[str, dict[str, str]]:
    """The variables that some type is not allowed for, as the file writes them."""
    made = {}
    for name, of in kernels().items():
        limited = {
            v: " ".join(c for c in CODES if c in codes) for v, codes in of.items() if 0 < len(codes) < len(CODES)
        }
        if limited and "Quantize" not in name and "Dequantize" not in name:  # their types are the point
            made[name] = limited
    return made


if __name__ == "__main__":
    for name, of in limits().items():
        print(f'    "{name}": {{{", ".join(f"{chr(34)}{v}{chr(34)}: {chr(34)}{t}{chr(34)}" for v, t in of.items())}}},')
