"""Graphs run again under the tracer, by passes that change what is recorded."""
