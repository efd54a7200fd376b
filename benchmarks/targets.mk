# Side by side with a real Apache Kafka; see benchmarks/README.md. Java, Maven and a C compiler come from PATH.
# Further arguments: make bench BENCH="--only fsync --rounds 9"
BENCH ?=

.PHONY: bench
bench: $(VENV)/run.stamp ## Duramen beside Apache Kafka: ratios in 10 minutes
	@$(BIN)/python -m benchmarks.run $(BENCH)

# Which one: make bench-record RUN=bench-deep-reads
RUN ?= bench

.PHONY: bench-record
bench-record: ## a complete run that is stored among the tracked results, for maintainers
	@BENCH_RECORD=1 $(MAKE) --no-print-directory $(RUN)

.PHONY: bench-picture
bench-picture: $(VENV)/run.stamp ## draw the newest run of make bench-record for the README
	@$(BIN)/python -m benchmarks.chart

.PHONY: bench-full
bench-full: $(VENV)/run.stamp ## the whole comparison: more scenarios, longer rounds, half an hour
	@$(BIN)/python -m benchmarks.run --full $(BENCH)

# What a reader of old data does to those who follow the end; further arguments as above, see benchmarks/deep_reads.py
.PHONY: bench-deep-reads
bench-deep-reads: $(VENV)/dev.stamp ## the tail's p99 beside a reader of 4 GiB of cold log, twelve minutes
	@$(BIN)/python -m benchmarks.deep_reads $(BENCH)

# Further arguments: make bench-pauses PAUSES="--small"
PAUSES ?=

.PHONY: bench-pauses
bench-pauses: $(VENV)/run.stamp ## the p99 beside checkpoints and without them, half an hour
	@$(BIN)/python -m benchmarks.pauses $(PAUSES)

# Further arguments: make bench-restart RESTART="--small"
RESTART ?=

.PHONY: bench-restart
bench-restart: $(VENV)/run.stamp ## clean and unclean starts on 10 GB in 1,000 partitions, 10,000 idle ones; 10 minutes
	@$(BIN)/python -m benchmarks.restart $(RESTART)

# Further arguments: make bench-spark-read SPARK_READ="--small"
SPARK_READ ?=

.PHONY: bench-spark-read
bench-spark-read: $(VENV)/dev.stamp ## a topic into Spark beside Parquet: ratios, the decoder alone, micro-batches; 10 minutes
	@$(BIN)/python -m benchmarks.spark_read $(SPARK_READ)

# Spark's own connector with Kafka beside ours with a node; further arguments: SPARK_CONNECTOR="--small"
SPARK_CONNECTOR ?=

.PHONY: bench-spark-connector
bench-spark-connector: $(VENV)/dev.stamp ## Spark with a node beside Spark's own connector with Kafka (Java, Maven); 15 minutes
	@$(BIN)/python -m benchmarks.spark_connector $(SPARK_CONNECTOR)

# How long a plan over 1,000 partitions takes; see benchmarks/planning.py
.PHONY: bench-planning
bench-planning: $(VENV)/dev.stamp ## what Spark's driver asks of a node before each batch, one minute
	@$(BIN)/python -m benchmarks.planning

# The sink of Spark beside Spark's Parquet writer; SPARK_BENCH="--small" tries it out.
SPARK_BENCH ?=

.PHONY: bench-spark-sink
bench-spark-sink: $(VENV)/dev.stamp ## df.write into a node beside df.write to Parquet: ratios, ten minutes
	@$(BIN)/python -m benchmarks.spark_sink $(SPARK_BENCH)

# Upserts into a large table, through Spark; UPSERTS="--small" tries it out.
UPSERTS ?=

.PHONY: bench-upsert
bench-upsert: $(VENV)/dev.stamp ## 50,000 upserts into a table of a million rows through Spark, four minutes
	@$(BIN)/python -m benchmarks.upserts $(UPSERTS)

# Declared pipelines beside the same queries by hand; PIPELINES="--quick" tries it out, "--only history" is one case.
PIPELINES ?=

.PHONY: bench-pipelines
bench-pipelines: $(VENV)/dev.stamp ## declared tables, histories and joins beside PySpark with Delta by hand, ten minutes
	@$(BIN)/python -m benchmarks.pipelines $(PIPELINES)

# Further arguments: make bench-cluster CLUSTER="--small", or "--steady 10": full load for ten minutes instead
CLUSTER ?=

.PHONY: bench-cluster
bench-cluster: $(VENV)/dev.stamp ## three nodes that replicate: rates, delays, what each role costs, at rest; ten minutes
	@$(BIN)/python -m benchmarks.cluster $(CLUSTER)

# Further arguments: make failover FAILOVER="--kills 5 --silences 0"
FAILOVER ?=

.PHONY: failover
failover: $(VENV)/dev.stamp ## kill -9 of a leader to the first acknowledged write behind it, 20 times on three nodes; four minutes
	@$(BIN)/python -m benchmarks.failover $(FAILOVER)

# Further arguments: make bench-exactly-once EXACTLY_ONCE="--only groups", "--full"
EXACTLY_ONCE ?=

.PHONY: bench-exactly-once
bench-exactly-once: $(VENV)/run.stamp ## transactions and consumer groups beside Apache Kafka; ten minutes
	@$(BIN)/python -m benchmarks.exactly_once $(EXACTLY_ONCE)

# Further arguments: make bench-streams STREAMS="--small", "--only fan-out"
STREAMS ?=

.PHONY: bench-streams
bench-streams: $(VENV)/dev.stamp ## streams over HTTP: what readers and small writes cost; ten minutes
	@$(BIN)/python -m benchmarks.streams $(STREAMS)
