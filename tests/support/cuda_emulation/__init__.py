"""Kernels of the CUDA target on this machine's CPU: their text compiled by g++ with emulator.h, blocks run in turn."""
