"""Streams and what is asked of them: create, append, read, positions."""
