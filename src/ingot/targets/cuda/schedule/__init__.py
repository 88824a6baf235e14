"""Scheduling passes of the CUDA target, and the types that they add to the loop IR."""
