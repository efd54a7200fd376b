"""Files: disk port, journal, segments, logs, recovery, checkpoints, retention. Synchronous."""
