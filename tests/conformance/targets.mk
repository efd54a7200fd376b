# Random requests to Apache Kafka and to a node, in step; CHAPTER=transactions-1-7 repeats one that its report names.
REQUESTS ?= 5000
CHAPTER ?=

.PHONY: conformance-in-step
conformance-in-step: $(VENV)/dev.stamp ## random requests of transactions, groups, features to Apache Kafka and to a node, answers compared: [SEED=n] [REQUESTS=n] [CHAPTER=name] (Java, Maven)
	@$(BIN)/python -m tests.conformance.in_step.requests_in_step --seed $(SEED) --requests $(REQUESTS) $(if $(CHAPTER),--chapter $(CHAPTER))

SECONDS_MAX ?= 300

.PHONY: schemathesis-streams
schemathesis-streams: $(VENV)/dev.stamp ## requests made out of /openapi.json against a gateway: [SEED=n] [SECONDS_MAX=300] (pip)
	@SECONDS_MAX=$(SECONDS_MAX) $(if $(SEED),SEED=$(SEED)) $(BIN)/python -m tests.conformance.streams_schemathesis

.PHONY: conformance-rest
conformance-rest: $(VENV)/dev.stamp ## Confluent's Go client for its REST API against a gateway (git, Go)
	@test -d .cache/kafka-rest-sdk-go || git clone -q --depth 1 https://github.com/confluentinc/kafka-rest-sdk-go .cache/kafka-rest-sdk-go
	@$(BIN)/python -m pytest -q -p no:randomly -rs tests/conformance/test_rest_sdk.py
