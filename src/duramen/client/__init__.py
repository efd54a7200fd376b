"""The Kafka protocol from the other side, for raw batches between brokers. Empty until there are several brokers."""
