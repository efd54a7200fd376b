# The simulator: the production server in a simulated world, from one seed (docs/internals/sim.md).
SEED ?= 1
SEEDS ?=
BREAK ?=
SIM = PYTHONHASHSEED=0 $(BIN)/python -m duramen.sim

.PHONY: sim sim-guards sim-cuts sim-long
sim: $(VENV)/run.stamp ## one simulated world: SEED=n [SEEDS=n] [BREAK=guard]
	@$(SIM) --seed $(SEED) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(BREAK),--break $(BREAK))

sim-guards: $(VENV)/run.stamp ## the guards that make sim BREAK=... can remove
	@$(SIM) --list-guards

sim-cuts: $(VENV)/run.stamp ## a power cut at every disk call of a 1,000-record run
	@$(SIM) --seed $(SEED) --cuts 1

sim-long: $(VENV)/run.stamp ## 1,000 seeds, each run twice with bit-equal histories
	@$(SIM) --seed 1 --seeds 1000
