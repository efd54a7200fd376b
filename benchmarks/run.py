"""Owns a benchmark run: starts both brokers, drives them in turn, stops everything, prints and stores the comparison.

python -m benchmarks.run [--full] [--only TEXT] [--rounds N] [--without kafka|duramen] [--data-dir DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import clients, floor, kafka_peer, machine, warmth
from benchmarks.broker_process import BrokerFailedError, BrokerProcess
from benchmarks.duramen_broker import DuramenBroker
from benchmarks.kafka_peer import KafkaPeer, PeerUnavailableError
from benchmarks.report import OURS, PARTIAL_RESULTS, RESULTS, THEIRS, Reporter, compare, run_to_end, terminal
from benchmarks.scenarios import TOPIC_SETTINGS, Durability, Sample, Scenario, all_scenarios

MINIMUM_ROUNDS = 5
# What a warm-up may take: of a broker as a whole (twice as long with --full), and of one scenario in unmeasured rounds.
WARM_UP_SECONDS = 45.0
WARM_UP_ROUNDS = 6
WHOLE = "The broker as a whole"
# make bench promises ten minutes, fetching the jars aside; what does not fit is named, not silently cut.
BENCH_SECONDS = 555.0
IDLE_SECONDS = 3.0
AFTERMATH_SECONDS = 0.15


class Side:
    """One broker with its admin connection, its topics and what went wrong with it."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.starts: list[float] = []
        self.idle: dict[str, float] = {}
        self.lost = ""
        self._admin: AdminClient | None = None

    @property
    def name(self) -> str:
        return self.broker.name

    def connect(self) -> None:
        self._admin = AdminClient({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})

    def create_topic(self, topic: str, partitions: int, durability: Durability, **more: str) -> None:
        """more: further settings of the topic, with underscores for dots."""
        assert self._admin is not None
        settings = dict(TOPIC_SETTINGS[durability][self.name])
        settings.update({name.replace("_", "."): value for name, value in more.items()})
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=settings)
        self._admin.create_topics([new])[topic].result(timeout=30)
        self._await_leaders(topic, partitions)

    def _await_leaders(self, topic: str, partitions: int) -> None:
        """Write one record to each partition until all take it: creation may be answered before the leaders serve."""
        patience = time.monotonic() + 20
        once = {"connections": 1, "requests": partitions, "seconds": 5}
        while True:
            try:
                clients.raw("produce", self.broker.port, 30, topic=topic, partitions=partitions, **once)
                return
            except clients.ClientFailedError:
                self.broker.check_alive()
                if time.monotonic() > patience:
                    raise
                time.sleep(0.1)

    def delete_topic(self, topic: str) -> None:
        assert self._admin is not None
        with contextlib.suppress(KafkaException):
            self._admin.delete_topics([topic])[topic].result(timeout=30)


def measure(side: Side, scenario: Scenario, topic: str) -> Sample:
    """One round: the client's own report plus what it cost the broker."""
    heat = machine.heat_page_cache(side.broker.directory, scenario.heat_mib) if scenario.heat_mib else None
    settled = machine.settle_disk(side.broker.directory)
    side.broker.check_alive()
    before = side.broker.cpu_seconds()
    sample = scenario.load(side.broker, topic)
    time.sleep(AFTERMATH_SECONDS)
    sample["broker_cpu_s"] = round(side.broker.cpu_seconds() - before, 6)
    sample["page_cache_write_gb_s"] = None if heat is None else round(heat, 2)
    sample["disk_settled_s"] = round(settled, 3)
    return sample


def run_scenario(sides: Sequence[Side], scenario: Scenario, topic: str, rounds: int) -> tuple[Any, dict[str, str]]:
    """Unmeasured rounds until no broker gets faster (WARM_UP_ROUNDS at most), then `rounds` measured ones in turn."""
    samples: dict[str, list[Sample]] = {side.name: [] for side in sides}
    failures: dict[str, str] = {side.name: side.lost for side in sides if side.lost}
    for side in sides:
        if side.name not in failures and not scenario.reads:
            try:
                side.create_topic(topic, scenario.partitions, scenario.durability)
            except (KafkaException, clients.ClientFailedError) as refused:
                failures[side.name] = f"topic refused: {refused}"

    def one_round(into: Mapping[str, list[Sample]]) -> None:
        for side in sides:
            if side.name in failures:
                continue
            try:
                into[side.name].append(measure(side, scenario, topic))
            except (clients.ClientFailedError, PeerUnavailableError) as failure:
                failures[side.name] = str(failure)
            except BrokerFailedError as failure:
                side.lost = failures[side.name] = str(failure)

    # All warm up together, so that the two sides of a topic that both fill are of one size.
    unmeasured: dict[str, list[Sample]] = {side.name: [] for side in sides}
    for _ in range(WARM_UP_ROUNDS):
        one_round(unmeasured)
        rates = [scenario.rates(each) for each in unmeasured.values()]
        if not any(len(each) == 1 or warmth.gained(each) for each in rates):
            break
    for _ in range(rounds):
        one_round(samples)
    return samples, failures


def warm_up(side: Side, limit_seconds: float, note: Reporter) -> None:
    """Drive the request path until it stops getting faster: a JVM compiles its hot code only after many requests."""
    rates: list[float] = []
    topics: dict[Durability, str] = {"page-cache": "warm-up-page-cache", "fsync": "warm-up-fsync"}
    for durability, topic in topics.items():
        side.create_topic(topic, 4, durability)
    began = time.monotonic()
    while time.monotonic() - began < limit_seconds and not warmth.levelled(rates):
        for durability, topic in topics.items():
            result = clients.raw(
                "produce", side.broker.port, 60, topic=topic, partitions=4, connections=16, seconds=1.0, size=100
            )
            if durability == "page-cache":
                rates.append(result["records"] / result["seconds"])
        clients.raw("fetch", side.broker.port, 60, topic=topics["fsync"], partitions=4, connections=4, seconds=0.3)
    grew = "" if warmth.levelled(rates) else ", still rising"
    note.note(f"{side.name} warmed up: {rates[0]:,.0f} → {rates[-1]:,.0f} one-record requests/s{grew}")
    for topic in topics.values():
        side.delete_topic(topic)


def start_all(sides: Sequence[Side], times: int) -> None:
    """Start each broker `times` times in turn on its fresh directory, and leave it running after the last."""
    for number in range(times):
        for side in sides:
            side.starts.append(side.broker.start(timeout=90))
            if number < times - 1:
                side.broker.stop()
    time.sleep(IDLE_SECONDS)
    for side in sides:
        side.idle = side.broker.memory_mib()
        side.connect()


def add_whole_broker(reporter: Reporter, sides: Sequence[Side], peaks: Mapping[str, Mapping[str, float]]) -> None:
    """Start-up time and memory, from the readings taken before and after the load."""
    starts = {side.name: side.starts for side in sides}
    idle = {side.name: [side.idle["rss"]] for side in sides if side.idle}
    peak = {name: [reading["peak"]] for name, reading in peaks.items()}
    rows = [
        compare("start to first reply", "s", starts.get(OURS, []), starts.get(THEIRS, []), aim=0.1),
        compare("resident memory, idle", "MiB", idle.get(OURS, []), idle.get(THEIRS, []), aim=0.2),
        compare("resident memory, peak under load", "MiB", peak.get(OURS, []), peak.get(THEIRS, []), aim=0.2),
    ]
    reporter.add_group(WHOLE, f"(Kafka's JVM: -Xms{kafka_peer.HEAP} -Xmx{kafka_peer.HEAP})", rows)


def choose_sides(directory: Path, without: str, reporter: Reporter) -> list[Side]:
    """The brokers that can be run here; says why when one cannot."""
    sides: list[Side] = []
    if without != "duramen":
        sides.append(Side(DuramenBroker(directory / "duramen")))
    if without != "kafka":
        try:
            reporter.note(f"Apache Kafka {kafka_peer.kafka_version()}: {kafka_peer.java_version()}, jars from Maven")
            kafka_peer.jars()
            sides.append(Side(KafkaPeer(directory / "kafka")))
        except PeerUnavailableError as reason:
            reporter.console.print(f"Kafka cannot be run here, so Duramen is measured alone: {reason}")
    return sides


def run_all(
    sides: list[Side], scenarios: Sequence[Scenario], rounds: int, deadline: float, reporter: Reporter
) -> list[str]:
    """Every scenario in order; returns the titles of those that no time was left for."""
    skipped: list[str] = []
    wanted_later = {scenario.reads for scenario in scenarios if scenario.reads}
    kept: dict[str, str] = {}
    longest = 0.0
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        console=reporter.console,
        transient=True,
        disable=not reporter.console.is_terminal,
    ) as progress:
        task = progress.add_task("", total=len(scenarios))
        for scenario in scenarios:
            progress.update(task, description=scenario.title[:48])
            if time.monotonic() + longest > deadline or (scenario.reads and scenario.reads not in kept):
                skipped.append(f"{scenario.durability}: {scenario.title}")
                continue
            began = time.monotonic()
            topic = kept.get(scenario.reads) or scenario.key.replace("/", "-")
            samples, failures = run_scenario(sides, scenario, topic, rounds)
            reporter.add_scenario(scenario, samples, failures)
            if scenario.key in wanted_later:
                kept[scenario.key] = topic
            last_reader = all(later.reads != scenario.reads for later in scenarios[scenarios.index(scenario) + 1 :])
            if scenario.key not in wanted_later and (not scenario.reads or last_reader):
                for side in sides:
                    side.delete_topic(topic)
            longest = max(longest * 0.8, time.monotonic() - began)
            if not reporter.console.is_terminal:
                reporter.note(f"  {scenario.durability}: {scenario.title} ({time.monotonic() - began:.0f} s)")
            progress.advance(task)
    return skipped


def select(scenarios: Sequence[Scenario], text: str) -> list[Scenario]:
    """The scenarios whose key or title holds `text`, and those whose topics they read."""
    wanted = {scenario.key for scenario in scenarios if text in scenario.key or text in scenario.title}
    wanted |= {scenario.reads for scenario in scenarios if scenario.key in wanted}
    return [scenario for scenario in scenarios if scenario.key in wanted]


@contextlib.contextmanager
def working_directory(wanted: Path | None) -> Iterator[Path]:
    """A directory for both brokers' data, on the disk of the checkout unless told otherwise; removed at the end."""
    parent = wanted or kafka_peer.ROOT / ".cache"
    parent.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="bench-data-", dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def benchmark(options: argparse.Namespace, reporter: Reporter) -> int:
    began = time.monotonic()
    deadline = math.inf if options.full or options.minutes == 0 else began + BENCH_SECONDS
    scenarios = select(all_scenarios(options.full), options.only)
    if not scenarios:
        reporter.console.print(f"no scenario matches {options.only!r}")
        return 2
    if options.rounds < MINIMUM_ROUNDS:
        reporter.note(f"{options.rounds} rounds only: good for trying out, not for a comparison")
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(working_directory(options.data_dir))
        sides = choose_sides(directory, options.without, reporter)
        started_at = datetime.now(UTC)
        facts: dict[str, Any] = {
            "made": started_at.isoformat(timespec="seconds"),
            "profile": "bench-full" if options.full else "bench",
            "rounds": options.rounds,
            **machine.commit(),
            "machine": machine.describe(directory),
            "versions": {**machine.versions(), "librdkafka_path": clients.librdkafka().name},
            "disk_before": machine.fdatasync_ms(directory),
        }
        if facts["machine"]["filesystem"] in ("tmpfs", "ramfs", "overlay"):
            reporter.console.print(f"the data lies on {facts['machine']['filesystem']}: fsync figures mean little here")
        for name, libraries in clients.LIBRARIES.items():
            clients.build(name, *libraries)
        facts["floor"] = {"us_per_request": floor.per_request_us(), "s_per_gb": floor.per_gb_s(directory)}
        for side in sides:
            stack.callback(side.broker.stop)
            side.broker.prepare()
        start_all(sides, options.rounds)
        for side in sides:
            warm_up(side, WARM_UP_SECONDS * (2 if options.full else 1), reporter)
        skipped = run_all(sides, scenarios, options.rounds, deadline, reporter)
        peaks = {side.name: side.broker.memory_mib() for side in sides if not side.lost}
        add_whole_broker(reporter, sides, peaks)
        facts["disk_after"] = machine.fdatasync_ms(directory)
        facts["load_average_after"] = machine.describe(directory)["load_average"]
        facts["skipped"] = skipped
        facts["brokers"] = {
            side.name: {
                "start_seconds": [round(seconds, 4) for seconds in side.starts],
                "memory_idle_mib": side.idle,
                "memory_after_load_mib": peaks.get(side.name),
                "lost": side.lost or None,
            }
            for side in sides
        }
        describe_brokers(facts, sides)
        facts["seconds"] = round(time.monotonic() - began, 1)
    reporter.print_tables()
    print_facts(facts, reporter)
    stem = f"{started_at:%Y-%m-%dT%H%M}-{facts['commit'][:9]}-{facts['profile']}"
    partial = options.only or options.without or options.rounds < MINIMUM_ROUNDS
    path = (PARTIAL_RESULTS if partial else RESULTS) / f"{stem}.json"
    reporter.write(facts, path)
    reporter.note(f"stored in {path.relative_to(kafka_peer.ROOT)}")
    return 1 if any(side.lost for side in sides) else 0


def describe_brokers(facts: dict[str, Any], sides: Sequence[Side]) -> None:
    """Add what only the brokers themselves know: the journal's laps, the JVM's version and heap."""
    for side in sides:
        about = facts["brokers"][side.name]
        if isinstance(side.broker, DuramenBroker):
            about["journal"] = {} if side.lost else side.broker.journal_metrics()
        if isinstance(side.broker, KafkaPeer):
            about["version"] = kafka_peer.kafka_version()
            about["java"] = kafka_peer.java_version()
            about["heap"] = kafka_peer.HEAP


def print_facts(facts: Mapping[str, Any], reporter: Reporter) -> None:
    """The conditions, without which the figures mean nothing."""
    about, before, after = facts["machine"], facts["disk_before"], facts["disk_after"]
    reporter.console.print(
        f"{about['processor']}, {about['cores']} cores, {about['memory_gib']} GiB, {about['system']}, "
        f"{about['filesystem']}; brokers and clients share the cores.\n"
        f"Disk: fdatasync of 16 KiB p50 {before['p50_ms']} ms before, {after['p50_ms']} ms after the run. "
        f"Load average {about['load_average'][0]} → {facts['load_average_after'][0]}.\n"
        f"{facts['rounds']} rounds in turn, medians; ratio = Duramen / Kafka, median of the rounds' ratios. "
        f"Python {facts['versions']['python']}, commit {facts['commit'][:9]}, {facts['seconds']:.0f} s.\n"
        f"Floor of this machine: {facts['floor']['us_per_request']:.1f} µs a request for a loop that only answers, "
        f"{facts['floor']['s_per_gb']:.2f} CPU-s per GB for one that receives, sums once and writes.",
        highlight=False,
    )
    journal = facts["brokers"].get(OURS, {}).get("journal") or {}
    laps = {name: value for name, value in journal.items() if "lap" in name}
    if laps:
        reporter.console.print("Journal: " + ", ".join(f"{name} {value:g}" for name, value in laps.items()))
    for title in facts["skipped"]:
        reporter.console.print(f"no time left for: {title}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Command-line entry; 0 when both brokers lived through it, 1 when one did not, 2 for a setup problem."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Duramen beside Apache Kafka")
    parser.add_argument("--full", action="store_true", help="the whole table: longer rounds, more scenarios")
    parser.add_argument("--only", default="", metavar="TEXT", help="only scenarios whose key or title holds TEXT")
    parser.add_argument("--rounds", type=int, default=MINIMUM_ROUNDS, help="measured rounds (default: %(default)s)")
    parser.add_argument("--minutes", type=int, default=10, help="0 lifts the ten-minute limit of the short version")
    parser.add_argument("--without", choices=("kafka", "duramen"), default="", help="leave one broker out")
    parser.add_argument("--data-dir", type=Path, help="parent of the data directories (default: .cache)")
    options = parser.parse_args(arguments)
    console = terminal()
    problems = (BrokerFailedError, clients.ClientFailedError, PeerUnavailableError)
    return run_to_end(console, lambda: benchmark(options, Reporter(console)), problems)


if __name__ == "__main__":
    sys.exit(main())
