"""What everything else speaks: the program, its signature, metadata, dims, dialects, verifier, printer, file format."""
