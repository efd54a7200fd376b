"""Writing: who writes, what a task stages, and what the driver commits."""
