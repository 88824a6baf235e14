"""What kernels of loops are made of: points, vectors, accumulators, nests."""
