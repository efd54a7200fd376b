"""The data source `duramen` of PySpark: record batches to columns and back, planned and committed over the protocol."""
