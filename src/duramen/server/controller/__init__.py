"""The active controller as the other nodes reach it, and what they hand on to it."""
