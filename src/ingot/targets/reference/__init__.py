"""The reference target: loops interpreted with NumPy."""
