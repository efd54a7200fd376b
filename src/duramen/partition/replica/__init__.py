"""One replica of a partition: append and fetch meet here, with the rules for batches and for offsets."""
