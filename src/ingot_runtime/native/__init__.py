"""Native code: loading it, calling its C functions, and the arrays that pass between it and the caller."""
