"""What targets that emit C share: sizes and bodies as C text, portable headers, entry points, weights, compilers."""
