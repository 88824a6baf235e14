"""Rules of matrix products and factorizations."""
