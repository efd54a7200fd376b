# The sink of Spark under kills; see docs/internals/spark-sink.md. More: make torture-spark SINK_ROUNDS=10 SINK_SEED=7
# Kills of each victim at each arrow of a real pipeline; of executor JVMs on a local cluster.
SINK_ROUNDS ?= 3
SINK_CLUSTER_ROUNDS ?= 1
# Without Spark: kills of the node, and failures injected at named points; the kills of the whole pipeline come on top.
SINK_KILLS ?= 40
SINK_FAILURES ?= 300
SINK_SEED ?= 1

.PHONY: torture-spark
torture-spark: $(VENV)/dev.stamp ## the exactly-once sink: node, driver, executors killed at every arrow; two drivers; speculation
	@PYTHONPATH=tests $(BIN)/python -m torture.sink_kills --kills $(SINK_KILLS) --failures $(SINK_FAILURES) --seed $(SINK_SEED)
	@PYTHONPATH=tests:tests/spark $(BIN)/python -m arrow_kills \
		--rounds $(SINK_ROUNDS) --cluster-rounds $(SINK_CLUSTER_ROUNDS) --seed $(SINK_SEED)
	@$(BIN)/python -m pytest -q -p no:randomly -p no:cacheprovider tests/spark/two_drivers.py tests/spark/speculation.py
