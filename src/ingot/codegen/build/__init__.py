"""The C compiler: how it is found and run, and the cache of what it built."""
