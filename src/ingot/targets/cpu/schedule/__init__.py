"""The CPU's schedule: transforms of loop IR for its caches and instructions."""
