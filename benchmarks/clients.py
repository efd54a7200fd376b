"""Owns the load clients: compiles the C programs, runs every client bounded in time, reads what it reports.

None of them is a Python loop: with one, the client and not the broker would be measured.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import confluent_kafka

from benchmarks import kafka_peer

SOURCES = Path(__file__).resolve().parent / "loadgen"
LIBRARIES = {"raw": (), "rdkafka": ("-ldl", "-pthread")}
BINARIES = kafka_peer.ROOT / ".cache" / "bench-bin"


class ClientFailedError(Exception):
    """A client could not be built, timed out, or was answered with an error."""


def compiler() -> str | None:
    """A C compiler from PATH."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build(name: str, *libraries: str) -> Path:
    """Compile loadgen/NAME.c unless the same source has been compiled before."""
    source = SOURCES / f"{name}.c"
    digest = hashlib.sha256(source.read_bytes() + (SOURCES / "load.h").read_bytes()).hexdigest()[:12]
    binary = BINARIES / f"{name}-{digest}"
    if binary.exists():
        return binary
    cc = compiler()
    if cc is None:
        raise ClientFailedError("no C compiler (cc) on PATH, which the load clients are built with")
    BINARIES.mkdir(parents=True, exist_ok=True)
    scratch = binary.with_suffix(".new")
    command = [cc, "-O2", "-o", str(scratch), str(source), *libraries]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if ran.returncode != 0:
        raise ClientFailedError(f"{source.name} does not compile:\n{ran.stderr}")
    scratch.replace(binary)
    return binary


def librdkafka() -> Path:
    """The C library inside the confluent-kafka wheel, which Duramen's command line depends on anyway."""
    package = Path(confluent_kafka.__file__).resolve().parent
    for folder in (package.parent / "confluent_kafka.libs", package / ".dylibs", package):
        for found in sorted(folder.glob("librdkafka*.so*")):
            return found
    raise ClientFailedError("this build of confluent-kafka carries no librdkafka of its own")


def _run(command: list[str], timeout: float) -> dict[str, Any]:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise ClientFailedError(f"{Path(command[0]).name} {command[1]}: no end after {timeout:.0f} s") from None
    lines = ran.stdout.strip().splitlines()
    if ran.returncode != 0 or not lines:
        said = (ran.stderr.strip() or ran.stdout.strip() or "nothing")[-300:]
        raise ClientFailedError(f"{Path(command[0]).name} {command[1]}: status {ran.returncode}, said: {said}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def raw(mode: str, port: int, timeout: float, **words: object) -> dict[str, Any]:
    """Run the prepared-frames client (loadgen/raw.c) in `mode` produce, paced, fetch or tail."""
    pairs = [f"{key}={value}" for key, value in words.items()]
    return _run([str(build("raw")), mode, f"port={port}", *pairs], timeout)


def http(mode: str, port: int, path: str, timeout: float, **words: object) -> dict[str, Any]:
    """Run the HTTP client (loadgen/http.c) in `mode` ask or paced."""
    pairs = [f"{key}={value}" for key, value in words.items()]
    return _run([str(build("http")), mode, f"port={port}", f"path={path}", *pairs], timeout)


def rdkafka(
    mode: str, bootstrap: str, timeout: float, properties: dict[str, str] | None = None, **words: object
) -> dict[str, Any]:
    """Run the librdkafka client (loadgen/rdkafka.c) in `mode` produce, transactions or consume.

    properties: librdkafka's.
    """
    pairs = [f"{key}={value}" for key, value in {**words, **(properties or {})}.items()]
    command = [
        str(build("rdkafka", *LIBRARIES["rdkafka"])),
        mode,
        f"lib={librdkafka()}",
        f"brokers={bootstrap}",
        *pairs,
    ]
    return _run(command, timeout)


def perf_produce(
    bootstrap: str, topic: str, messages: int, size: int, timeout: float, transaction_ms: int = 0
) -> dict[str, Any]:
    """Kafka's ProducerPerformance with the Java producer's own defaults (acks=all, idempotent, 16 KiB batches).

    transaction_ms: in transactions, each of so many milliseconds.
    """
    words = ("--transactional-id", f"{topic}-perf", "--transaction-duration-ms", str(transaction_ms))
    ran = kafka_peer.tool(
        kafka_peer.PRODUCER_PERFORMANCE,
        *("--topic", topic, "--num-records", str(messages), "--record-size", str(size), "--throughput", "-1"),
        *("--bootstrap-server", bootstrap),
        *(words if transaction_ms else ()),
        timeout=timeout,
    )
    found = re.findall(r"(\d+) records sent, ([\d.]+) records/sec", ran.stdout)
    if not found or int(found[-1][0]) != messages:
        raise ClientFailedError(f"ProducerPerformance said: {ran.stdout[-300:]}")
    return {"records": messages, "bytes": messages * size, "seconds": messages / float(found[-1][1])}


def perf_consume(bootstrap: str, topic: str, messages: int, size: int, timeout: float) -> dict[str, Any]:
    """Kafka's ConsumerPerformance; its time without the rebalance is what counts."""
    ran = kafka_peer.tool(
        kafka_peer.CONSUMER_PERFORMANCE,
        *("--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(messages)),
        *("--timeout", "20000"),
        timeout=timeout,
    )
    rows = [line.split(",") for line in ran.stdout.splitlines() if line.count(",") >= 9]
    if len(rows) < 2:
        raise ClientFailedError(f"ConsumerPerformance said: {(ran.stdout + ran.stderr)[-300:]}")
    row = dict(zip((cell.strip() for cell in rows[0]), (cell.strip() for cell in rows[-1]), strict=False))
    records = int(row["data.consumed.in.nMsg"])
    return {"records": records, "bytes": records * size, "seconds": records / float(row["fetch.nMsg.sec"])}


def perf_delay(bootstrap: str, topic: str, messages: int, size: int, timeout: float) -> dict[str, Any]:
    """Kafka's EndToEndLatency: one record at a time through producer and consumer; whole milliseconds only."""
    ran = kafka_peer.tool(
        kafka_peer.END_TO_END_LATENCY,
        *("--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(messages)),
        *("--producer-acks", "all", "--record-size", str(size)),
        timeout=timeout,
    )
    found = re.search(r"50th = (\d+), 99th = (\d+), 99\.9th = (\d+)", ran.stdout)
    average = re.search(r"Avg latency: ([\d.]+)", ran.stdout)
    if found is None or average is None:
        raise ClientFailedError(f"EndToEndLatency said: {(ran.stdout + ran.stderr)[-300:]}")
    p50, p99, p999 = (int(value) * 1000.0 for value in found.groups())
    return {"records": messages, "p50_us": p50, "p99_us": p99, "p999_us": p999, "mean_us": float(average[1]) * 1e3}
