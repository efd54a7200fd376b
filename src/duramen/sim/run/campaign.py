"""Many seeds on several processes: running them, adding up what they came to, and keeping the sum in a file.

Each seed is a world of its own, so which process runs it changes nothing: results arrive in the order of the seeds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from duramen.sim.check.coverage import STATES
from duramen.sim.check.invariants import InvariantViolated
from duramen.sim.mutations.coordinator_mutations import ALL_CLUSTER_GUARDS
from duramen.sim.mutations.mutations import Guard, taken_out
from duramen.sim.mutations.transaction_mutations import SINGLE_GUARDS
from duramen.sim.run.cluster_simulation import CLUSTER_STATES, simulate_cluster
from duramen.sim.run.simulation import SimulationResult, simulate
from duramen.sim.world.plan import KINDS, ClusterPlan, Plan


class Violation(NamedTuple):
    """A promise that broke under a seed. lines: the history, if it was kept."""

    seed: int
    invariant: str
    detail: str
    lines: tuple[str, ...] = ()


class SeedRun(NamedTuple):
    """One seed to run. twice: run it again and compare the histories. guard: taken out meanwhile. trace: keep lines.

    plan: of one node, or of a cluster, where it is one's.
    """

    seed: int
    twice: bool = True
    guard: str | None = None
    trace: bool = False
    plan: Plan | ClusterPlan | None = None


def run_one(job: SeedRun) -> SimulationResult | Violation:
    """Run a seed, once or twice; a broken promise is returned, any other exception is a bug of the simulator."""
    with taken_out(guard_named(job.guard)) if job.guard else contextlib.nullcontext():
        try:
            first = _simulate(job, keep_lines=job.trace)
            second = _simulate(job, keep_lines=False) if job.twice else first
        except InvariantViolated as violated:
            return Violation(job.seed, violated.invariant, violated.detail, tuple(violated.lines))
    if first.digest != second.digest:
        return Violation(job.seed, "SameSeedSameHistory", f"{first.digest} and {second.digest}")
    return first


def _simulate(job: SeedRun, *, keep_lines: bool) -> SimulationResult:
    if isinstance(job.plan, ClusterPlan):
        return simulate_cluster(job.seed, job.plan, keep_lines=keep_lines)
    return simulate(job.seed, job.plan, keep_lines=keep_lines)


def guard_named(name: str) -> Guard:
    """One of a node's or of a cluster's; KeyError where there is none."""
    return SINGLE_GUARDS[name] if name in SINGLE_GUARDS else ALL_CLUSTER_GUARDS[name]


def run_all(jobs: Iterable[SeedRun], processes: int) -> Iterator[SimulationResult | Violation]:
    """The jobs' results in their order, as they come."""
    if processes <= 1:
        yield from map(run_one, jobs)
        return
    # The pool would take every job at once, however late the later ones are made.
    room = threading.Semaphore(processes * 4)
    over = threading.Event()

    def paced() -> Iterator[SeedRun]:
        for job in jobs:
            room.acquire()
            if over.is_set():
                return
            yield job

    with multiprocessing.Pool(processes) as pool:
        try:
            for outcome in pool.imap(run_one, paced()):
                room.release()
                yield outcome
        finally:
            over.set()
            room.release()  # the pool ends only when nobody waits to give it a job


def jobs_for(
    seeds: Iterable[int], *, twice_every: int, guard: str | None = None, nodes: int = 1, kind: str = "everything"
) -> Iterator[SeedRun]:
    """A job for each seed; every so manieth is run twice. nodes: more than one are a cluster. kind: of world."""
    plan = replace(KINDS[kind].cluster, nodes=nodes) if nodes > 1 else KINDS[kind].single
    for seed in seeds:
        if guard is None:
            yield SeedRun(seed, seed % twice_every == 0, plan=plan)
        elif guard in ALL_CLUSTER_GUARDS:
            yield SeedRun(seed, twice=False, guard=guard, plan=ALL_CLUSTER_GUARDS[guard].cluster)
        else:
            yield SeedRun(seed, SINGLE_GUARDS[guard].twice, guard, plan=SINGLE_GUARDS[guard].plan)


@dataclass(slots=True)
class Tally:
    """What seeds came to, added up. history: a hash over the histories of all seeds, in their order.

    known: the states that such worlds can reach.
    """

    seeds: int = 0
    virtual_s: float = 0.0
    disk_calls: int = 0
    events: int = 0
    starts: int = 0
    deaths: int = 0
    facts: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    history: str = ""
    known: tuple[str, ...] = STATES

    def add(self, outcome: SimulationResult | Violation) -> None:
        """One more seed."""
        self.seeds += 1
        if isinstance(outcome, Violation):
            self.violations.append(outcome)
            return
        self.virtual_s += outcome.virtual_s
        self.disk_calls += outcome.disk_calls
        self.events += outcome.events
        self.starts += outcome.starts
        self.deaths += outcome.deaths
        self.facts += outcome.facts
        self.faults.update(outcome.faults)
        self.states.update(outcome.states)
        self.history = hashlib.sha256((self.history + outcome.digest).encode()).hexdigest()

    @property
    def never_reached(self) -> list[str]:
        """Named states that no seed reached."""
        return [state for state in self.known if not self.states[state]]

    def report(self, seconds: float) -> Iterator[str]:
        """The lines that a campaign ends with. seconds: of real time."""
        minutes = seconds / 60
        yield (
            f"{self.seeds} seeds in {minutes:.1f} minutes: {self.seeds / minutes:.0f} seeds a minute, "
            f"{self.virtual_s:.0f} simulated seconds, {self.starts} starts, {self.deaths} power cuts and kills, "
            f"{self.disk_calls} disk calls, {self.facts} facts checked"
        )
        yield "faults injected:"
        yield from (f"  {count:>8}  {kind}" for kind, count in sorted(self.faults.items()))
        yield "states reached:"
        yield from (f"  {count:>8}  {state}" for state, count in sorted(self.states.items()))
        never = self.never_reached
        yield f"states never reached: {', '.join(never) if never else 'none'}"
        yield f"violations: {len(self.violations)}"


def tally_for(nodes: int) -> Tally:
    """An empty one, of one node's worlds or of clusters."""
    return Tally() if nodes == 1 else Tally(known=CLUSTER_STATES)


class Book:
    """The file in which long campaigns are added up; a campaign continues behind its last seed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: dict[str, Any] = {"seeds_done": 0, "violations": [], "campaigns": []}
        if path.exists():
            self.content |= json.loads(path.read_text(encoding="utf-8"))

    @property
    def next_seed(self) -> int:
        """The first seed that was not run."""
        return int(self.content["seeds_done"]) + 1

    def write(self, tally: Tally, campaign: dict[str, Any], base: dict[str, Any]) -> None:
        """Replace the file by `base`, which it held before the campaign, plus what the campaign came to so far."""
        content = {**base, "seeds_done": base["seeds_done"] + tally.seeds}
        for name in ("virtual_s", "disk_calls", "events", "starts", "deaths", "facts"):
            content[name] = round(base.get(name, 0) + getattr(tally, name), 1)
        for name in ("faults", "states"):
            total = Counter(base.get(name, {}))
            total.update(getattr(tally, name))
            content[name] = dict(sorted(total.items()))
        content["states_never_reached"] = [state for state in tally.known if not content["states"].get(state)]
        content["violations"] = base["violations"] + [
            {"seed": each.seed, "invariant": each.invariant, "detail": each.detail[:500], "commit": campaign["commit"]}
            for each in tally.violations
        ]
        content["campaigns"] = [*base["campaigns"], {**campaign, "seeds": tally.seeds}]
        temporary = self.path.with_suffix(".new")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, self.path)
        self.content = content
