"""Measures starts and idleness: a clean start, one after kill -9 with a full journal, and many partitions at rest.

`make bench-restart` stores its figures in `benchmarks/results/`; `--small` is for trying it out and stores nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.duramen_broker import DuramenBroker
from benchmarks.kafka_peer import ROOT
from benchmarks.report import RESULTS

GB = 1_000_000_000
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


class Node(DuramenBroker):
    """`duramen serve` on the data of the benchmark."""

    def ready_ms(self) -> int:
        """What the node itself says of its last start, without the interpreter's."""
        told = re.findall(r"data in .*, (\d+) ms\)", self.log_path.read_text(errors="replace"))
        return int(told[-1]) if told else -1

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))


def _load(directory: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.restart_load", str(directory / "data"), *words]


def fill(directory: Path, partitions: int, size: int) -> float:
    """Make the stored data; seconds."""
    began = time.perf_counter()
    words = ["--partitions", str(partitions), "--bytes", str(size)]
    subprocess.run(_load(directory, *words), check=True, cwd=ROOT)
    return time.perf_counter() - began


def fill_journal(directory: Path, partitions: int, batch: int) -> int:
    """Fill the journal and kill whoever did; entries in it."""
    words = ["--partitions", str(partitions), "--batch", str(batch), "--journal"]
    process = subprocess.Popen(_load(directory, *words), stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        told = process.stdout.readline().split()
    finally:
        process.kill()
        process.wait()
    return int(told[1])


def measure_start(node: Node) -> dict[str, Any]:
    """Start, take readings, stop cleanly."""
    node.prepare()
    seconds = node.start(timeout=300)
    cpu = node.cpu_seconds()
    found = {
        "first_reply_s": round(seconds, 3),
        "cpu_s": round(cpu, 3),
        "ready_ms": node.ready_ms(),
        "descriptors": node.descriptors(),
        "rss_mib": round(node.memory_mib()["rss"], 1),
    }
    began = time.perf_counter()
    node.stop(grace=300)
    found["stop_s"] = round(time.perf_counter() - began, 3)
    return found


def starts(node: Node, partitions: int, rounds: int) -> dict[str, Any]:
    """Clean and unclean starts in turn; with several rounds the first one does not count."""
    clean, unclean, small = [], [], []
    entries = 0
    for number in range(-1 if rounds > 1 else 0, rounds):
        first = measure_start(node)
        entries = fill_journal(node.directory, partitions, 4096)
        killed = measure_start(node)
        small_entries = fill_journal(node.directory, partitions, 512)
        killed_small = measure_start(node)
        killed_small["entries"] = small_entries
        if number >= 0:
            clean.append(first)
            unclean.append(killed)
            small.append(killed_small)
    found: dict[str, Any] = {"clean": clean, "unclean": unclean, "unclean_small_batches": small, "entries": entries}
    for name in ("clean", "unclean", "unclean_small_batches"):
        for key in ("first_reply_s", "cpu_s"):
            found[f"{name}_{key}"] = statistics.median(each[key] for each in found[name])
    with contextlib.suppress(OSError):
        os.sync()
        DROP_CACHES.write_text("3")
        found["clean_cold_caches"] = measure_start(node)
    return found


def idleness(directory: Path, partitions: int, seconds: float) -> dict[str, Any]:
    """CPU, memory and descriptors of a node whose partitions rest; what they cost beyond an empty node."""
    empty = Node(directory / "empty")
    empty.prepare()
    empty.start()
    time.sleep(2)
    base = empty.memory_mib()["rss"]
    empty.stop()
    full = Node(directory / "idle")
    full.prepare()
    fill(full.directory, partitions, 0)
    full.start(timeout=120)
    time.sleep(3)
    before, began = full.cpu_seconds(), time.perf_counter()
    time.sleep(seconds)
    cpu = (full.cpu_seconds() - before) / (time.perf_counter() - began)
    rss = full.memory_mib()["rss"]
    found = {
        "partitions": partitions,
        "seconds": seconds,
        "cpu_percent": round(cpu * 100, 3),
        "rss_mib": round(rss, 1),
        "rss_of_an_empty_node_mib": round(base, 1),
        "kib_per_partition": round((rss - base) * 1024 / partitions, 2),
        "descriptors": full.descriptors(),
        "start_s": round(full.start_seconds, 3),
    }
    full.stop(grace=120)
    return found


def store(facts: dict[str, Any]) -> None:
    """Write what is known so far: a run that is cut short later keeps the parts it has measured."""
    stamp = facts["at"][:16].replace(":", "")
    path = RESULTS / f"{stamp}-{facts['commit'][:9]}-restart.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(facts, indent=1) + "\n")
    temporary.replace(path)
    print(f"stored in {path.relative_to(ROOT)}", flush=True)


def main() -> int:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.restart", description=__doc__)
    parser.add_argument("--small", action="store_true", help="200 MB over 50 partitions, 500 idle ones; nothing stored")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--part", choices=("idle", "starts", "both"), default="both")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the idle node is watched")
    parser.add_argument("--data-dir", type=Path, help="parent of the data (default: the system's temporary directory)")
    options = parser.parse_args()
    small: bool = options.small
    partitions, size, idle = (50, 200_000_000, 500) if small else (1000, 10 * GB, 10_000)
    parent = Path(tempfile.mkdtemp(prefix="duramen-restart-", dir=options.data_dir))
    facts: dict[str, Any] = {
        "benchmark": "restart",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        **machine.commit(),
        "versions": machine.versions(),
        "machine": machine.describe(parent),
        "load_average_before": os.getloadavg(),
    }

    def measured() -> None:
        facts["load_average_after"] = os.getloadavg()
        print(json.dumps(facts, indent=2), flush=True)
        if not small:
            store(facts)

    try:
        if options.part != "starts":
            facts["idle"] = idleness(parent, idle, 5.0 if small else options.seconds)
            measured()
        if options.part != "idle":
            node = Node(parent / "node")
            node.prepare()
            facts |= {"partitions": partitions, "bytes": size, "rounds": options.rounds}
            facts["fill_s"] = round(fill(node.directory, partitions, size), 1)
            facts["starts"] = starts(node, partitions, options.rounds)
            measured()
    finally:
        shutil.rmtree(parent, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
