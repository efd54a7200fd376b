"""Real processes under load from real clients: killed with -9 at random moments, or left with only what they synced."""
