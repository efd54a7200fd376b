"""Side-by-side benchmarks of Duramen and Apache Kafka; see README.md in this directory."""
