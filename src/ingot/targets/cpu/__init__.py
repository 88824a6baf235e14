"""The CPU target: one C file, compiled by the system's compiler."""
