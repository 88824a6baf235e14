"""Operators of our own that passes write into graphs: with kernels in torch, fakes and gradients."""
