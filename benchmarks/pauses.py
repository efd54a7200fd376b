"""Owns one question: do checkpoints and garbage collections reach the p99 of the requests beside them?

Two nodes take turns under the same load, a record at a time to each of many partitions at a steady rate, timed from the
moment it was due. One makes checkpoints as by default, once a minute, so each half of a round has all that belongs to
one; the other makes none, and each is stopped while the other is measured. The answer is the ratio of their p99, and
for how much of the time its pauses held the first one's loop, by its own metrics.

python -m benchmarks.pauses [--rounds N] [--seconds S] [--rate R] [--partitions P] [--every S] [--only MODE]
                            [--data-dir DIR] [--small]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.text import Text

from benchmarks import clients, kafka_peer, machine
from benchmarks.broker_process import BrokerFailedError
from benchmarks.duramen_broker import DuramenBroker
from benchmarks.report import PARTIAL_RESULTS, RESULTS, Reporter, compare, terminal
from benchmarks.run import Side
from benchmarks.scenarios import Durability, Sample

MODES: tuple[Durability, ...] = ("page-cache", "fsync")
AIM = 1.1
"""Of the p99 with checkpoints to the one without."""
MOST_PAUSED = 0.01
"""Share of the time: pauses of less than this cannot be the p99 by themselves."""
LEAST = {"rounds": 5, "seconds": 62.0, "partitions": 1000}
"""Below these a run is not kept as a result."""
WARM_SECONDS = 1.0
SETTLE_SECONDS = 1.0
"""For what the node was at when it was stopped: the time for which it stood would count as its job's, or as a pause."""
NEVER_MS = 24 * 3600 * 1000
COUNTED = ("duramen_checkpoint_seconds", "duramen_checkpoint_pause_seconds", "duramen_gc_pause_seconds")


class Node(DuramenBroker):
    """A node that makes a checkpoint after so many milliseconds, if there is anything to make one of."""

    def __init__(self, directory: Path, checkpoint_ms: int) -> None:
        super().__init__(directory)
        self._checkpoint_ms = checkpoint_ms

    def command(self) -> Sequence[str]:
        return [*super().command(), "--set", f"log.flush.offset.checkpoint.interval.ms={self._checkpoint_ms}"]


@contextlib.contextmanager
def alone(others: Sequence[Side]) -> Iterator[None]:
    """What the others have left to do, the rest of a checkpoint above all, waits."""
    for other in others:
        other.broker.check_alive()
    pids = [other.broker.pid for other in others]
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def measure(side: Side, topic: str, options: argparse.Namespace) -> Sample:
    """One half of a round: what the client saw, and what the node counted meanwhile."""
    machine.settle_disk(side.broker.directory)
    broker = side.broker
    assert isinstance(broker, Node)
    time.sleep(SETTLE_SECONDS)
    before, stolen = broker.metrics(), machine.stolen_seconds()
    sample = clients.raw(
        "paced", broker.port, options.seconds + 60, topic=topic, partitions=options.partitions, rate=options.rate,
        seconds=options.seconds + WARM_SECONDS, warm=WARM_SECONDS, connections=16, size=100,
    )  # fmt: skip
    after = broker.metrics()
    sample["stolen_s"] = round(machine.stolen_seconds() - stolen, 2)
    for name in COUNTED:
        for kind in ("sum", "count"):
            key = f"{name}_{kind}"
            sample[key] = round(after.get(key, 0.0) - before.get(key, 0.0), 6)
    paused = sample["duramen_checkpoint_pause_seconds_sum"] + sample["duramen_gc_pause_seconds_sum"]
    sample["paused_share"] = paused / sample["seconds"]
    return sample


def all_rounds(sides: Sequence[Side], durability: Durability, options: Any, reporter: Reporter) -> list[list[Sample]]:
    """Of one durability: (with checkpoints, without) of each round; one before them does not count."""
    topic = f"paced-{durability}"
    for side in sides:
        side.create_topic(topic, options.partitions, durability)
    rounds = []
    for number in range(options.rounds + 1):
        found = []
        for side in sides:
            with alone([other for other in sides if other is not side]):
                found.append(measure(side, topic, options))
        if number:
            rounds.append(found)
        made, none = found
        reporter.note(
            f"  {durability} {number or 'warm-up'}: p99 {none['p99_us'] / 1e3:.2f} ms without checkpoints, "
            f"{made['p99_us'] / 1e3:.2f} with {made['duramen_checkpoint_seconds_count']:.0f} jobs of them, which held "
            f"the loop {made['duramen_checkpoint_pause_seconds_sum'] * 1e3:.0f} ms, collections "
            f"{made['duramen_gc_pause_seconds_sum'] * 1e3:.0f} ms"
        )
    return rounds


def report(rounds: list[list[Sample]], durability: Durability, reporter: Reporter) -> dict[str, Any]:
    """Print the medians of one durability; as they are stored."""
    made, none = ([each[number] for each in rounds] for number in (0, 1))
    row = compare(
        "p99", "ms", [each["p99_us"] / 1e3 for each in made], [each["p99_us"] / 1e3 for each in none], aim=AIM
    )  # fmt: skip
    share = sum(each["paused_share"] for each in made) / len(made)
    jobs = sum(each["duramen_checkpoint_seconds_count"] for each in made)
    met = row.met and share < MOST_PAUSED and jobs > 0
    reporter.console.print(
        Text(
            f"{durability}: p99 {row.theirs:.2f} ms without checkpoints, {row.ours:.2f} ms with them: median ratio "
            f"{row.ratio:.2f} (aim {row.aim}); {jobs:.0f} jobs and all collections held the loop for {share:.2%} of "
            f"the time (aim <{MOST_PAUSED:.0%}): {'met' if met else 'missed'}, {len(rounds)} rounds of "
            f"{made[0]['samples']:,} requests each way",
            style="green" if met else "red",
        )
    )
    return {
        "p99_with_ms": row.ours, "p99_without_ms": row.theirs, "median_ratio_p99": row.ratio, "aim": row.aim,
        "paused_share": share, "jobs": jobs, "met": met, "rounds": rounds,
    }  # fmt: skip


def benchmark(options: argparse.Namespace, reporter: Reporter) -> int:
    parent = options.data_dir or kafka_peer.ROOT / ".cache"
    parent.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="pauses-", dir=parent))
    started = datetime.now(UTC)
    facts: dict[str, Any] = {
        "made": f"{started:%Y-%m-%dT%H:%MZ}",
        "profile": "pauses",
        "settings": {key: getattr(options, key) for key in ("rounds", "seconds", "rate", "partitions", "every")},
        **machine.commit(),
        "machine": machine.describe(parent),
        "versions": machine.versions(),
    }
    try:
        facts["disk_before"] = machine.fdatasync_ms(directory)
        sides = [
            Side(Node(directory / "with", int(options.every * 1000))),
            Side(Node(directory / "without", NEVER_MS)),
        ]
        with contextlib.ExitStack() as stack:
            for side in sides:
                side.broker.prepare()
                stack.callback(side.broker.stop)
                side.broker.start(timeout=90)
                side.connect()
            for durability in MODES:
                if options.only in ("", durability):
                    rounds = all_rounds(sides, durability, options, reporter)
                    facts.setdefault("figures", {})[durability] = report(rounds, durability, reporter)
        facts["load_average_after"] = machine.describe(parent)["load_average"]
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    partial = options.only or any(getattr(options, key) < least for key, least in LEAST.items())
    path = (PARTIAL_RESULTS if partial else RESULTS) / f"{started:%Y-%m-%dT%H%M}-{facts['commit'][:9]}-pauses.json"
    reporter.write(facts, path)
    reporter.note(f"stored in {path.relative_to(kafka_peer.ROOT)}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, store; 2 for a setup problem."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pauses", description="Checkpoints and the p99")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=62.0, help="of one half of a round (default: %(default)s)")
    parser.add_argument("--rate", type=int, default=250, help="records a second (default: %(default)s)")
    parser.add_argument("--partitions", type=int, default=1000, help="that they go to (default: %(default)s)")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between checkpoints (default: %(default)s)")
    parser.add_argument("--only", default="", choices=("", *MODES), help="one durability")
    parser.add_argument("--small", action="store_true", help="a look in two minutes: 100 partitions, two short rounds")
    parser.add_argument("--data-dir", type=Path, help="parent of the data directory (default: .cache)")
    options = parser.parse_args(arguments)
    if options.small:
        options.rounds, options.seconds, options.partitions, options.every = 2, 8.0, 100, 3.0
    console = terminal()
    try:
        return benchmark(options, Reporter(console))
    except KeyboardInterrupt:
        console.print("stopped; the nodes are down and their data is removed")
        return 130
    except (BrokerFailedError, clients.ClientFailedError) as problem:
        console.print(str(problem), style="red", markup=False, highlight=False)
        return 2


if __name__ == "__main__":
    sys.exit(main())
