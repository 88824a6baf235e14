"""Programs, loops and code as stages of a view, and what links them."""
