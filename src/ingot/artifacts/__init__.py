"""Compiled models: in memory, in files, and their profiles."""
