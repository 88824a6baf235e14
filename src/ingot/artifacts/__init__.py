"""Compiled models: in memory, in files, and what is measured of them."""
