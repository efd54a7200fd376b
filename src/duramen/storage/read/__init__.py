"""Reading stored batches: where they are, which bytes are resident and verified, and look-ups by timestamp."""
