# Streams and tables (docs/spark.md).
.PHONY: fold
fold: $(VENV)/dev.stamp ## table = fold(log) over 10,000 random histories in memory and 1,000 in each store; 50 tables whose columns change
	DURAMEN_FOLD_HISTORIES=10000 DURAMEN_FOLD_STORED=500 DURAMEN_FOLD_EVOLUTIONS=50 $(BIN)/python -m pytest -q -p no:randomly tests/unit/pipelines/tables/test_changelog_fold.py tests/unit/pipelines/tables/test_intervals.py tests/unit/pipelines/tables/test_schema_changes_in_stores.py

.PHONY: swaps
swaps: $(VENV)/dev.stamp ## a stream is swapped and swapped back under a live run, two kinds of readers and records that never rest
	DURAMEN_SPARK_LONG=1 $(BIN)/python -m pytest -q -s -p no:randomly tests/spark/pipelines/test_live_stream_swap.py
