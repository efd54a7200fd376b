# Spark's own Kafka connector; its jars come through Maven, from PATH (docs/spark.md).
.PHONY: conformance-spark-connector
conformance-spark-connector: $(VENV)/dev.stamp ## Spark's own Kafka connector against a node: batch, streams, losses (Java, Maven)
	DURAMEN_ALL_CONNECTOR=1 $(BIN)/python -m pytest -q -p no:randomly tests/spark/connector
