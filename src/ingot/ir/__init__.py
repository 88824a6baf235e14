"""The IR: programs, signatures, metadata, dims, dialects, the verifier and the printer."""
