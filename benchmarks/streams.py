"""Streams over HTTP: what readers and small writes cost, as counts and as ratios within this run.

    python -m benchmarks.streams [--small] [--only fan-out]     # at most ten minutes

One node and one gateway with their defaults. The load comes from programs in C (`loadgen/http.c`, `loadgen/raw.c`):
one for the readers, one for the writes. Both sides of a ratio are measured in turn, each after an unmeasured round.

fan-out    1,000 readers (server-sent events) of a stream with 20 records a second, beside one reader; then ten records
           at a time; then 5,000 readers with two a second
old-data   the delay at the end of a stream (page cache) with ten readers that read it from the beginning, and without
fan-in     one record a request on 500 connections, each a named writer, beside the same server that answers at once;
           100 records of 1 KB a request beside our own client; one record on ten connections beside Produce
start      start to the first answer; memory at rest
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import clients, machine
from benchmarks.broker_process import BrokerFailedError
from benchmarks.cluster import store
from benchmarks.duramen_broker import DuramenBroker
from benchmarks.gateway_process import GatewayProcess
from benchmarks.run import working_directory
from benchmarks.topics import create_topic
from duramen.client import Cluster

RECORD = 130
"""Bytes of a record in the parts with readers, as in the prototype that the aims come from."""
JSON = {"content-type": "application/json"}
PAGE_CACHE = {"duramen.ack.durability": "page-cache"}
OLD_READERS = 10
OLD_MIB = 192


@dataclass
class Line:
    """One figure. aim: a text such as "≤ 150", whose number is compared; value rounded for the eye."""

    part: str
    what: str
    value: float
    unit: str = ""
    aim: str = ""
    detail: str = ""

    def met(self) -> bool | None:
        if not self.aim:
            return None
        bound = float(self.aim[1:].replace(",", ""))
        return self.value <= bound if self.aim[0] == "≤" else self.value >= bound

    def row(self) -> str:
        mark = {None: "", True: "met", False: "missed"}[self.met()]
        shown = f"{self.value:,.0f}" if abs(self.value) >= 100 else f"{self.value:.3g}"
        return f"| {self.part} | {self.what} | {shown} {self.unit} | {self.aim} | {mark} | {self.detail} |"


@dataclass
class Bench:
    """A node, a gateway, and what was measured so far."""

    node: DuramenBroker
    gateway: GatewayProcess
    scale: float
    rounds: int
    lines: list[Line] = field(default_factory=list)
    _made: int = 0

    def add(self, line: Line) -> None:
        self.lines.append(line)
        print(line.row(), flush=True)

    def stream(self, config: dict[str, str] | None = None) -> str:
        """A new JSON stream's path below /v1/stream."""
        self._made += 1
        name = f"bench-{self._made}"
        create_topic(
            Cluster(self.node.bootstrap), name, 1, {"duramen.stream.content.type": "application/json", **(config or {})}
        )
        return f"/v1/stream/{name}"

    def http(self, mode: str, path: str, timeout: float, **words: object) -> dict[str, Any]:
        return clients.http(mode, self.gateway.port, path, timeout, **words)

    @contextmanager
    def followers(self, path: str, readers: int, records: int, timeout: float) -> Any:
        """Readers at the end of a stream; what they have seen is in the dictionary when the block has ended."""
        found: dict[str, Any] = {}
        words = (f"readers={readers}", f"records={records}", f"timeout={timeout:.0f}")
        command = [str(clients.build("http")), "follow", f"port={self.gateway.port}"]
        command += [f"path={path}?offset=now&live=sse", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                if process.stdout.readline() != "following\n":
                    raise clients.ClientFailedError(f"readers: {process.stderr.read()[-300:]}")
                time.sleep(0.5)
                yield found
                found |= json.loads(process.stdout.readline() or "{}")
            finally:
                process.kill()
        if found.get("least") != records or found.get("most") != records:
            raise clients.ClientFailedError(f"readers of {path}: {found}, not {records} records each")


def fan_out(bench: Bench) -> None:
    seconds = 10 * bench.scale
    alone = _followed(bench, 1, 20, 1, seconds)
    crowd = _followed(bench, 1000, 20, 1, seconds)
    bench.add(Line("fan-out", "bytes from the node, 1,000 readers ÷ one", crowd.upstream / alone.upstream, "×", "≤1.1"))
    bench.add(
        Line("fan-out", "node's processor time, 1,000 readers ÷ one", crowd.node_cpu / alone.node_cpu, "×", "≤1.2")
    )
    bench.add(Line("fan-out", "1,000 readers, 20 records/s: append to delivery, p99", crowd.p99_ms, "ms", "≤150"))
    bench.add(
        Line(
            "fan-out",
            "writes to readers a second of the gateway's processor, records singly",
            crowd.deliveries / crowd.gateway_cpu,
            "/s",
            "≥30,000",
            f"{1e6 * crowd.gateway_cpu / crowd.deliveries:.1f} µs each",
        )
    )
    heap = _followed(bench, 1000, 20, 10, seconds)
    bench.add(
        Line(
            "fan-out",
            "1,000 readers, ten records at a time, 20 times a second: deliveries",
            heap.deliveries / heap.seconds,
            "/s",
            "≥100,000",
            f"p99 {heap.p99_ms:.0f} ms",
        )
    )
    many = _followed(bench, 5000, 2, 1, 15 * bench.scale)
    bench.add(Line("fan-out", "5,000 readers, 2 records/s: append to delivery, p99", many.p99_ms, "ms", "≤400"))
    bench.add(Line("fan-out", "the gateway's memory for each of 5,000 readers", many.kib_each, "KiB", "≤32"))


@dataclass
class _Followed:
    deliveries: int
    seconds: float
    p99_ms: float
    upstream: float
    node_cpu: float
    gateway_cpu: float
    kib_each: float


def _followed(bench: Bench, readers: int, rate: int, at_a_time: int, seconds: float) -> _Followed:
    path = bench.stream()
    writes = int(seconds * rate)
    resting = bench.gateway.memory_mib()["anonymous"]
    with bench.followers(path, readers, (writes + rate) * at_a_time, seconds + 60) as found:
        # A second that does not count: sockets' buffers and code paths of the first time.
        bench.http("paced", path, 60, rate=rate, seconds=1, records=at_a_time, size=RECORD)
        before = bench.gateway.metrics()["duramen_gateway_tail_bytes_read_total"]
        node, gateway = bench.node.cpu_seconds(), bench.gateway.cpu_seconds()
        bench.http("paced", path, seconds + 60, rate=rate, seconds=seconds, records=at_a_time, size=RECORD)
        # The readers are done a moment after the writer; what they still cost then belongs to it.
        time.sleep(0.5)
        node, gateway = bench.node.cpu_seconds() - node, bench.gateway.cpu_seconds() - gateway
        upstream = bench.gateway.metrics()["duramen_gateway_tail_bytes_read_total"] - before
        memory = bench.gateway.memory_mib()["anonymous"] - resting
    return _Followed(
        readers * writes * at_a_time,
        found["seconds"] - 1,
        found["p99_ms"],
        upstream,
        node,
        gateway,
        memory * 1024 / readers,
    )


def old_data(bench: Bench) -> None:
    path = bench.stream(PAGE_CACHE)
    body = json.dumps(["o" * 1000] * 1000).encode()
    for _ in range(int(OLD_MIB * bench.scale)):
        bench.gateway.ask("POST", path, body, JSON)
    seconds, rate, readers = 10 * bench.scale, 50, 20
    walk = f"walk=1 connections={OLD_READERS}".split()

    def tail(beside: bool) -> float:
        command = [str(clients.build("http")), "ask", f"port={bench.gateway.port}", f"path={path}", *walk]
        command.append(f"seconds={seconds + 4}")
        old = subprocess.Popen(command, stdout=subprocess.PIPE) if beside else None
        try:
            with bench.followers(path, readers, int(seconds * rate), seconds + 60) as found:
                bench.http("paced", path, seconds + 60, rate=rate, seconds=seconds, records=1, size=RECORD)
        finally:
            if old is not None:
                old.kill()
                old.communicate()
        return float(found["p99_ms"])

    tail(False)
    pairs = [(tail(False), tail(True)) for _ in range(bench.rounds)]
    ratio = statistics.median(beside / alone for alone, beside in pairs)
    detail = ", ".join(f"{alone:.1f} → {beside:.1f} ms" for alone, beside in pairs)
    bench.add(
        Line(
            "old-data", f"p99 at the end beside {OLD_READERS} readers of old data ÷ without", ratio, "×", "≤1.3", detail
        )
    )


def fan_in(bench: Bench) -> None:
    seconds = 4 * bench.scale
    one = {"method": "POST", "records": 1, "size": 100}

    def rate(path: str, connections: int, **words: object) -> float:
        found = bench.http("ask", path, seconds + 60, connections=connections, seconds=seconds, **words)
        return float(found["requests"] / found["seconds"])

    path = bench.stream()
    rate(path, 500, named=1, **one)
    pairs = []
    for _ in range(bench.rounds):
        bare = rate("/healthz", 500)
        pairs.append((bare, rate(path, 500, named=1, **one)))
    detail = ", ".join(f"{written:,.0f} of {bare:,.0f}/s" for bare, written in pairs)
    ratio = statistics.median(written / bare for bare, written in pairs)
    bench.add(Line("fan-in", "500 named writers, one record a request ÷ an answer alone", ratio, "×", "≥0.5", detail))
    before = bench.gateway.metrics()
    unnamed = rate(path, 500, **one)
    after = bench.gateway.metrics()
    records, batches = (
        after[name] - before[name]
        for name in ("duramen_gateway_records_written_total", "duramen_gateway_batches_written_total")
    )
    bench.add(
        Line("fan-in", "500 connections, one record a request: records a Produce", records / max(1, batches), "", "≥20",
             f"{unnamed:,.0f} requests/s")
    )  # fmt: skip

    path, topic = bench.stream(PAGE_CACHE), "bench-own"
    create_topic(Cluster(bench.node.bootstrap), topic, 1, PAGE_CACHE)
    pairs = []
    for _ in range(bench.rounds + 1):
        ours = _own_client(bench, topic, seconds)
        found = bench.http(
            "ask", path, seconds + 60, connections=8, seconds=seconds, method="POST", records=100, size=1000
        )
        pairs.append((ours, found["bytes"] / found["seconds"] / 1e6))
    pairs = pairs[1:]
    ratio = statistics.median(written / ours for ours, written in pairs)
    detail = ", ".join(f"{written:.0f} of {ours:.0f} MB/s" for ours, written in pairs)
    bench.add(Line("fan-in", "100 records of 1 KB a request ÷ our protocol client", ratio, "×", "≥0.3", detail))

    path, topic = bench.stream(), "bench-direct"
    create_topic(Cluster(bench.node.bootstrap), topic, 1)
    delays = []
    for _ in range(bench.rounds + 1):
        direct = clients.raw(
            "produce", bench.node.port, seconds + 60, topic=topic, partitions=1, connections=10, inflight=1, size=100,
            records=1, seconds=seconds,
        )["p50_us"]  # fmt: skip
        found = bench.http("ask", path, seconds + 60, connections=10, seconds=seconds, **one)
        delays.append((direct / 1000, found["p50_us"] / 1000))
    delays = delays[1:]
    ratio = statistics.median(written / direct for direct, written in delays)
    detail = ", ".join(f"{written:.2f} to {direct:.2f} ms" for direct, written in delays)
    bench.add(Line("fan-in", "p50 on 10 connections ÷ Produce on as many", ratio, "×", "≤3", detail))


def _own_client(bench: Bench, topic: str, seconds: float) -> float:
    """MB/s of a program with our client: 100 records of 1 KB a batch, eight threads of one process."""
    words = [sys.executable, "-m", "benchmarks.stream_client", bench.node.bootstrap, topic, str(seconds)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=seconds + 60, check=False)
    if ran.returncode:
        raise clients.ClientFailedError(ran.stderr[-300:])
    return float(ran.stdout)


def start(bench: Bench) -> None:
    times = []
    for _ in range(3):
        bench.gateway.stop()
        times.append(bench.gateway.start())
    time.sleep(3)
    bench.add(Line("start", "start to the first answer", statistics.median(times), "s", "≤1"))
    bench.add(Line("start", "memory at rest", bench.gateway.memory_mib()["rss"], "MiB", "≤80"))


PARTS: dict[str, Callable[[Bench], None]] = {
    "start": start,
    "fan-out": fan_out,
    "old-data": old_data,
    "fan-in": fan_in,
}


def benchmark(options: argparse.Namespace) -> int:
    scale = 0.2 if options.small else 1.0
    began = time.monotonic()
    with working_directory(options.data_dir) as directory:
        facts: dict[str, Any] = {
            "benchmark": "streams",
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            **machine.commit(),
            "machine": machine.describe(directory),
            "versions": machine.versions(),
        }
        node = DuramenBroker(directory / "node")
        node.prepare()
        gateway = GatewayProcess(directory / "gateway", node.bootstrap)
        gateway.prepare()
        try:
            node.start()
            gateway.start()
            bench = Bench(node, gateway, scale, 1 if options.small else 3)
            print("| part | what | value | aim | | |\n|---|---|---|---|---|---|", flush=True)
            for name, part in PARTS.items():
                if options.only in ("", name):
                    part(bench)
        finally:
            gateway.stop()
            node.stop()
        facts["lines"] = [{**vars(line), "met": line.met()} for line in bench.lines]
        facts["seconds"] = round(time.monotonic() - began, 1)
        facts["load_average_after"] = [round(each, 2) for each in os.getloadavg()]
        load = facts["machine"]["load_average"], facts["load_average_after"]
        print(f"{facts['seconds']:.0f} s; load before {load[0]}, after {load[1]}")
        store(facts, "", is_whole=not options.small and not options.only)
    return 0


def _end(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.streams", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a fifth of the time; nothing stored")
    parser.add_argument("--only", default="", choices=("", *PARTS), help="one part; nothing stored")
    parser.add_argument("--data-dir", type=Path, help="parent of the data directories (default: .cache)")
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, _end)
    try:
        return benchmark(parser.parse_args())
    except KeyboardInterrupt:
        print("stopped; node and gateway are down and their data is removed")
        return 130
    except (BrokerFailedError, clients.ClientFailedError) as problem:
        print(problem, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
