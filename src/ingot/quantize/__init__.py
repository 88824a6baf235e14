"""Quantization: a program of floats becomes one of whole numbers.

prepared = ingot.quantize.prepare(program, ingot.quantize.int8_static())
ingot.quantize.calibrate(prepared, batches)             # or call prepared(x) yourself
quantized = ingot.quantize.convert(prepared)            # a Program
quantized(x)

module = ingot.quantize.prepare_qat(program, ingot.quantize.int8_static())
train(module)                                           # like any nn.Module
quantized = ingot.quantize.convert(module)
"""

from ingot.quantize.calibration import calibrate, feed
from ingot.quantize.control import Controlled, accuracy_control
from ingot.quantize.conversion import convert
from ingot.quantize.preparation import Prepared, prepare, prepare_qat
from ingot.quantize.recipes import Recipe, int4_weight_only, int8_dynamic, int8_static, int8_weight_only
from ingot.quantize.reporting import Report, report
from ingot.quantize.scheme import Scheme

__all__ = [
    "Controlled",
    "Prepared",
    "Recipe",
    "Report",
    "Scheme",
    "accuracy_control",
    "calibrate",
    "convert",
    "feed",
    "int4_weight_only",
    "int8_dynamic",
    "int8_static",
    "int8_weight_only",
    "prepare",
    "prepare_qat",
    "report",
]
