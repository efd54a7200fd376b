# Crash states of every write path, and an error at every disk call (docs/internals/crash.md).
CRASH_SEEDS ?= 4

.PHONY: crash-states
crash-states: $(VENV)/dev.stamp ## every state a crash can leave of every write path: [CRASH_SEEDS=n]
	@$(BIN)/python -m tests.crash.sweep --seeds $(CRASH_SEEDS) --workers $(WORKERS)

.PHONY: disk-errors
disk-errors: $(VENV)/dev.stamp ## an error at every disk call of the code base, in every workload that comes by it
	@$(BIN)/python -m tests.crash.disk_errors --workers $(WORKERS)
