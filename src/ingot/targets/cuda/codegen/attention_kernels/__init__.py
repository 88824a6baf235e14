"""What the kernels of attention are made of."""
