"""Transforms of loop IR that hold for every target."""
