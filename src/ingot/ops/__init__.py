"""Functions of tensors that Ingot offers: each compiles behind the call."""
