"""What a simulation checks: invariants, leaks, recovery that is repeated, and which states were reached."""
