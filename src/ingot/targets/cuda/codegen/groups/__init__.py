"""Kernels of several steps: each has blocks of its own in one grid."""
