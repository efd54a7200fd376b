# Further arguments: make expiry-spark EXPIRY_RUNS=2000
EXPIRY_RUNS ?= 250

.PHONY: expiry-spark
expiry-spark: $(VENV)/dev.stamp ## 500 readers and 50 queries whose records expire at random: nothing is lost without its name
	EXPIRY_RUNS=$(EXPIRY_RUNS) $(BIN)/python -m pytest -q -p no:randomly tests/unit/spark/source/test_batch_reader_expiry.py
	EXPIRY_QUERIES=50 $(BIN)/python -m pytest -q -s -o timeout=900 -p no:randomly tests/spark/test_source.py -k expire_meanwhile
