"""Machine code of kernels as text, by a tool of the system: each line with its kernel and its line of C."""
