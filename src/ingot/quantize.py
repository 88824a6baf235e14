"""Quantization: converts a float program into a QDQ (integer) program.

prepared = ingot.quantize.prepare(program, ingot.quantize.int8_static())
ingot.quantize.calibrate(prepared, batches)             # or call prepared(x) yourself
quantized = ingot.quantize.convert(prepared)            # a Program
quantized(x)

module = ingot.quantize.prepare_qat(program, ingot.quantize.int8_static())
train(module)                                           # like any nn.Module
quantized = ingot.quantize.convert(module)
"""

from ingot.quantization.accuracy_control import AccuracyControlResult, accuracy_control
from ingot.quantization.calibration import calibrate, feed
from ingot.quantization.convert import convert
from ingot.quantization.prepare import PreparedProgram, prepare, prepare_qat
from ingot.quantization.qscheme import Scheme
from ingot.quantization.recipes import Recipe, int4_weight_only, int8_dynamic, int8_static, int8_weight_only
from ingot.quantization.report import Report, report

__all__ = [
    "AccuracyControlResult",
    "PreparedProgram",
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
