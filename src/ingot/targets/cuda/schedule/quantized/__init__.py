"""Products with weights of integers: their step, and how the integers and their scales lie."""
