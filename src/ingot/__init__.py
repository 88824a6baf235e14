"""Ingot: PyTorch models captured as graphs, transformed by checked passes."""
from ingot.capture.front import trace as capture
from ingot.program.program import Program
