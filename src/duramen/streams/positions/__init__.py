"""Where a reader keeps its position: with the data that it makes of the records, so that both change together."""
