"""What is chosen while a program is lowered for a GPU."""
