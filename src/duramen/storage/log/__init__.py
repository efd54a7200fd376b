"""The log of one partition: append, roll, open, truncate, sync, retain."""
