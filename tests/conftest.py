"""Puts this folder on the import path, so that every kind of test can use `serving` and `reading`."""
