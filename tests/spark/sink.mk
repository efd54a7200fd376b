# The sink of Spark under kills; see docs/internals/spark-sink.md. More: make torture-spark SINK_KILLS=1000 SINK_SEED=7
SINK_KILLS ?= 200
SINK_FAILURES ?= 1000
SINK_DRIVER_KILLS ?= 40
SINK_SEED ?= 1

.PHONY: torture-spark
torture-spark: $(VENV)/dev.stamp ## the exactly-once sink: node, driver and tasks killed at every arrow, each row once
	@PYTHONPATH=tests $(BIN)/python -m torture.sink_kills --kills $(SINK_KILLS) --failures $(SINK_FAILURES) --seed $(SINK_SEED)
	@PYTHONPATH=tests:tests/spark $(BIN)/python -m sink_driver_kills --kills $(SINK_DRIVER_KILLS) --seed $(SINK_SEED)
