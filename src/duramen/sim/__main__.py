"""The command `python -m duramen.sim`: run seeds and print what they came to, or the promise that broke."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from duramen.sim.check.invariants import InvariantViolated
from duramen.sim.mutations.coordinator_mutations import ALL_CLUSTER_GUARDS
from duramen.sim.mutations.transaction_mutations import SINGLE_GUARDS
from duramen.sim.run.campaign import Book, SeedRun, Violation, jobs_for, run_all, run_one, tally_for
from duramen.sim.run.power_cuts import cut_everywhere
from duramen.sim.world.plan import KINDS

HELD, BROKEN, USAGE = 0, 1, 2
SEARCHED_SEEDS = 200
"""Seeds within which the removal of any guard must break a promise."""
TWICE_EVERY = 10
"""In a long campaign every so manieth seed is run twice."""
SAVE_EVERY = 50
LONG_SEEDS = 1000


def say(text: str = "") -> None:
    """One line to standard output."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(
        prog="python -m duramen.sim",
        description="Run the production server in simulated worlds.",
        epilog="Exit status: 0 every promise held, 1 one broke, 2 usage.",
    )
    made.add_argument("--seed", type=int, default=None, help="the first (or only) seed; default 1")
    made.add_argument("--seeds", type=int, help="how many seeds; default 1, with --break up to 200")
    made.add_argument("--nodes", type=int, default=1, help="how many nodes the world has; more than one: a cluster")
    made.add_argument("--world", default="everything", choices=list(KINDS), help="what is at the centre of it")
    made.add_argument("--processes", type=int, default=1, help="how many seeds to run side by side")
    made.add_argument("--break", dest="guard", metavar="GUARD", help="remove this guard and expect a promise to break")
    made.add_argument("--list-guards", action="store_true", help="name the guards and what each one prevents")
    made.add_argument("--trace", action="store_true", help="print the history's lines")
    made.add_argument("--cuts", type=int, metavar="STEP", help="a power cut at every STEP-th disk call of one run")
    made.add_argument("--book", type=Path, help="continue behind the last seed of this file and add to it")
    made.add_argument("--minutes", type=float, help="with --book: stop after this time")
    made.add_argument("--commit", default="unknown", help="with --book: what the figures are of")
    return made


def replay(seed: int, guard: str | None, nodes: int, kind: str) -> str:
    """The command that shows this seed again."""
    if guard:
        return f"make sim SEED={seed}" + (f" NODES={nodes}" if nodes > 1 else "") + f" BREAK={guard}"
    world = "" if kind == "everything" else f" WORLD={kind}"
    return f"make sim SEED={seed}" + (f" NODES={nodes}" if nodes > 1 else "") + world


def tell(violation: Violation, guard: str | None, nodes: int = 1, kind: str = "everything") -> None:
    """What broke, and how to see it again."""
    for line in violation.lines:
        say(line)
    say(f"seed {violation.seed}: {violation.invariant} is violated")
    say(violation.detail)
    say(f"replay: {replay(violation.seed, guard, nodes, kind)}")


def run_single(seed: int, guard: str | None, nodes: int = 1, *, trace: bool, kind: str = "everything") -> int:
    """Run one seed twice (once without a guard); returns the exit status."""
    started = time.perf_counter()
    (job,) = jobs_for([seed], twice_every=1, guard=guard, nodes=nodes, kind=kind)
    result = run_one(job._replace(trace=trace))
    if isinstance(result, Violation):
        tell(result, guard, nodes, kind)
        return BROKEN
    for line in result.lines:
        say(line)
    what = f"without the guard {guard}" if guard else "run twice with equal histories"
    say(f"1 seed, {what}: every promise held ({time.perf_counter() - started:.1f} s)")
    say(f"{result.starts} starts, {result.disk_calls} disk calls, {result.virtual_s:.1f} simulated seconds")
    for title, counts in (("faults", result.faults), ("states", result.states)):
        say(f"{title}: {', '.join(f'{name} {count}' for name, count in sorted(counts.items())) or 'none'}")
    say(f"history {result.digest}")
    return HELD


def run(seed: int, count: int, guard: str | None, processes: int, nodes: int = 1, kind: str = "everything") -> int:
    """Run `count` seeds from `seed` on, until a promise breaks; returns the exit status."""
    started = time.perf_counter()
    tally = tally_for(nodes)
    jobs = jobs_for(range(seed, seed + count), twice_every=1, guard=guard, nodes=nodes, kind=kind)
    for outcome in run_all(jobs, processes):
        tally.add(outcome)
        if isinstance(outcome, Violation):
            tell(outcome, guard, nodes, kind)
            return BROKEN
        if tally.seeds % 100 == 0:
            say(f"{tally.seeds} seeds, {tally.seeds / (time.perf_counter() - started) * 60:.0f} a minute")
    for line in tally.report(time.perf_counter() - started):
        say(line)
    what = f"without the guard {guard}" if guard else "each run twice with equal histories"
    say(f"{count} seeds, {what}: every promise held")
    say(f"histories {tally.history}")
    return HELD


def run_long(path: Path, seeds: int | None, minutes: float | None, processes: int, commit: str, nodes: int = 1) -> int:
    """Continue the book's campaigns for so many seeds or minutes; violations are noted, and it goes on."""
    started = time.perf_counter()
    book = Book(path)
    base = dict(book.content)
    first = book.next_seed
    count = seeds if seeds is not None else 1 << 30 if minutes is not None else LONG_SEEDS
    tally = tally_for(nodes)

    def wanted() -> Iterator[SeedRun]:
        for job in jobs_for(range(first, first + count), twice_every=TWICE_EVERY, nodes=nodes):
            if minutes is not None and time.perf_counter() - started > minutes * 60:
                return
            yield job

    def save() -> None:
        seconds = time.perf_counter() - started
        campaign = {
            "commit": commit,
            "first_seed": first,
            "processes": processes,
            "minutes": round(seconds / 60, 1),
            "seeds_per_minute": round(tally.seeds / seconds * 60),
            "twice_every": TWICE_EVERY,
            "python": platform.python_version(),
            "cores": os.cpu_count(),
        }
        book.write(tally, campaign, base)

    for outcome in run_all(wanted(), processes):
        tally.add(outcome)
        if isinstance(outcome, Violation):
            tell(outcome, None, nodes)
        if tally.seeds % SAVE_EVERY == 0:
            save()
            say(f"seed {first + tally.seeds - 1}, {len(tally.violations)} violations")
    save()
    for line in tally.report(time.perf_counter() - started):
        say(line)
    say(f"{path}: {book.content['seeds_done']} seeds done, {len(book.content['violations'])} violations")
    return BROKEN if tally.violations else HELD


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = parser().parse_args(arguments)
    if options.list_guards:
        for name, guard in (SINGLE_GUARDS | ALL_CLUSTER_GUARDS).items():
            say(f"{name:<16} {guard.caught_by}: {(guard.__doc__ or name).splitlines()[0]}")
        return HELD
    if options.guard is not None and options.guard not in SINGLE_GUARDS | ALL_CLUSTER_GUARDS:
        sys.stderr.write(f"no guard {options.guard!r}; there are: {', '.join(SINGLE_GUARDS | ALL_CLUSTER_GUARDS)}\n")
        return USAGE
    count = options.seeds if options.seeds is not None else SEARCHED_SEEDS if options.guard else 1
    if min(count, options.processes, options.cuts or 1, options.nodes) < 1 or (options.minutes or 1) <= 0:
        sys.stderr.write("--seeds, --nodes, --processes, --minutes and --cuts take a positive number\n")
        return USAGE
    if os.environ.get("PYTHONHASHSEED") != "0" and arguments is None:
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "duramen.sim", *sys.argv[1:]])
    seed = options.seed if options.seed is not None else 1
    nodes = (
        ALL_CLUSTER_GUARDS[options.guard].cluster.nodes or 1 if options.guard in ALL_CLUSTER_GUARDS else options.nodes
    )
    if options.cuts is not None:
        return cuts(seed, options.cuts)
    if options.book is not None:
        return run_long(options.book, options.seeds, options.minutes, options.processes, options.commit, nodes)
    if count == 1 or options.trace:
        return run_single(seed, options.guard, nodes, trace=options.trace, kind=options.world)
    return run(seed, count, options.guard, options.processes, nodes, options.world)


def cuts(seed: int, step: int) -> int:
    """A power cut at every `step`-th disk call; returns the exit status."""
    started = time.perf_counter()
    try:
        calls, runs = cut_everywhere(seed, step, progress=say)
    except InvariantViolated as violated:
        say(f"seed {seed}: {violated.invariant} is violated")
        say(violated.detail)
        return BROKEN
    say(f"power cuts at {runs} of {calls} disk calls: every promise held ({time.perf_counter() - started:.1f} s)")
    return HELD


if __name__ == "__main__":
    sys.exit(main())
