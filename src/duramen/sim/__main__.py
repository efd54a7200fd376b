"""The command `python -m duramen.sim`: run seeds, twice each, and print the history's hash or the broken promise."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Sequence

from duramen.sim.cuts import cut_everywhere
from duramen.sim.guards import GUARDS, removed
from duramen.sim.invariants import InvariantViolated
from duramen.sim.simulation import Result, simulate

HELD, BROKEN, USAGE = 0, 1, 2
SEARCHED_SEEDS = 200
"""Seeds within which the removal of any guard must break a promise."""


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
    made.add_argument("--break", dest="guard", metavar="GUARD", help="remove this guard and expect a promise to break")
    made.add_argument("--list-guards", action="store_true", help="name the guards and what each one prevents")
    made.add_argument("--trace", action="store_true", help="print the history's lines")
    made.add_argument("--cuts", type=int, metavar="STEP", help="a power cut at every STEP-th disk call of one run")
    return made


def replay(seed: int, guard: str | None) -> str:
    """The command that shows this seed again."""
    return f"make sim SEED={seed}" + (f" BREAK={guard}" if guard else "")


def one(seed: int, *, trace: bool, once: bool) -> Result:
    """Run a seed twice (unless `once`); the two histories must be equal to the bit."""
    first = simulate(seed, keep_lines=trace)
    if once:
        return first
    second = simulate(seed)
    if first.digest != second.digest:
        raise InvariantViolated("SameSeedSameHistory", f"{first.digest} and {second.digest}")
    return first


def run(seed: int, count: int, guard: str | None, *, trace: bool) -> int:
    """Run `count` seeds from `seed` on; returns the exit status."""
    started = time.perf_counter()
    with removed(guard) if guard else contextlib.nullcontext():
        for number in range(seed, seed + count):
            try:
                result = one(number, trace=trace, once=guard is not None)
            except InvariantViolated as violated:
                for line in violated.lines:
                    say(line)
                say(f"seed {number}: {violated.invariant} is violated")
                say(violated.detail)
                say(f"replay: {replay(number, guard)}")
                return BROKEN
            for line in result.lines:
                say(line)
            if count > 1 and not guard:
                say(f"seed {number}: {result.starts} starts, {result.disk_calls} disk calls, history {result.digest}")
    seconds = time.perf_counter() - started
    what = f"without the guard {guard}" if guard else "each run twice with equal histories"
    say(f"{count} seed{'s'[: count - 1]}, {what}: every promise held ({seconds:.1f} s, {seconds / count:.2f} s a seed)")
    if count == 1:
        say(f"{result.starts} starts, {result.disk_calls} disk calls, {result.virtual_s:.1f} simulated seconds")
    say(f"history {result.digest}")
    return HELD


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = parser().parse_args(arguments)
    if options.list_guards:
        for name, guard in GUARDS.items():
            say(f"{name:<16} {guard.__doc__}")
        return HELD
    if options.guard is not None and options.guard not in GUARDS:
        sys.stderr.write(f"no guard {options.guard!r}; there are: {', '.join(GUARDS)}\n")
        return USAGE
    count = options.seeds if options.seeds is not None else SEARCHED_SEEDS if options.guard else 1
    if count < 1 or (options.cuts is not None and options.cuts < 1):
        sys.stderr.write("--seeds and --cuts take a positive number\n")
        return USAGE
    if os.environ.get("PYTHONHASHSEED") != "0" and arguments is None:
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "duramen.sim", *sys.argv[1:]])
    seed = options.seed if options.seed is not None else 1
    if options.cuts is not None:
        return cuts(seed, options.cuts)
    return run(seed, count, options.guard, trace=options.trace)


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
