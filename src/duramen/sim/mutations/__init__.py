"""Guards of the engine that a simulation takes out, to show that its invariants notice."""
