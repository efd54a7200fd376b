"""Arrow columns to record batches: every step works on whole columns, never on one record."""
