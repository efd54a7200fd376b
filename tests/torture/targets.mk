# Real processes that are killed; see tests/torture. More: make torture KILLS=1000 TORTURE_SEED=7
KILLS ?= 200
CUTS ?= 20
FULL_DISK_KILLS ?= 12
BRIM_ROUNDS ?= 10
FAULTS ?= 40
NODES ?= 3
TORTURE_SEED ?= 1

.PHONY: torture
torture: $(VENV)/dev.stamp ## 200 kill -9 under load, 80 power cuts on real files, full disks, 40 faults of three nodes, all checked
	@$(BIN)/python -m tests.torture.kills --kills $(KILLS) --seed $(TORTURE_SEED)
	@$(BIN)/python -m tests.torture.cuts --rounds $(CUTS) --seed $(TORTURE_SEED)
	@$(BIN)/python -m tests.torture.full_disk --kills $(FULL_DISK_KILLS) --seed $(TORTURE_SEED)
	@$(BIN)/python -m tests.torture.brim --rounds $(BRIM_ROUNDS) --seed $(TORTURE_SEED)
	@$(BIN)/python -m tests.torture.nodes --nodes $(NODES) --faults $(FAULTS) --seed $(TORTURE_SEED)

.PHONY: torture-nodes
torture-nodes: $(VENV)/dev.stamp ## only the nodes of a cluster: killed, paused, stopped, two and all at once; FAULTS=40 NODES=3
	@$(BIN)/python -m tests.torture.nodes --nodes $(NODES) --faults $(FAULTS) --seed $(TORTURE_SEED)

# Only what is given: make torture-exactly-once FAULTS=20 NODES=3
given = $(if $(filter command line environment,$(origin $(1))),$(2) $($(1)))

.PHONY: torture-exactly-once
torture-exactly-once: $(VENV)/dev.stamp ## transactional copiers, and nodes below them, killed and paused: 50 faults on one node, 30 on three
	@$(BIN)/python -m tests.torture.exactly_once $(call given,NODES,--nodes) $(call given,FAULTS,--faults) --seed $(TORTURE_SEED)

# Further arguments: make torture-histories HISTORIES="--runs 3 --seconds 30 --nodes 3"
HISTORIES ?=

.PHONY: torture-histories
torture-histories: $(VENV)/dev.stamp ## transactional list-append by clients of both generations, killed: 15 runs of a minute, searched for anomalies
	@$(BIN)/python -m tests.torture.histories --seed $(TORTURE_SEED) $(HISTORIES)

POSITIONS_KILLS ?= 20

.PHONY: torture-positions
torture-positions: $(VENV)/dev.stamp ## a ledger that is killed 20 times for each way of keeping its position; two minutes
	@$(BIN)/python -m tests.torture.ledger_kills --kills $(POSITIONS_KILLS) --seed $(TORTURE_SEED)

.PHONY: torture-streams
torture-streams: $(VENV)/dev.stamp torture-positions ## nodes, gateways, writers and readers of streams, killed, paused and stopped 200 times: KILLS=200 NODES=3; half an hour
	@$(BIN)/python -m tests.torture.streams --kills $(KILLS) --nodes $(NODES) --seed $(TORTURE_SEED)

CONNECTIONS ?= 5000

.PHONY: torture-idle
torture-idle: $(VENV)/dev.stamp ## thousands of connections to a gateway that do nothing, beside one that works: CONNECTIONS=5000
	@$(BIN)/python -m tests.torture.idle_connections --connections $(CONNECTIONS)
