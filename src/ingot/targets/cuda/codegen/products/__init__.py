"""What kernels of products and convolutions are written of."""
