"""The `duramen` command line."""
