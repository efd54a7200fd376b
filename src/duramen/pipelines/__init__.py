"""Streams and tables declared in Python, run by Spark over topics of the log."""
