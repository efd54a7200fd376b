"""The ends of streams: one read, any number of readers."""
