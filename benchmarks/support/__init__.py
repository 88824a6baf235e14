"""What several benchmarks share, besides the models and the report."""
