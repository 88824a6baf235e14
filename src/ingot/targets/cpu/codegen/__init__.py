"""C for CPUs: a lowered Module becomes one readable C file, which a compiler builds into a library."""
