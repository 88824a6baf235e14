"""Types in torch's words and in ONNX's."""

from __future__ import annotations

import onnx_ir as ir
import torch

# A short code for each type that a kernel may take, and ONNX's own name for it.
CODES = {
    "b1": "bool",
    "u1": "uint8",
    "i1": "int8",
    "u2": "uint16",
    "i2": "int16",
    "u4": "uint32",
    "i4": "int32",
    "u8": "uint64",
    "i8": "int64",
    "f2": "float16",
    "b2": "bfloat16",
    "f4": "float",
    "f8": "double",
}

BY_CODE: dict[str, torch.dtype] = {
    "b1": torch.bool,
    "u1": torch.uint8,
    "i1": torch.int8,
    "u2": torch.uint16,
    "i2": torch.int16,
    "u4": torch.uint32,
    "i4": torch.int32,
    "u8": torch.uint64,
    "i8": torch.int64,
    "f2": torch.float16,
    "b2": torch.bfloat16,
    "f4": torch.float32,
    "f8": torch.float64,
}
CODE_OF = {dtype: code for code, dtype in BY_CODE.items()}

TO_ONNX: dict[torch.dtype, ir.DataType] = {
    torch.bool: ir.DataType.BOOL,
    torch.uint8: ir.DataType.UINT8,
    torch.int8: ir.DataType.INT8,
    torch.uint16: ir.DataType.UINT16,
    torch.int16: ir.DataType.INT16,
    torch.uint32: ir.DataType.UINT32,
    torch.int32: ir.DataType.INT32,
    torch.uint64: ir.DataType.UINT64,
    torch.int64: ir.DataType.INT64,
    torch.float16: ir.DataType.FLOAT16,
    torch.bfloat16: ir.DataType.BFLOAT16,
    torch.float32: ir.DataType.FLOAT,
    torch.float64: ir.DataType.DOUBLE,
    torch.float8_e4m3fn: ir.DataType.FLOAT8E4M3FN,
    torch.float8_e5m2: ir.DataType.FLOAT8E5M2,
}

# What a kernel computes in that lacks a type: the first of these that it has. torch itself computes bfloat16 in
# float32 and rounds the result. float16 is missing here on purpose: ONNX Runtime does the same with it by itself, and
# on a GPU it runs as it is. Nothing is wider than float64 and the 64-bit integers.
WIDER: dict[torch.dtype, tuple[torch.dtype, ...]] = {
    torch.bfloat16: (torch.float32,),
    torch.bool: (torch.uint8, torch.int32, torch.int64, torch.float32),
    torch.uint8: (torch.int32, torch.int64, torch.float32),
    torch.int8: (torch.int32, torch.int64, torch.float32),
    torch.uint16: (torch.int32, torch.int64, torch.float32),
    torch.int16: (torch.int32, torch.int64, torch.float32),
    torch.uint32: (torch.int64, torch.float64),
    torch.int32: (torch.int64, torch.float64),
}


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
