"""Owns one question: does a reader that goes back through gigabytes of cold log hurt those who follow its end?

A producer and a tailing consumer work at a steady rate; in every other round a second reader takes an old log from
its beginning, as fast as it gets it: by Fetch from the broker, or with `--reader storage` as Spark's tasks do, from the
files and past the broker. The answer is the ratio of the tail's p99 with that reader and without it, and how much of
the tail's log and of the old one is in memory before and after. The same ratio stands beside it for a process that
reads the same files as fast, takes as much processor time as that reading did, and has nothing to do with the node:
what sharing the machine costs.

python -m benchmarks.deep_reads [--reader fetch|storage] [--rounds N] [--seconds S] [--rate R] [--gib G] [--only MODE]
                                [--kafka] [--data-dir DIR] [--small]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from rich.text import Text

from benchmarks import clients, kafka_peer, machine
from benchmarks.broker_process import BrokerFailedError, BrokerProcess
from benchmarks.duramen_broker import DuramenBroker
from benchmarks.kafka_peer import KafkaPeer, PeerUnavailableError
from benchmarks.report import PARTIAL_RESULTS, RESULTS, Reporter, compare, terminal
from benchmarks.run import Side
from benchmarks.scenarios import Durability, Sample
from duramen.page_cache import PAGE_BYTES, count_call

MIB = 1 << 20
GIB = 1 << 30
AIMS: dict[Durability, float] = {"page-cache": 1.3, "fsync": 2.0}
HALVES = ("alone", "beside", "beside_bystander")
LEAST = {"rounds": 7, "gib": 4.0, "samples": 20_000}
"""Below these a run is not kept as a result."""

PARTITIONS = 4
HEAD_START_SECONDS = 1.0
"""By which the second reader is under way when the measurement begins."""

SEALING_SECONDS = 90.0
STORAGE_SEGMENT_BYTES = 64 * MIB
PROBES = 500
DROPS = 30
_COUNT = count_call()


class WarmError(Exception):
    """The old log could not be driven out of memory, so nothing would be measured."""


class OldLog:
    """The segment files of the topic that is read back."""

    def __init__(self, directory: Path, topic: str) -> None:
        self.paths = sorted(path for path in directory.rglob("*.log") if path.parent.name.startswith(f"{topic}-"))
        self.size = sum(path.stat().st_size for path in self.paths)

    def await_seals(self, seconds: float) -> None:
        """Wait until the finished segments are sealed: that reads each of them once, and only once."""
        last = {path.parent: path for path in self.paths}
        patience = time.monotonic() + seconds
        while time.monotonic() < patience:
            if all(path.with_suffix(".seal").exists() for path in self.paths if path is not last[path.parent]):
                return
            time.sleep(0.5)

    def cached_bytes(self) -> int:
        """How much of it is in memory; asking brings nothing in."""
        if _COUNT is None:
            return -1
        total = 0
        for path in self.paths:
            with path.open("rb") as file:
                size = path.stat().st_size
                total += _COUNT(file.fileno(), 0, size) * PAGE_BYTES if size else 0
        return total

    def chill(self, seed: int) -> dict[str, Any]:
        """Drop it from memory and prove it: reads that must not wait (RWF_NOWAIT) find nothing at random places.

        A miss makes the kernel fetch the page, and a quick disk may have brought it before the call returns: such a
        read succeeds, although a look at the page the moment before (cachestat) found nothing. Counted apart.
        """
        left = self._drop()
        missed, brought = self._probe(Random(seed))
        if missed + brought < PROBES * 0.99 or left > self.size // 100:
            raise WarmError(f"{PROBES - missed - brought} of {PROBES} places and {left} bytes are still in memory")
        self._drop()
        return {
            "bytes": self.size,
            "probes": PROBES,
            "missed": missed,
            "brought_within_the_call": brought,
            "cached_bytes": self.cached_bytes(),
        }

    def _drop(self) -> int:
        """Drop every page, again while some are held by lists of another processor; bytes that are left."""
        left = self.size
        for _ in range(DROPS):
            for path in self.paths:
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            left = self.cached_bytes()
            if 0 <= left < MIB:
                break
            time.sleep(0.1)
        return left

    def _probe(self, random: Random) -> tuple[int, int]:
        """Of PROBES places, at random but never near each other: how many a read that must not wait misses, and how
        many it gets that were not in memory just before."""
        stride = self.size // PROBES
        places = [number * stride + random.randrange(stride // 2) for number in range(PROBES)]
        missed = brought = 0
        start = 0
        byte = bytearray(1)
        for path in self.paths:
            size = path.stat().st_size
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # a miss makes the kernel read ahead
                for place in places:
                    if start <= place < start + size:
                        page = (place - start) // PAGE_BYTES * PAGE_BYTES
                        absent = _COUNT is not None and _COUNT(file.fileno(), page, PAGE_BYTES) == 0
                        try:
                            os.preadv(file.fileno(), [byte], place - start, os.RWF_NOWAIT)
                            brought += absent
                        except BlockingIOError:
                            missed += 1
            start += size
        return missed, brought


class Backfill:
    """The second reader: prepared Fetch frames, one connection per partition, over and over from offset 0."""

    def __init__(self, broker: BrokerProcess, topic: str, seconds: float) -> None:
        self.result: Sample = {}
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(broker, topic, seconds))

    def _run(self, broker: BrokerProcess, topic: str, seconds: float) -> None:
        try:
            self.result = clients.raw(
                "fetch", broker.port, seconds + 60, topic=topic, partitions=PARTITIONS, connections=PARTITIONS,
                seconds=seconds,
            )  # fmt: skip
        except clients.ClientFailedError as error:
            self.error = error

    def __enter__(self) -> Backfill:
        self._thread.start()
        time.sleep(HEAD_START_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        if self.error is not None:
            raise self.error


class Program:
    """Another process beside the tail: it says `ready`, and at its end what it did, as JSON."""

    def __init__(self, module: str, ready: str, words: Sequence[str], seconds: float) -> None:
        self.result: Sample = {}
        self._name = module
        self._ready = ready
        self._seconds = seconds
        self._command = [sys.executable, "-m", f"benchmarks.{module}", *words, str(seconds)]

    def __enter__(self) -> Program:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True, cwd=kafka_peer.ROOT)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != f"{self._ready}\n":  # what it has to say stands in stderr
            raise clients.ClientFailedError(f"{self._name}: status {self._process.wait(timeout=10)}")
        time.sleep(HEAD_START_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            said, _ = self._process.communicate(timeout=self._seconds + 60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise clients.ClientFailedError(f"{self._name}: no end") from None
        if self._process.returncode:
            raise clients.ClientFailedError(f"{self._name}: status {self._process.returncode}")
        self.result = json.loads(said)


def back_fill(options: Any, broker: BrokerProcess, topic: str, seconds: float) -> Backfill | Program:
    """The second reader; as Spark has it, it is `benchmarks.storage_reader`, which opens the segment files."""
    if options.reader == "storage":
        return Program("storage_reader", "reading", [broker.bootstrap, topic], seconds)
    return Backfill(broker, topic, seconds)


def tail(broker: BrokerProcess, topic: str, options: argparse.Namespace) -> Sample:
    """One measurement of the tail: each record carries the moment it was due."""
    before, stolen = broker.cpu_seconds(), machine.stolen_seconds()
    sample = clients.raw(
        "tail", broker.port, options.seconds + 60, topic=topic, rate=options.rate, size=100, seconds=options.seconds
    )
    sample["broker_cpu_s"] = round(broker.cpu_seconds() - before, 4)
    sample["stolen_s"] = round(machine.stolen_seconds() - stolen, 2)
    return sample


def one_round(broker: BrokerProcess, old: OldLog, topics: tuple[str, str], options: Any, number: int) -> Sample:
    """The tail alone, then beside the back-filling reader, then beside a process that reads as much from the same files
    and takes as much processor time as that reading did: on a settled disk and a log just proved cold."""
    tailed, deep = topics
    old.chill(number)
    machine.settle_disk(broker.directory)
    alone = tail(broker, tailed, options)
    cold = old.chill(number + 1)
    machine.settle_disk(broker.directory)
    hot = OldLog(broker.directory, tailed)
    hot_before = {"bytes": hot.size, "cached_bytes": hot.cached_bytes()}
    seconds = options.seconds + 2 * HEAD_START_SECONDS
    with back_fill(options, broker, deep, seconds) as reader:
        beside = tail(broker, tailed, options)
        cached = old.cached_bytes()
    hot = OldLog(broker.directory, tailed)
    hot_after = {"bytes": hot.size, "cached_bytes": hot.cached_bytes()}
    read = reader.result
    cached_after = old.cached_bytes()
    taken = read.get("client_cpu_s", read.get("processor_s", 0.0)) / read["seconds"]
    taken += max(0.0, beside["broker_cpu_s"] - alone["broker_cpu_s"]) / options.seconds
    rate = read["bytes"] / read["seconds"]
    old.chill(number)
    machine.settle_disk(broker.directory)
    words = [f"{taken:.4f}", f"{rate:.0f}", *map(str, old.paths)]
    with Program("bystander", "computing", words, seconds) as bystander:
        neighbour = tail(broker, tailed, options)
    return {
        "alone": alone,
        "beside": beside,
        "beside_bystander": neighbour,
        "bystander": bystander.result,
        "reading_took_of_a_core": round(taken, 4),
        "ratio_p99_bystander": neighbour["p99_us"] / alone["p99_us"],
        "ratio_p99": beside["p99_us"] / alone["p99_us"],
        "ratio_p50": beside["p50_us"] / alone["p50_us"],
        "backfill": read,
        "backfill_mb_s": round(rate / 1e6, 1),
        "cold": cold,
        "cached_during_bytes": cached,
        "cached_after_bytes": cached_after,
        "tail_log_before": hot_before,
        "tail_log_after": hot_after,
    }


def measure(side: Side, durability: Durability, old: OldLog, deep: str, options: Any, reporter: Reporter) -> Any:
    """All rounds of one durability; one before them does not count."""
    topic = f"tail-{durability}"
    side.create_topic(topic, 1, durability)
    rounds = []
    for number in range(options.rounds + 1):
        found = one_round(side.broker, old, (topic, deep), options, 2 * number)
        if number:
            rounds.append(found)
        reporter.note(
            f"  {durability} {number or 'warm-up'}: p99 {found['alone']['p99_us'] / 1e3:.2f} → "
            f"{found['beside']['p99_us'] / 1e3:.2f} ms ({found['ratio_p99']:.2f}×), p50 {found['ratio_p50']:.2f}×, "
            f"beside a bystander of {found['reading_took_of_a_core']:.1%} {found['ratio_p99_bystander']:.2f}×, "
            f"stolen by the host {' / '.join(format(found[half]['stolen_s'] * 1e3, '.0f') for half in HALVES)} ms, "
            f"back-fill {found['backfill_mb_s']:.0f} MB/s, old log in memory "
            f"{found['cached_during_bytes'] / MIB:.0f} → {found['cached_after_bytes'] / MIB:.0f} MiB, "
            f"tail's log {_share(found['tail_log_before'])} → {_share(found['tail_log_after'])}"
        )
    return rounds


def _share(counted: dict[str, int]) -> str:
    """How much of a log is in memory, whole pages of it."""
    return f"{min(1.0, counted['cached_bytes'] / max(1, counted['bytes'])):.0%} of {counted['bytes'] / MIB:.0f} MiB"


def fill(side: Side, topic: str, gib: float, reporter: Reporter, segment_bytes: int = GIB) -> OldLog:
    """Write the log that is read back later."""
    side.create_topic(topic, PARTITIONS, "page-cache", segment_bytes=str(segment_bytes))
    records = int(gib * GIB * 1.02) // 1000
    took = clients.rdkafka(
        "produce", side.broker.bootstrap, 600, {"acks": "all"}, topic=topic, messages=records, size=1000
    )
    old = OldLog(side.broker.directory, topic)
    machine.settle_disk(side.broker.directory, timeout=300)
    old.await_seals(SEALING_SECONDS)
    reporter.note(f"{old.size / GIB:.2f} GiB in {len(old.paths)} segments, written in {took['seconds']:.0f} s")
    return old


@contextlib.contextmanager
def running(broker: BrokerProcess) -> Iterator[Side]:
    broker.prepare()
    side = Side(broker)
    try:
        broker.start(timeout=90)
        side.connect()
        yield side
    finally:
        broker.stop()


def benchmark(options: argparse.Namespace, reporter: Reporter) -> int:
    parent = options.data_dir or kafka_peer.ROOT / ".cache"
    parent.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="deep-reads-", dir=parent))
    started = datetime.now(UTC)
    facts: dict[str, Any] = {
        "made": f"{started:%Y-%m-%dT%H:%MZ}",
        "profile": "deep-reads",
        "settings": {
            key: getattr(options, key) for key in ("reader", "rounds", "seconds", "rate", "gib", "kafka")
        } | {"partitions": PARTITIONS, "record_bytes": 100, "backfill_connections": PARTITIONS},
        **machine.commit(),
        "machine": machine.describe(parent),
        "versions": machine.versions(),
    }  # fmt: skip
    try:
        facts["disk_before"] = machine.fdatasync_ms(directory)
        broker = KafkaPeer(directory / "kafka") if options.kafka else DuramenBroker(directory / "duramen")
        with running(broker) as side:
            # Only what is sealed is read from files: of smaller segments that is nearly all.
            segment_bytes = STORAGE_SEGMENT_BYTES if options.reader == "storage" else GIB
            old = fill(side, "deep", options.gib, reporter, segment_bytes)
            modes: dict[str, Any] = {}
            for durability in AIMS:
                if options.only in ("", durability):
                    modes[durability] = measure(side, durability, old, "deep", options, reporter)
            facts["memory_mib"] = broker.memory_mib()
        facts["load_average_after"] = machine.describe(parent)["load_average"]
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return report(facts, modes, options, reporter, started)


def report(facts: dict[str, Any], modes: dict[str, Any], options: Any, reporter: Reporter, started: datetime) -> int:
    """Print the medians and store everything."""
    samples = min(
        entry[half]["samples"] for rounds in modes.values() for entry in rounds for half in ("alone", "beside")
    )
    facts["samples_per_half"] = samples
    for durability, rounds in modes.items():
        beside = [entry["beside"]["p99_us"] / 1e3 for entry in rounds]
        alone = [entry["alone"]["p99_us"] / 1e3 for entry in rounds]
        row = compare("p99", "ms", beside, alone, aim=AIMS[durability])  # type: ignore[arg-type, index]
        facts.setdefault("figures", {})[durability] = {
            "p99_beside_ms": row.ours,
            "p99_alone_ms": row.theirs,
            "median_ratio_p99": row.ratio,
            "median_ratio_p99_bystander": statistics.median(entry["ratio_p99_bystander"] for entry in rounds),
            "stolen_ms_per_s": {
                half: statistics.median(entry[half]["stolen_s"] for entry in rounds) / options.seconds * 1e3
                for half in HALVES
            },
            "reading_took_of_a_core": statistics.median(entry["reading_took_of_a_core"] for entry in rounds),
            "median_ratio_p50": statistics.median(entry["ratio_p50"] for entry in rounds),
            "aim": row.aim,
            "met": row.met,
            "backfill_mb_s": statistics.median(entry["backfill_mb_s"] for entry in rounds),
            "cached_during_mib": max(entry["cached_during_bytes"] for entry in rounds) / MIB,
            "cached_after_mib": max(entry["cached_after_bytes"] for entry in rounds) / MIB,
            "tail_log_cached_least": min(
                entry["tail_log_after"]["cached_bytes"] / entry["tail_log_after"]["bytes"] for entry in rounds
            ),
        }
        reporter.console.print(
            Text(
                f"{durability}: p99 of the tail {row.theirs:.2f} ms alone, {row.ours:.2f} ms beside a reader of old "
                f"data: median ratio {row.ratio:.2f} (aim {row.aim} {'met' if row.met else 'missed'}), "
                f"{len(rounds)} rounds of {samples:,} records each way",
                style="green" if row.met else "red",
            )
        )
        figures = facts["figures"][durability]
        reporter.note(
            f"beside a process that only reads as much from the disk and takes as much processor time "
            f"({figures['reading_took_of_a_core']:.1%} of a core): {figures['median_ratio_p99_bystander']:.2f}; "
            "milliseconds a second that the host gave the machine no time: "
            + ", ".join(f"{half.replace('_', ' a ')} {taken:.1f}" for half, taken in figures["stolen_ms_per_s"].items())
        )
    if "fsync" in modes:
        reporter.note("fsync: back-fill and the journal's syncs share one disk.")
    complete = (
        not options.only
        and not options.kafka
        and options.rounds >= LEAST["rounds"]
        and options.gib >= LEAST["gib"]
        and samples >= LEAST["samples"]
    )
    suffix = ("-kafka" if options.kafka else "") + ("-storage" if options.reader == "storage" else "")
    name = f"{started:%Y-%m-%dT%H%M}-{facts['commit'][:9]}-deep-reads{suffix}.json"
    path = (RESULTS if complete else PARTIAL_RESULTS) / name
    reporter.write({**facts, "rounds": modes}, path)
    reporter.note(f"stored in {path.relative_to(kafka_peer.ROOT)}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Command-line entry; 0 when it was measured, 2 for a setup problem."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deep_reads", description="Deep reads and the tail")
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=9.0, help="of one half of a round (default: %(default)s)")
    parser.add_argument("--rate", type=int, default=2500, help="records a second (default: %(default)s)")
    parser.add_argument("--gib", type=float, default=4.0, help="size of the cold log (default: %(default)s)")
    parser.add_argument("--only", choices=("", *AIMS), default="", help="one durability")
    parser.add_argument("--reader", choices=("fetch", "storage"), default="fetch", help="who reads the old log")
    parser.add_argument("--small", action="store_true", help="a look in two minutes: half a GiB, two short rounds")
    parser.add_argument("--kafka", action="store_true", help="ask Apache Kafka the same")
    parser.add_argument("--data-dir", type=Path, help="parent of the data directory (default: .cache)")
    options = parser.parse_args(arguments)
    if options.kafka and options.reader == "storage":
        parser.error("Apache Kafka has no reader of this kind")
    if options.small:
        options.gib, options.rounds, options.seconds = 0.5, 2, 4.0
    console = terminal()
    try:
        return benchmark(options, Reporter(console))
    except (BrokerFailedError, clients.ClientFailedError, PeerUnavailableError, WarmError) as problem:
        console.print(str(problem), style="red", markup=False, highlight=False)
        return 2


if __name__ == "__main__":
    sys.exit(main())
