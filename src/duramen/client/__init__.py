"""The Kafka protocol from the other side, for raw batches: connections, metadata, fetch and produce."""
