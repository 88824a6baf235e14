"""Analyses of programs: they change nothing."""
