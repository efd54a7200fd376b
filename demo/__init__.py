"""`make demo`: a year of flights through one node that is killed on the way, and a proof from what was read back."""
