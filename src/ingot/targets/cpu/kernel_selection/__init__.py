"""Kernels of the CPU, chosen while a program is lowered: which algorithm, which operand types, which layout."""
