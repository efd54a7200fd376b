"""Record batches to Arrow columns and back: decode, encode, typed values, schema, partitioner."""
