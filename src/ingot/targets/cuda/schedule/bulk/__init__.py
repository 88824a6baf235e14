"""Products and convolutions whose operands are copied in whole tiles, and multiplied by Hopper's tensor cores."""
