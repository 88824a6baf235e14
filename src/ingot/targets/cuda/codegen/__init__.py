"""Device and host text of a module."""
