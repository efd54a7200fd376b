"""Running simulations: one seed, campaigns of many, and a power cut at every disk call."""
