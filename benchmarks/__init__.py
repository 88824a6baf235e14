"""Benchmarks: each prints its peers in the same table and writes what it measured to `benchmarks/results`."""
