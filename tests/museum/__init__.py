"""Public failures of storage systems, rebuilt: each promise holds here, and breaks when its guard is taken out."""
