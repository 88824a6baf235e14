"""A Program as an ONNX file: `convert` makes the model, one rule an operator; `write` stores it; `check` runs it.

ingot.export_onnx(program, "m.onnx")        in api.py: the passes first, then these three
"""
