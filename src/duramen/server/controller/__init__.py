"""The active controller as other parts of a node reach it, and the life of a broker under it."""
