# Bit flips in files at rest (docs/durability.md).
FLIPS ?= 10000

.PHONY: bit-flips
bit-flips: $(VENV)/dev.stamp ## 10,000 random bit flips in files at rest: each is noticed or changes no answer
	PYTHONHASHSEED=0 $(BIN)/python -m tests.scenarios.bit_flips --flips $(FLIPS)
