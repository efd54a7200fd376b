"""A log directory in use: its logs, checkpoints, housekeeping and scrubber."""
