"""`python -m ingot.cli` is `ingot`."""

from ingot.cli import main

main()
