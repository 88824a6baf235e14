"""C for CPUs: a lowered Module becomes one readable C file, and a compiler makes a library of it."""
