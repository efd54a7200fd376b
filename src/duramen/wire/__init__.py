"""Bytes and values, pure: messages, frames, record batches, compression, internal records."""
