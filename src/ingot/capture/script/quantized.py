"""Quantized tensors and operators, as quantize and dequantize around operators on floats."""

from __future__ import annotations

from typing import Any

from ingot.capture.script.machine import Machine


def handles(name: str, inputs: list[Any]) -> bool:
    """Whether an operator is one of this file's."""
    return False


def run(machine: Machine, name: str, overload: str, inputs: list[Any]) -> Any:
    raise machine.refuse(f"The quantized operator {name} has no rule.")
