"""Writes of many requests, gathered into a batch for each partition."""
