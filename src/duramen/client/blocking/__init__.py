"""Blocking connections for the command line, Spark and swaps."""
