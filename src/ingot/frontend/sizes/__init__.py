"""What conditions on dynamic sizes mean: simplification, trials at other sizes, ranges and constraints."""
