.PHONY: compaction-histories
compaction-histories: $(VENV)/dev.stamp ## 4,000 random histories of compacted logs, with crashes and restarts
	COMPACTION_HISTORIES=4000 $(BIN)/python -m pytest -q -n $(WORKERS) tests/scenarios/test_compaction.py
