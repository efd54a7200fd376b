.PHONY: museum
museum: $(VENV)/dev.stamp ## public failures of storage systems, each with the guard that keeps it out and without
	@$(BIN)/python -m tests.museum
