"""One segment of a log: batches, indexes, seal, and the producers and leader epochs that its batches tell of."""
