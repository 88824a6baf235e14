"""What `ingot inspect` counts and infers: work and state by module, sizes of dims, shapes of values."""
