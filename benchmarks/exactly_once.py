"""Transactions and consumer groups beside Apache Kafka, in one run: `make bench-exactly-once`, ten minutes at most.

Transactions a second, of one partition and of ten, by one producer and by 32; what a commit takes behind a flush
(EndTxn and its answer); what writing in transactions costs beside writing without, and reading committed data beside
reading everything; a group of 100 members and 1,000 partitions, from the join to the even share, and again after a
kill. The client is librdkafka driven from C, the members are librdkafka's. In the second half both sync before they
answer: Kafka's internal topics have flush.messages=1 as well. Duramen's internal topics are always synced.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from benchmarks import clients, kafka_peer, machine
from benchmarks.broker_process import BrokerFailedError, BrokerProcess
from benchmarks.duramen_broker import DuramenBroker
from benchmarks.group_members import SESSION_MS
from benchmarks.kafka_peer import KafkaPeer, PeerUnavailableError
from benchmarks.report import OURS, PARTIAL_RESULTS, RESULTS, THEIRS, Reporter, Row, compare, run_to_end, terminal
from benchmarks.run import WARM_UP_SECONDS, Side, run_all, select, start_all, warm_up, working_directory
from benchmarks.scenarios import Durability, Figure, Sample, Scenario

ROUNDS = 3
SECONDS = 555.0
PARTITIONS = 40
"""Of the topics that are written to."""
MEMBERS, SHARED = 100, 1000
"""Of the group: members, and partitions."""
KILLED = 10
"""Members that are killed together, in one process."""
STILL_SECONDS = 2.0
"""An even share counts once it has stayed for so long."""
GROUP_SECONDS_MAX = 90.0
COMMIT_MS = 100
GROUPS = {
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "500",
}
"""Of both brokers: a session's 45 seconds would be all that a kill shows."""
INTERNAL = ("__transaction_state", "__consumer_offsets")


class Duramen(DuramenBroker):
    """As in `make bench`, with shorter sessions."""

    def command(self) -> Sequence[str]:
        return [*super().command(), *(word for key, value in GROUPS.items() for word in ("--set", f"{key}={value}"))]


class Kafka(KafkaPeer):
    """As in `make bench`, with shorter sessions."""

    def configure(self) -> None:
        super().configure()
        with self._properties.open("a") as file:
            file.writelines(f"{key}={value}\n" for key, value in GROUPS.items())


# -- transactions


def transactions(durability: Durability, producers: int, per: int, seconds: float) -> Scenario:
    """One after the other by each producer, a record of 100 B to each partition."""

    def load(broker: BrokerProcess, topic: str) -> Sample:
        return clients.rdkafka(
            "transactions", broker.bootstrap, 90, {"linger.ms": "0"}, topic=topic, partitions=PARTITIONS,
            producers=producers, per=per, records=1, size=100, seconds=seconds, interval_ms=0, transactional=1,
        )  # fmt: skip

    plural = "s" if per > 1 else ""
    return Scenario(
        f"{durability}/transactions-{per}-by-{producers}",
        f"transactions of {per} partition{plural}, {producers} producer{'s' if producers > 1 else ''}",
        durability,
        PARTITIONS,
        load,
        (
            Figure(
                "transactions/s", "/s", lambda s: s["transactions"] / s["seconds"],
                aim=1.0 if durability == "page-cache" else 3.0,
            ),
            Figure("commit behind a flush, p50", "ms", lambda s: s["commit_p50_us"] / 1e3, False, aim=0.5),
            Figure("commit behind a flush, p99", "ms", lambda s: s["commit_p99_us"] / 1e3, False),
        ),
        {"producers": producers, "partitions": per, "seconds": seconds},
    )  # fmt: skip


def streams(seconds: float) -> Scenario:
    """As much as librdkafka takes, without transactions and with a commit each 100 ms."""

    def once(broker: BrokerProcess, topic: str, transactional: int) -> Sample:
        return clients.rdkafka(
            "transactions", broker.bootstrap, 90, topic=topic, partitions=4, producers=1, per=4, records=1,
            size=1000, seconds=seconds, interval_ms=COMMIT_MS, transactional=transactional,
        )  # fmt: skip

    def load(broker: BrokerProcess, topic: str) -> Sample:
        # In an order that neither gains from: whoever comes first meets colder pages.
        first, second, third, fourth = (once(broker, topic, transactional) for transactional in (0, 1, 1, 0))
        return {**both(second, third), "plain": both(first, fourth)}

    return Scenario(
        "page-cache/stream",
        f"1,000 B records as fast as they are taken, a commit each {COMMIT_MS} ms",
        "page-cache",
        4,
        load,
        (
            Figure("MB/s in transactions", "MB/s", lambda s: s["bytes"] / s["seconds"] / 1e6, aim=1.0),
            Figure("÷ without transactions", "×", in_transactions, limit=0.9),
        ),
        {"commit_ms": COMMIT_MS, "seconds": seconds},
    )


def both(one: Sample, other: Sample) -> Sample:
    """Two readings as one."""
    return {key: one[key] + other[key] for key in ("bytes", "records", "seconds", "failed")}


def in_transactions(sample: Sample) -> float:
    """Bytes a second, in transactions as a part of those without."""
    plain = sample["plain"]
    return float(sample["bytes"] / sample["seconds"] / (plain["bytes"] / plain["seconds"]))


def java_streams(messages: int) -> Scenario:
    """Kafka's own producer, with the transactions of the second generation."""

    def load(broker: BrokerProcess, topic: str) -> Sample:
        plain = clients.perf_produce(broker.bootstrap, topic, messages, 1000, 90)
        return {**clients.perf_produce(broker.bootstrap, topic, messages, 1000, 90, COMMIT_MS), "plain": plain}

    return Scenario(
        "page-cache/stream-java",
        f"ProducerPerformance, 1,000 B records, a commit each {COMMIT_MS} ms",
        "page-cache",
        4,
        load,
        (
            Figure("MB/s in transactions", "MB/s", lambda s: s["bytes"] / s["seconds"] / 1e6, aim=1.0),
            Figure("÷ without transactions", "×", in_transactions, limit=0.9),
        ),
        {"commit_ms": COMMIT_MS, "messages": messages},
    )


def reading(seconds: float) -> Scenario:
    """A topic that was written in transactions of 100 ms, read as committed data and as it lies there."""
    filled: dict[tuple[str, str], int] = {}

    def load(broker: BrokerProcess, topic: str) -> Sample:
        if (broker.name, topic) not in filled:
            written = clients.rdkafka(
                "transactions", broker.bootstrap, 90, topic=topic, partitions=4, producers=1, per=4, records=1,
                size=1000, seconds=seconds, interval_ms=COMMIT_MS, transactional=1,
            )  # fmt: skip
            filled[broker.name, topic] = written["records"]
        took = {"read_committed": 0.0, "read_uncommitted": 0.0}
        sizes = dict.fromkeys(took, 0)
        words = {"topic": topic, "partitions": 4, "messages": filled[broker.name, topic]}
        for isolation in ("read_committed", "read_uncommitted", "read_uncommitted", "read_committed"):
            properties = {"isolation.level": isolation, "group.id": "bench", "enable.auto.commit": "false"}
            read = clients.rdkafka("consume", broker.bootstrap, 90, properties, **words)
            took[isolation] += read["seconds"]
            sizes[isolation] += read["bytes"]
        rates = {isolation: sizes[isolation] / took[isolation] for isolation in took}
        return {
            "committed": rates["read_committed"],
            "everything": rates["read_uncommitted"],
            "bytes": sum(sizes.values()),
        }

    return Scenario(
        "page-cache/reading",
        f"reading what was committed each {COMMIT_MS} ms",
        "page-cache",
        4,
        load,
        (
            Figure("MB/s, committed data", "MB/s", lambda s: s["committed"] / 1e6, aim=1.0),
            Figure("÷ everything", "×", lambda s: s["committed"] / s["everything"], limit=0.95),
        ),
        {"commit_ms": COMMIT_MS},
    )


def all_scenarios(full: bool) -> list[Scenario]:
    seconds = 8.0 if full else 2.5
    found = [
        transactions(durability, producers, per, seconds)
        for durability in ("page-cache", "fsync")
        for producers in (1, 32)
        for per in (1, 10)
    ]
    more = [java_streams(400_000)] if full else []
    return [*found[:4], streams(seconds / 2), reading(seconds), *more, *found[4:]]


def sync_internal_topics(side: Side) -> None:
    """Kafka's way to sync what is in them before it answers."""
    admin = AdminClient({"bootstrap.servers": side.broker.bootstrap, "log_level": 0})
    there = set(admin.list_topics(timeout=20).topics)
    entry = ConfigEntry("flush.messages", "1", incremental_operation=AlterConfigOpType.SET)
    resources = [
        ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry]) for name in INTERNAL if name in there
    ]
    for future in admin.incremental_alter_configs(resources).values():
        future.result(30)


# -- groups


class Members:
    """A process of members, and what it tells of their shares."""

    def __init__(self, bootstrap: str, topic: str, group: str, count: int, protocol: str) -> None:
        words = [sys.executable, "-m", "benchmarks.group_members", bootstrap, topic, group, str(count), protocol]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=kafka_peer.ROOT, text=True
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "ready\n":
            raise clients.ClientFailedError("the members did not start")
        self.told: list[tuple[float, list[int]]] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def counts(self) -> list[int]:
        return self.told[-1][1] if self.told else []

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            change = json.loads(line)
            self.told.append((change["at"], change["counts"]))


def until_even(members: Sequence[Members], count: int, since: float) -> float:
    """When the last change came that made the share even; it has stayed so since. In seconds after `since`."""
    patience = time.monotonic() + GROUP_SECONDS_MAX
    while True:
        counts = [each for those in members for each in those.counts()]
        last = max((those.told[-1][0] for those in members if those.told), default=since)
        even = len(counts) == count and sum(counts) == SHARED and max(counts) - min(counts) <= 1
        if even and last > since and time.monotonic() - last > STILL_SECONDS:
            return last - since
        if time.monotonic() > patience:
            shares = f"{sum(counts)} partitions, {min(counts, default=0)} to {max(counts, default=0)} a member"
            raise clients.ClientFailedError(f"{count} members do not come to an even share: {shares}")
        time.sleep(0.05)


def group_round(side: Side, number: int, protocol: str) -> Sample:
    """A new group joins; some of its members are killed."""
    topic, group = "shared", f"group-{protocol}-{number}"
    survivors = Members(side.broker.bootstrap, topic, group, MEMBERS - KILLED, protocol)
    victims = Members(side.broker.bootstrap, topic, group, KILLED, protocol)
    try:
        before = side.broker.cpu_seconds()
        began = time.monotonic()
        survivors.go()
        victims.go()
        join = until_even([survivors, victims], MEMBERS, began)
        cpu = side.broker.cpu_seconds() - before
        killed = time.monotonic()
        victims.kill()
        again = until_even([survivors], MEMBERS - KILLED, killed)
        first = min(at for at, _ in survivors.told if at > killed) - killed
        return {"join_s": join, "again_s": again, "settling_s": again - first, "broker_cpu_s": cpu}
    finally:
        survivors.kill()
        victims.kill()


def measure_groups(sides: Sequence[Side], rounds: int, protocol: str, reporter: Reporter) -> dict[str, Any]:
    samples: dict[str, list[Sample]] = {side.name: [] for side in sides}
    failures: dict[str, str] = {side.name: side.lost for side in sides if side.lost}
    for side in sides:
        admin = AdminClient({"bootstrap.servers": side.broker.bootstrap, "log_level": 0})
        if "shared" not in admin.list_topics(timeout=20).topics:
            admin.create_topics([NewTopic("shared", SHARED, 1)])["shared"].result(60)
    for number in range(rounds):
        for side in sides:
            if side.name not in failures:
                try:
                    samples[side.name].append(group_round(side, number, protocol))
                except clients.ClientFailedError as failure:
                    failures[side.name] = str(failure)

    def row(name: str, unit: str, key: str, aim: float | None = None) -> Row:
        ours, theirs = ([sample[key] for sample in samples.get(which, ())] for which in (OURS, THEIRS))
        return compare(name, unit, ours, theirs, aim=aim)

    rows = [
        row("join to an even share", "s", "join_s", 1.0),
        row(f"{KILLED} killed to an even share", "s", "again_s", 1.0),
        row("  of which behind the first change", "s", "settling_s"),
        row("broker CPU of the join", "s", "broker_cpu_s"),
    ]
    remark = "; ".join(f"{name}: {reason}" for name, reason in failures.items())
    title = f"protocol {protocol!r}, {MEMBERS} members, {SHARED:,} partitions, sessions of {SESSION_MS / 1000:.0f} s"
    reporter.add_group("Consumer groups", title, rows, remark)
    return {"samples": samples, "failures": failures}


# -- the run


def choose_sides(directory: Path, without: str, reporter: Reporter) -> list[Side]:
    """The brokers that can be run here; says why when one cannot."""
    sides = [Side(Duramen(directory / "duramen"))] if without != "duramen" else []
    if without != "kafka":
        try:
            reporter.note(f"Apache Kafka {kafka_peer.kafka_version()}: {kafka_peer.java_version()}, jars from Maven")
            kafka_peer.jars()
            sides.append(Side(Kafka(directory / "kafka")))
        except PeerUnavailableError as reason:
            reporter.console.print(f"Kafka cannot be run here, so Duramen is measured alone: {reason}")
    return sides


def benchmark(options: argparse.Namespace, reporter: Reporter) -> int:
    began = time.monotonic()
    deadline = math.inf if options.full else began + SECONDS
    scenarios = select(all_scenarios(options.full), options.only)
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(working_directory(options.data_dir))
        sides = choose_sides(directory, options.without, reporter)
        started_at = datetime.now(UTC)
        facts: dict[str, Any] = {
            "made": started_at.isoformat(timespec="seconds"),
            "profile": "bench-exactly-once" + ("-full" if options.full else ""),
            "rounds": options.rounds,
            **machine.commit(),
            "machine": machine.describe(directory),
            "versions": {**machine.versions(), "librdkafka_path": clients.librdkafka().name},
            "disk_before": machine.fdatasync_ms(directory),
        }
        for name, libraries in clients.LIBRARIES.items():
            clients.build(name, *libraries)
        for side in sides:
            stack.callback(side.broker.stop)
            side.broker.prepare()
        start_all(sides, 1)
        for side in sides:
            warm_up(side, WARM_UP_SECONDS * (1 if options.full else 0.5), reporter)
        # Groups come before the syncs, while both do as they come.
        if not options.only or options.only in "groups":
            protocols = ("consumer", "classic") if options.full else ("consumer",)
            facts["groups"] = {each: measure_groups(sides, 2, each, reporter) for each in protocols}
        cached = [scenario for scenario in scenarios if scenario.durability == "page-cache"]
        synced = [scenario for scenario in scenarios if scenario.durability == "fsync"]
        skipped = run_all(sides, cached, options.rounds, deadline, reporter)
        for side in sides:
            if isinstance(side.broker, KafkaPeer) and not side.lost and synced:
                sync_internal_topics(side)
        skipped += run_all(sides, synced, options.rounds, deadline, reporter)
        facts["disk_after"] = machine.fdatasync_ms(directory)
        facts["load_average_after"] = machine.describe(directory)["load_average"]
        facts["skipped"] = skipped
        facts["lost"] = {side.name: side.lost for side in sides if side.lost}
        facts["seconds"] = round(time.monotonic() - began, 1)
    reporter.print_tables()
    about = facts["machine"]
    reporter.console.print(
        f"{about['processor']}, {about['cores']} cores; brokers and clients share them. Disk: fdatasync of 16 KiB p50 "
        f"{facts['disk_before']['p50_ms']} ms before, {facts['disk_after']['p50_ms']} ms after. Load average "
        f"{about['load_average'][0]} → {facts['load_average_after'][0]}. {options.rounds} rounds in turn, medians; "
        f"ratio = Duramen / Kafka, median of the rounds' ratios. Commit {facts['commit'][:9]}, "
        f"{facts['seconds']:.0f} s.",
        highlight=False,
    )
    for title in skipped:
        reporter.console.print(f"no time left for: {title}")
    partial = options.only or options.without or options.rounds < ROUNDS
    path = (PARTIAL_RESULTS if partial else RESULTS) / (
        f"{started_at:%Y-%m-%dT%H%M}-{facts['commit'][:9]}-{facts['profile'].removeprefix('bench-')}.json"
    )
    reporter.write(facts, path)
    reporter.note(f"stored in {os.path.relpath(path, kafka_peer.ROOT)}")
    return 1 if facts["lost"] else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Command-line entry; 0 when both brokers lived through it, 1 when one did not, 2 for a setup problem."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exactly_once", description=__doc__)
    parser.add_argument("--full", action="store_true", help="longer rounds, Java's producer and classic groups, too")
    parser.add_argument("--only", default="", metavar="TEXT", help="'groups', or scenarios with TEXT in key or title")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="measured rounds (default: %(default)s)")
    parser.add_argument("--without", choices=("kafka", "duramen"), default="", help="leave one broker out")
    parser.add_argument("--data-dir", type=Path, help="parent of the data directories (default: .cache)")
    options = parser.parse_args(arguments)
    console = terminal()
    problems = (BrokerFailedError, clients.ClientFailedError, PeerUnavailableError)
    return run_to_end(console, lambda: benchmark(options, Reporter(console)), problems)


if __name__ == "__main__":
    sys.exit(main())
