# Models of what the cluster decides, explored exhaustively (docs/internals/quorum.md, replication.md, transactions.md).
.PHONY: models
models: $(VENV)/dev.stamp ## models of the cluster's decisions: all states within bounds, and without each rule: [STORIES=1]
	@$(BIN)/python -m tests.models.models_report $(if $(STORIES),--stories)
