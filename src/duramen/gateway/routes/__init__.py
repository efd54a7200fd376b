"""The one table of routes, and what is made from it."""
