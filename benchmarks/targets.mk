# Side by side with a real Apache Kafka; see benchmarks/README.md. Java, Maven and a C compiler come from PATH.
# Further arguments: make bench BENCH="--only fsync --rounds 9"
BENCH ?=

.PHONY: bench
bench: $(VENV)/run.stamp ## Duramen beside Apache Kafka: ratios in 10 minutes
	@$(BIN)/python -m benchmarks.run $(BENCH)

.PHONY: bench-full
bench-full: $(VENV)/run.stamp ## the whole comparison: more scenarios, longer rounds, half an hour
	@$(BIN)/python -m benchmarks.run --full $(BENCH)
