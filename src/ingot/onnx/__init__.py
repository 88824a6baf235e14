"""A Program as an ONNX file: `convert` builds the model, one rule per operator; `write` stores it; `check` runs it.

ingot.export_onnx(program, "m.onnx")        in api.py: the passes first, then these three
"""
