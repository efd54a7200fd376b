"""Staged records of sinks, and the commit that applies them to their destinations."""
