"""Owns what is said about the machine next to the figures: processor, disk, versions, load, and two small probes."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.kafka_peer import ROOT

MIB = 1 << 20


def _first_line(path: str, key: str) -> str:
    try:
        for line in Path(path).read_text().splitlines():
            if line.startswith(key):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return "unknown"


def _git(*words: str) -> str:
    try:
        ran = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout.strip()


def commit() -> dict[str, Any]:
    """The commit that is measured, and whether the sources differ from it."""
    return {
        "commit": _git("rev-parse", "HEAD") or "unknown",
        "changed_since": bool(_git("status", "--porcelain", "--untracked-files=no", "--", "src", "benchmarks")),
    }


def filesystem(directory: Path) -> str:
    """Type of the file system that holds `directory`, such as ext4."""
    best, kind = "", "unknown"
    try:
        mounts = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return kind
    target = str(directory.resolve())
    for line in mounts:
        _, mount, this_kind, *_ = line.split()
        inside = target == mount or target.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, this_kind
    return kind


def describe(directory: Path) -> dict[str, Any]:
    """Processor, memory, kernel, file system of the data and load at this moment."""
    return {
        "processor": _first_line("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1),
        "system": f"{platform.system()} {platform.release()}",
        "filesystem": filesystem(directory),
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }


def versions() -> dict[str, str]:
    """Versions of Python and of what the measurement rests on."""
    found = {"python": platform.python_version()}
    for package in ("duramen", "confluent-kafka", "crc32c", "cramjam"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def stolen_seconds() -> float:
    """Of all processors since they were started: how long they had work, and their host gave them no time."""
    try:
        words = Path("/proc/stat").read_text().partition("\n")[0].split()
    except OSError:
        return 0.0
    return int(words[8]) / os.sysconf("SC_CLK_TCK") if len(words) > 8 else 0.0


def fdatasync_ms(directory: Path, rounds: int = 200, size: int = 16384, limit_seconds: float = 5.0) -> dict[str, float]:
    """What the disk itself takes to make an append of `size` bytes durable: p50 and p99 in milliseconds."""
    path = directory / "fdatasync.probe"
    taken: list[float] = []
    block = os.urandom(size)
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    began = time.perf_counter()
    try:
        while len(taken) < rounds and time.perf_counter() - began < limit_seconds:
            os.write(descriptor, block)
            before = time.perf_counter()
            os.fdatasync(descriptor)
            taken.append((time.perf_counter() - before) * 1e3)
    finally:
        os.close(descriptor)
        path.unlink()
    taken.sort()
    return {
        "p50_ms": round(statistics.median(taken), 3),
        "p99_ms": round(taken[int(len(taken) * 0.99)], 3),
        "samples": len(taken),
        "append_bytes": size,
    }


def heat_page_cache(directory: Path, mib: int) -> float:
    """Touch `mib` MiB of page cache and give it back, so that the next writer gets pages the machine has backed.

    A virtual machine's host takes idle pages away; the first write to each then costs ten times a warm one and buries
    every difference between brokers. Returns the GB/s of this write: a low figure means that the cache was cold.
    """
    path = directory / "page-cache.heat"
    block = b"\0" * MIB
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    began = time.perf_counter()
    try:
        for _ in range(mib):
            os.write(descriptor, block)
        seconds = time.perf_counter() - began
    finally:
        os.close(descriptor)
        path.unlink()
    return mib * MIB / seconds / 1e9


def settle_disk(directory: Path, timeout: float = 30.0) -> float:
    """Write back what earlier rounds left dirty, so that it does not fall into the next one; seconds it took."""
    began = time.perf_counter()
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(["sync", "-f", str(directory)], timeout=timeout, check=False, capture_output=True)
    return time.perf_counter() - began
