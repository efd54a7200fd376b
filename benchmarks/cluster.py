"""Measures three nodes that replicate, on this machine: rates, delays, and what each role costs.

`make bench-cluster` stores its table in `benchmarks/results/`; `--small` tries it out and stores nothing. `--steady
MINUTES` is another run: full load for so long, with elections, fencings and the loops' lateness counted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks import clients, cluster_steady, machine
from benchmarks.broker_process import BrokerFailedError
from benchmarks.cluster_nodes import ClusterNode, NodesCluster, disk_busy_seconds, processor_seconds
from benchmarks.kafka_peer import ROOT
from benchmarks.report import RESULTS
from benchmarks.run import working_directory
from benchmarks.scenarios import HEATED_PER_SECOND, Durability, Sample

BUSY = 0.85
"""From this share on a processor, or a client's thread, is what limits."""
DISK_BUSY = 0.6
"""The same of the disk: one that many short syncs keep busy shows no more."""
AFTERMATH_SECONDS = 0.3
IDLE_PARTITIONS = 1000
START_SECONDS, LINES_SECONDS = 40.0, 430.0
"""Of the ten minutes that are promised: what the start and the first look take, and what the lines may."""
MANY = 12
"""Partitions of the topic whose leaders are spread over the nodes."""


@dataclass(frozen=True)
class Line:
    """One line of the table: so many copies, a durability and a load."""

    copies: int
    durability: Durability
    kind: str
    """batched, single, delay or spread."""
    size: int
    amount: float
    """Megabytes, or seconds of a load that has no end."""

    @property
    def title(self) -> str:
        named = {
            "batched": f"{self.size:,} B, default batching",
            "single": f"{self.size:,} B, one record a request, 16 producers",
            "spread": f"{self.size:,} B, default batching, {MANY} partitions over all nodes",
            "delay": f"{self.size:,} B, {self.rate} a second, produce to consume",
        }
        return named[self.kind]

    @property
    def rate(self) -> int:
        return 500 if self.durability == "page-cache" else 200

    @property
    def heat_mib(self) -> int:
        """Of page cache that the round will fill, on all nodes."""
        mib = (
            self.amount * 1.3
            if self.kind in ("batched", "spread")
            else self.size * HEATED_PER_SECOND * self.amount / 4e6
        )
        return math.ceil(mib) * self.copies


def lines(*, small: bool) -> list[Line]:
    """All there is to measure; small: a tenth of it."""
    part = 0.25 if small else 1.0
    found = []
    durabilities: tuple[Durability, ...] = ("page-cache", "fsync")
    for durability in durabilities:
        for copies in (1, 3):
            bulk = 200 if durability == "page-cache" else 120
            found += [
                Line(copies, durability, "batched", 1000, bulk * part),
                Line(copies, durability, "batched", 100, bulk / 3 * part),
                Line(copies, durability, "single", 100, 2.5 * part),
                Line(copies, durability, "single", 1000, 2.5 * part),
                Line(copies, durability, "delay", 100, 4 * part),
                Line(copies, durability, "spread", 1000, bulk * part),
            ]
    return found


class Roles:
    """Who does what for the topics of one partition: the leader does not lead the quorum."""

    def __init__(self, cluster: NodesCluster) -> None:
        self.controller = cluster.active_controller()
        self.leader, *others = [node for node in cluster.nodes if node is not self.controller]
        self.follower = others[0] if others else self.controller

    def nodes(self) -> dict[str, ClusterNode]:
        return {"leader": self.leader, "follower": self.follower, "controller": self.controller}

    def placement(self, copies: int) -> list[int]:
        return [self.leader.id, self.follower.id, self.controller.id][:copies]


def measure(cluster: NodesCluster, roles: Roles, line: Line, topic: str) -> Sample:
    """One round: what the client says, and what it cost everybody."""
    directory = roles.leader.directory
    machine.heat_page_cache(directory, line.heat_mib)
    machine.settle_disk(directory)
    nodes = roles.nodes()
    used = {role: node.cpu_seconds() for role, node in nodes.items()}
    written = sum(node.bytes_written() for node in cluster.nodes)
    busy, disk, began = processor_seconds(), disk_busy_seconds(directory), time.monotonic()
    sample = load(roles, line, topic)
    wall = time.monotonic() - began
    busy, after = processor_seconds() - busy, disk_busy_seconds(directory)
    time.sleep(AFTERMATH_SECONDS)
    for role, node in nodes.items():
        node.check_alive()
        sample[f"{role}_cpu_s"] = node.cpu_seconds() - used[role]
    sample["written"] = sum(node.bytes_written() for node in cluster.nodes) - written
    sample["wall_s"] = wall
    sample["processors_busy"] = busy / wall / len(os.sched_getaffinity(0))
    sample["disk_busy"] = None if disk is None or after is None else (after - disk) / wall
    return sample


def load(roles: Roles, line: Line, topic: str) -> Sample:
    port = roles.leader.port
    if line.kind == "single":
        return clients.raw(
            "produce", port, line.amount + 60, topic=topic, size=line.size, records=1, seconds=line.amount,
            connections=16, partitions=1, inflight=1,
        )  # fmt: skip
    if line.kind == "delay":
        return clients.raw(
            "tail", port, line.amount + 60, topic=topic, rate=line.rate, size=line.size, seconds=line.amount
        )
    messages = int(line.amount * 1e6 / line.size)
    return clients.rdkafka(
        "produce", roles.leader.bootstrap, 180, {"acks": "all"}, topic=topic, messages=messages, size=line.size
    )


def limit(line: Line, sample: Sample) -> str:
    """What the line could not get past: the first of these that was used up."""
    wall = sample["wall_s"]
    if sample["client_cpu_s"] / wall >= BUSY:
        return "client"
    if sample["leader_cpu_s"] / wall >= BUSY:
        return "processor: the leader's loop"
    if line.kind == "delay":
        return "the rate"
    if sample["processors_busy"] >= BUSY:
        return "processor: all of them"
    if sample["disk_busy"] is not None and sample["disk_busy"] >= DISK_BUSY:
        return "disk"
    return "waiting for syncs" if line.durability == "fsync" else "waiting for each other"


def figures(line: Line, samples: Sequence[Sample]) -> dict[str, Any]:
    """The line of the table: the round whose rate is the median one (of delays: whose p50 is)."""
    ranked = sorted(samples, key=lambda s: s["p50_us"] if line.kind == "delay" else s["records"] / s["seconds"])
    sample = ranked[len(ranked) // 2]
    size = sample["bytes"]
    found: dict[str, Any] = {
        "copies": line.copies,
        "durability": line.durability,
        "load": line.title,
        "kind": line.kind,
        "size": line.size,
        "mb_s": round(size / sample["seconds"] / 1e6, 2),
        "records_s": round(sample["records"] / sample["seconds"]),
        "p50_ms": round(sample["p50_us"] / 1e3, 2) if "p50_us" in sample else None,
        "p99_ms": round(sample["p99_us"] / 1e3, 2) if "p99_us" in sample else None,
        "written_per_byte": round(sample["written"] / size, 2),
        "processors_busy": round(sample["processors_busy"], 2),
        "disk_busy": None if sample["disk_busy"] is None else round(sample["disk_busy"], 2),
        "client_share": round(sample["client_cpu_s"] / sample["wall_s"], 2),
        "limit": limit(line, sample),
        "rounds_mb_s": [round(each["bytes"] / each["seconds"] / 1e6, 2) for each in samples],
    }
    for role in ("leader", "follower", "controller"):
        used = sample[f"{role}_cpu_s"]
        found[f"{role}_s_per_gb"] = round(used / size * 1e9, 2)
        found[f"{role}_us_per_record"] = round(used / sample["records"] * 1e6, 2)
        found[f"{role}_share"] = round(used / sample["wall_s"], 2)
    return found


def run_line(cluster: NodesCluster, roles: Roles, line: Line, rounds: int, until: float) -> dict[str, Any]:
    """A round that does not count, those that do (only one behind the moment `until`), and the topic is gone again."""
    topic = f"{line.kind}-{line.size}-{line.durability}-{line.copies}"
    if line.kind == "spread":
        ids = [node.id for node in cluster.nodes]
        turned = [ids[n % len(ids) :] + ids[: n % len(ids)] for n in range(MANY)]
        cluster.create_topic(topic, [each[: line.copies] for each in turned], line.durability)
    else:
        cluster.create_topic(topic, [roles.placement(line.copies)], line.durability)
    measure(cluster, roles, line, topic)
    samples = [measure(cluster, roles, line, topic)]
    while len(samples) < rounds and time.monotonic() < until:
        samples.append(measure(cluster, roles, line, topic))
    cluster.delete_topic(topic)
    return figures(line, samples)


def idleness(cluster: NodesCluster, roles: Roles, seconds: float) -> dict[str, Any]:
    """Processor time of nodes whose partitions rest, by role, in percent of a core; and their memory."""
    nodes = roles.nodes()
    used, began = {role: node.cpu_seconds() for role, node in nodes.items()}, time.monotonic()
    time.sleep(seconds)
    wall = time.monotonic() - began
    found: dict[str, Any] = {"seconds": round(wall, 1)}
    for role, node in nodes.items():
        found[f"{role}_percent"] = round((node.cpu_seconds() - used[role]) / wall * 100, 2)
        found[f"{role}_mib"] = round(node.memory_mib()["rss"], 1)
    return found


# ---- what it leaves behind -------------------------------------------------------------------------------------------


COLUMNS = (
    "copies", "load", "MB/s", "records/s", "p50 ms", "p99 ms", "leader", "follower", "controller", "written", "busy",
    "limit",
)  # fmt: skip
KEY = """One partition and acks=all, unless the line says otherwise. *leader* leads it and not the quorum, *controller*
is the active one, and with three copies a follower besides. Processor time is µs a record where there is one record a
request, else seconds a gigabyte. *written*: bytes that all nodes gave to the disk for a byte acknowledged. *busy*: the
processors, the disk. Of the rounds behind one that does not count, that with the median rate is shown."""


def conditions(facts: dict[str, Any]) -> str:
    """Without which the figures mean nothing."""
    about, disk, load = facts["machine"], facts["disk_before"], facts["load_average_after"]
    return (
        f"{about['processor']}, {about['cores']} cores for {facts['nodes']} nodes and the client, "
        f"{about['memory_gib']} GiB, {about['filesystem']}, one disk for all (fdatasync of 16 KiB: "
        f"p50 {disk['p50_ms']} ms, p99 {disk['p99_ms']} ms), Python {facts['versions']['python']}; "
        f"load average {about['load_average'][0]} before, {load[0]} after; at most {facts['rounds']} rounds a line. "
        f"Made by `make bench-cluster` in {facts['seconds']:.0f} s."
    )


def table(facts: dict[str, Any]) -> str:
    """The page: conditions, the lines, idleness."""
    said = [
        f"# Three nodes on one machine, {facts['made'][:10]}, {facts['commit'][:9]}",
        "",
        conditions(facts),
        "",
        KEY,
        "",
    ]
    for durability, heading in (
        ("page-cache", "Acknowledged from the page cache"),
        ("fsync", "Synced before the acknowledgement"),
    ):
        said += [
            f"## {heading}",
            "",
            "| " + " | ".join(COLUMNS) + " |",
            "|" + "---|" * len(COLUMNS),
        ]
        for row in facts["lines"]:
            if row["durability"] == durability:
                said.append(_row(row))
        said.append("")
    said += held_against(facts["lines"])
    said += [
        "## At rest",
        "",
        "| | processor, % of a core: leader, follower, controller | resident MiB: the same |",
        "|---|---|---|",
    ]
    for name, title in (
        ("idle_empty", "no topics"),
        ("idle_after_load", "after the loads"),
        ("idle_many", f"{facts['idle_partitions']:,} partitions of {facts['nodes']} copies"),
    ):
        if name in facts:
            each = facts[name]
            shares = ", ".join(f"{each[f'{role}_percent']:.2f}" for role in ("leader", "follower", "controller"))
            mib = ", ".join(f"{each[f'{role}_mib']:.0f}" for role in ("leader", "follower", "controller"))
            said.append(f"| {title} | {shares} | {mib} |")
    if "peak_mib" in facts:
        most = ", ".join(f"{role} {mib:.0f} MiB" for role, mib in facts["peak_mib"].items())
        said.append(f"\nMost memory under load: {most}.")
    return "\n".join(said) + "\n"


def held_against(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What the lines say together: the cost of copies, and the aims for it."""
    found = []
    for durability in ("page-cache", "fsync"):
        of = {(row["kind"], row["size"], row["copies"]): row for row in rows if row["durability"] == durability}
        for size in (100, 1000):
            one, three = of.get(("single", size, 1)), of.get(("single", size, 3))
            if one and three:
                leader = (three["leader_us_per_record"] - one["leader_us_per_record"]) / 2
                found.append(
                    f"- {durability}, {size:,} B: a batch costs a follower {three['follower_us_per_record']:.0f} µs "
                    f"(aim: 15), and its leader {leader:.0f} µs for each follower (aim: 10)."
                )
        one, three = of.get(("batched", 1000, 1)), of.get(("batched", 1000, 3))
        if one and three:
            cpu = [
                sum(row[f"{role}_s_per_gb"] for role in ("leader", "follower", "controller")) for row in (one, three)
            ]
            found.append(
                f"- {durability}, 1,000 B in bulk: three copies at {three['mb_s'] / one['mb_s']:.2f} of the rate of "
                f"one, {cpu[1]:.2f} CPU-s a GB for all nodes beside {cpu[0]:.2f}."
            )
    return ["## What copies cost", "", *found, ""] if found else []


def _number(value: float) -> str:
    """Three digits that count, and never a power of ten."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _row(row: dict[str, Any]) -> str:
    single = row["kind"] in ("single", "delay")
    unit, key = ("µs", "us_per_record") if single else ("s/GB", "s_per_gb")
    costs = [f"{_number(row[f'{role}_{key}'])} {unit}" for role in ("leader", "follower", "controller")]
    delays = ["–" if row[name] is None else f"{row[name]:.2f}" for name in ("p50_ms", "p99_ms")]
    disk = "–" if row["disk_busy"] is None else f"{row['disk_busy'] * 100:.0f} %"
    busy = f"{row['processors_busy'] * 100:.0f} %, {disk}"
    cells = [
        row["copies"], row["load"], _number(row["mb_s"]), f"{row['records_s']:,}", *delays, *costs,
        _number(row["written_per_byte"]), busy, row["limit"],
    ]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def benchmark(options: argparse.Namespace) -> int:
    """Measure, print, store."""
    began = time.monotonic()
    small: bool = options.small
    rounds = 1 if small else options.rounds
    wanted = [
        line
        for line in lines(small=small)
        if options.only in f"{line.copies} {line.durability} {line.kind} {line.size}"
    ]
    for name, libraries in clients.LIBRARIES.items():
        clients.build(name, *libraries)
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(working_directory(options.data_dir))
        facts: dict[str, Any] = {
            "benchmark": "cluster",
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            **machine.commit(),
            "versions": machine.versions(),
            "machine": machine.describe(directory),
            "disk_before": machine.fdatasync_ms(directory),
            "nodes": options.nodes,
            "rounds": rounds,
            "idle_partitions": options.idle_partitions,
        }
        cluster = NodesCluster(directory, options.nodes)
        stack.callback(cluster.stop)
        cluster.form()
        facts["start_s"] = round(cluster.start(), 2)
        if options.steady:
            facts["benchmark"] = "cluster-steady"
            facts["steady"] = cluster_steady.run(cluster, options.steady * 60)
            print(json.dumps(facts["steady"], indent=1), flush=True)
            store(facts, "", is_whole=not small)
            return 0
        roles = Roles(cluster)
        seconds = 3.0 if small else 15.0
        facts["idle_empty"] = idleness(cluster, roles, seconds)
        facts["lines"] = []
        wanted = [line for line in wanted if line.copies <= len(cluster.nodes)]
        for number, line in enumerate(wanted, 1):
            started = time.monotonic()
            until = began + START_SECONDS + LINES_SECONDS * number / len(wanted)
            facts["lines"].append(run_line(cluster, roles, line, rounds, until))
            print(f"{line.durability} {_row(facts['lines'][-1])} {time.monotonic() - started:.0f} s", flush=True)
        time.sleep(1 if small else 5)
        facts["idle_after_load"] = idleness(cluster, roles, seconds)
        facts["peak_mib"] = {role: round(node.memory_mib()["peak"], 1) for role, node in roles.nodes().items()}
        facts["controller_was"] = roles.controller.id
        facts["controller_is"] = cluster.active_controller().id
        made = time.monotonic()
        cluster.spread_topic("many", options.idle_partitions, min(3, options.nodes), "fsync")
        facts["many_made_s"] = round(time.monotonic() - made, 2)
        time.sleep(5 if small else 20)
        facts["idle_many"] = idleness(cluster, roles, seconds)
        facts["disk_after"] = machine.fdatasync_ms(directory)
        facts["load_average_after"] = machine.describe(directory)["load_average"]
        facts["seconds"] = round(time.monotonic() - began, 1)
        page = table(facts)
        print(page, flush=True)
        store(facts, page, is_whole=not small and not options.only)
    return 0


def store(facts: dict[str, Any], page: str, *, is_whole: bool) -> None:
    """The figures, and the page made of them."""
    if not is_whole:
        return
    stem = RESULTS / f"{facts['made'][:16].replace(':', '')}-{facts['commit'][:9]}-{facts['benchmark']}"
    stem.parent.mkdir(parents=True, exist_ok=True)
    for suffix, text in ((".json", json.dumps(facts, indent=1, ensure_ascii=False) + "\n"), (".md", page)):
        if text:
            path = Path(f"{stem}{suffix}")
            path.write_text(text)
            print(f"stored in {path.relative_to(ROOT)}", flush=True)


def _end(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--small", action="store_true", help="one short round of everything; nothing stored")
    parser.add_argument("--only", default="", metavar="TEXT", help="lines like '3 fsync batched 1000'; nothing stored")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle-partitions", type=int, default=IDLE_PARTITIONS)
    parser.add_argument("--steady", type=float, default=0, metavar="MINUTES", help="full load for so long instead")
    parser.add_argument("--data-dir", type=Path, help="parent of the data directories (default: .cache)")
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, _end)
    try:
        return benchmark(parser.parse_args())
    except KeyboardInterrupt:
        print("stopped; the nodes are down and their data is removed")
        return 130
    except (BrokerFailedError, clients.ClientFailedError) as problem:
        print(problem, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
