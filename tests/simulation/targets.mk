# The simulator: the production server in a simulated world, from one seed (docs/internals/sim.md).
SEED ?= 1
SEEDS ?=
MINUTES ?=
BREAK ?=
# NODES: 1 unless it is given; other targets have defaults of their own.
SIM_NODES = $(if $(filter command line environment,$(origin NODES)),$(NODES),1)
# everything, transactions, groups or streams.
WORLD ?= everything
# Seeds that run side by side.
PROCESSES ?= 2
SIM = PYTHONHASHSEED=0 $(BIN)/python -m duramen.sim

.PHONY: sim sim-guards sim-guards-removed sim-cuts sim-long sim-cluster
sim: $(VENV)/http.stamp ## simulated worlds: SEED=n [SEEDS=n] [NODES=3] [WORLD=transactions|groups|streams] [BREAK=guard] [PROCESSES=n]
	@$(SIM) --seed $(SEED) --nodes $(SIM_NODES) --world $(WORLD) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(BREAK),--break $(BREAK)) --processes $(PROCESSES)

sim-guards: $(VENV)/http.stamp ## the guards that make sim BREAK=... can remove
	@$(SIM) --list-guards

GUARD_TESTS = $(addprefix tests/simulation/,test_seeds.py test_transaction_seeds.py test_cluster_seeds.py)
sim-guards-removed: $(VENV)/dev.stamp ## every guard of every world is removed once, and found by the invariant that it names: [PROCESSES=n]
	@DURAMEN_ALL_GUARDS=1 $(BIN)/python -m pytest -q -n $(PROCESSES) --dist worksteal --durations=10 -k without $(GUARD_TESTS)

sim-cuts: $(VENV)/http.stamp ## a power cut at every disk call of a 1,000-record run
	@$(SIM) --seed $(SEED) --cuts 1

sim-long: $(VENV)/http.stamp ## go on with the seeds of benchmarks/results/sim.json: [SEEDS=1000] [MINUTES=n]
	@$(SIM) --book benchmarks/results/sim.json --processes $(PROCESSES) --commit "$$(git rev-parse --short HEAD)" \
		$(if $(SEEDS),--seeds $(SEEDS)) $(if $(MINUTES),--minutes $(MINUTES))

sim-cluster: $(VENV)/http.stamp ## the same for clusters of three, with benchmarks/results/sim-cluster.json: [SEEDS=1000] [MINUTES=n]
	@$(SIM) --nodes 3 --book benchmarks/results/sim-cluster.json --processes $(PROCESSES) \
		--commit "$$(git rev-parse --short HEAD)" $(if $(SEEDS),--seeds $(SEEDS)) $(if $(MINUTES),--minutes $(MINUTES))
