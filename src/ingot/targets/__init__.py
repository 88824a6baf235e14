"""What loop IR is compiled for."""
