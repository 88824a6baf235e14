"""From text to cubins and a host library."""
