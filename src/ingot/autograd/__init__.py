"""Gradients of compiled models."""
