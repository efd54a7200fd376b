"""Many lives of a log directory on every core: what `make crash-lives` runs.

    python -m tests.crash.lives_sweep [--lives 4000] [--first-seed 1] [--workers 2] [--minutes M]
    python -m tests.crash.lives_sweep --seed 7        # one life, with all its steps
    python -m tests.crash.lives_sweep --interleaved   # their jobs interleaved at every disk call (interleaved.py)
    python -m tests.crash.lives_sweep --directories   # of a whole broker with several directories (broker_lives.py)

The exit status is 1 when a promise was broken.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.crash import broker_lives, interleaved
from tests.crash.lives import SMALL_FILES, Ending, live
from tests.crash.lives_steps import FAULTS

COVERED = (
    "starts",
    "power cuts in steps",
    "power cuts between calls",
    "power cuts in a start",
    "kills in steps",
    "kills between calls",
    "kills in a start",
    "starts killed at their end",
    "clean stops",
    "fenced",
    *(f"fault: {kind}" for kind in FAULTS),
    "appends refused",
    "batches",
    "batches behind gaps",
    "batches that hold the start",
    "checkpoints",
    "compactions",
    "durability changed",
    "epochs",
    "groups",
    "leases",
    "logs begun anew",
    "logs read",
    "maintenance: GrowJournalJob",
    "maintenance: ProducerSnapshotJob",
    "maintenance: RemoveFilesJob",
    "maintenance: RenameSegmentsJob",
    "maintenance: SealSegmentJob",
    "producers rebuilt",
    "rolls",
    "starts moved by retention",
    "starts raised",
    "times looked up",
    "topics deleted",
    "topics made",
    "topics made under an old name",
    "truncations",
    *(f"removed: {kind}" for kind in SMALL_FILES),
    "rolled back: duramen-checkpoint",
    "rolled back: recovery-point-offset-checkpoint",
)
"""What has to be met in a few hundred lives, by the names of `Ending.met`. Whatever else is met is counted, too."""
PROGRESS_SECONDS = 10
SHOWN = 20


class Kind(NamedTuple):
    """What lives are lived. covered: what has to be met in many of them; again: how to see one, but for its seed."""

    live: Callable[[int], Ending]
    covered: tuple[str, ...]
    again: str


WHOLE = Kind(live, COVERED, "make crash-lives SEED=")
"""Each job from its beginning to its end."""
INTERLEAVED = Kind(
    interleaved.live, (*COVERED, *interleaved.COVERED, *interleaved.RARE), "make crash-lives INTERLEAVED=1 SEED="
)
"""Jobs interleaved at every disk call."""
DIRECTORIES = Kind(broker_lives.live, broker_lives.COVERED, "make crash-lives DIRECTORIES=1 SEED=")
"""A broker with several log directories."""


@dataclass(slots=True)
class Lives:
    """What lives came to. ended: how many in which way; met: how often something was, by name; broken: those lives."""

    kind: Kind = WHOLE
    ended: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    broken: list[Ending] = field(default_factory=list)

    def add(self, ending: Ending) -> None:
        """Count one more."""
        self.ended[ending.how] += 1
        self.met += ending.met
        if ending.violation:
            self.broken.append(ending)

    @property
    def missing(self) -> list[str]:
        """What was never met, and should be."""
        return [name for name in self.kind.covered if not self.met[name]]


def gather(lives: Lives, endings: Iterable[Ending], count: int, minutes: float = float("inf")) -> None:
    """Count endings until all are there or the time is over; after a second, then now and then, tell how far it is."""
    began = time.monotonic()
    due = began + 1
    for ending in endings:
        lives.add(ending)
        if ending.violation:
            print(f"{ending.violation}\n    {lives.kind.again}{ending.seed}", flush=True)
        now = time.monotonic()
        if now >= due:
            due = now + PROGRESS_SECONDS
            print(
                f"{lives.ended.total():,} of {count:,} lives, {len(lives.broken)} broken, {now - began:.0f} s",
                flush=True,
            )
        if now - began > 60 * minutes:
            break


def report(lives: Lives, seconds: float) -> None:
    """How they ended, what was met, and each violation with the way to see it alone."""
    for name in sorted({*lives.kind.covered, *lives.met}):
        print(f"{name:50}{lives.met[name]:>12,}{'' if lives.met[name] else '  never'}")
    ended = ", ".join(f"{count:,} {how}" for how, count in sorted(lives.ended.items()))
    print(f"{lives.ended.total():,} lives ({ended}), {len(lives.broken):,} violations, {seconds:.0f} s")
    for ending in lives.broken[:SHOWN]:
        print(f"  {ending.violation}\n    {lives.kind.again}{ending.seed}")


def show(ending: Ending) -> None:
    """One life, step by step."""
    for line in ending.trace:
        print(line)
    print(f"life {ending.seed}: {ending.how}")
    if ending.violation:
        print(f"{ending.where}\n{ending.violation}")


def sweep(kind: Kind, seeds: range, workers: int, minutes: float = float("inf")) -> Lives:
    """The lives of these seeds, on so many processes."""
    began = time.monotonic()
    lives = Lives(kind)
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        gather(lives, pool.imap_unordered(kind.live, seeds, chunksize=4), len(seeds), minutes)
    report(lives, time.monotonic() - began)
    return lives


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.lives_sweep")
    parser.add_argument("--lives", type=int, default=4000)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    kinds = parser.add_mutually_exclusive_group()
    for name, each in {"--interleaved": INTERLEAVED, "--directories": DIRECTORIES}.items():
        kinds.add_argument(name, action="store_const", const=each, dest="kind", default=WHOLE)
    arguments = parser.parse_args()
    kind = arguments.kind
    if arguments.seed is not None:
        ending = kind.live(arguments.seed)
        show(ending)
        return 1 if ending.violation else 0
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.lives)
    return 1 if sweep(kind, seeds, arguments.workers, arguments.minutes).broken else 0


if __name__ == "__main__":
    sys.exit(main())
