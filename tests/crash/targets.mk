# Crash states of every write path, random lives of a directory, and an error at every disk call (docs/internals/crash.md).
CRASH_SEEDS ?= 4
LIVES ?= 4000

.PHONY: crash-states
crash-states: $(VENV)/dev.stamp ## every state a crash can leave of every write path: [CRASH_SEEDS=n]
	@$(BIN)/python -m tests.crash.sweep --seeds $(CRASH_SEEDS) --workers $(WORKERS)

.PHONY: crash-lives
crash-lives: $(VENV)/dev.stamp ## random lives of a log directory, cut by kills and power cuts at any disk call: [LIVES=n] [SEED=n: one life, step by step] [INTERLEAVED=1: jobs go on one disk call at a time, between each other] [DIRECTORIES=1: a whole broker with several log directories]
	@$(BIN)/python -m tests.crash.lives_sweep --lives $(LIVES) --workers $(WORKERS) $(if $(INTERLEAVED),--interleaved) $(if $(DIRECTORIES),--directories) \
		$(if $(filter command environment,$(origin SEED)),--seed $(SEED))

.PHONY: disk-errors
disk-errors: $(VENV)/dev.stamp ## an error at every disk call of the code base, in every workload that comes by it
	@$(BIN)/python -m tests.crash.disk_errors --workers $(WORKERS)
