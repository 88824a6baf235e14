"""C for a lowered program, and the shared library made from it.

library = Cache.from_settings(settings).library(source, isa.host(), toolchain.find())
"""
