# The way from topic to topic to table under kills; see docs/internals/spark-sink.md. More: make torture-spark SINK_ROUNDS=10 SINK_SEED=7
# Kills of each victim at each arrow of a real pipeline, executor JVMs on a local cluster; failures at each point of it.
SINK_ROUNDS ?= 3
SINK_FAILURES_EACH ?= 3
# Without Spark: kills of the node, and failures injected at named points.
SINK_KILLS ?= 40
SINK_FAILURES ?= 300
# Kills of each of the three pipelines in proof/, whose tables and topics are then computed in plain Python.
PROOF_KILLS ?= 20
SINK_SEED ?= 1

.PHONY: torture-spark
torture-spark: $(VENV)/dev.stamp ## the exactly-once sink: node, driver, executors killed at every arrow; two drivers; speculation; counted
	@PYTHONPATH=.:tests/spark $(BIN)/python -m spark_torture --rounds $(SINK_ROUNDS) --failures $(SINK_FAILURES_EACH) \
		--played-kills $(SINK_KILLS) --played-failures $(SINK_FAILURES) --proof-kills $(PROOF_KILLS) --seed $(SINK_SEED)
