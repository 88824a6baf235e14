"""What the pass manager does around a pass: dumps and numeric checks."""
