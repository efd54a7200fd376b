"""What the server counts, and how it is read over HTTP."""
