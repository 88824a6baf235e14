"""Numbers that the user brings for nodes, modules and kernels: read from files, matched by name, put into a view."""
