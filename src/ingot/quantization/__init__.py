"""Quantization of programs; its public names are in `ingot.quantize`."""
