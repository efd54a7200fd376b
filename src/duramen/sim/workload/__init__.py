"""What the simulated clients do: produce, consume, administer, compact, stage and commit."""
