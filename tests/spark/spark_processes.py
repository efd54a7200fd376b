"""The processes of a Spark application on this machine, told apart by parent and command line."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

GONE_SECONDS_MAX = 20.0


def _stat(pid: int) -> tuple[str, int] | None:
    """State and parent; None when there is no such process."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return state, int(parent)


def alive(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    stat = _stat(pid)
    return stat is not None and stat[0] != "Z"


def parent(pid: int) -> int:
    """0 when there is none."""
    stat = _stat(pid)
    return 0 if stat is None else stat[1]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def descendants(root: int) -> list[int]:
    """Every process below `root`."""
    children: dict[int, list[int]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            children.setdefault(parent(int(place.name)), []).append(int(place.name))
    found, waiting = [], [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def executors(root: int) -> list[int]:
    """The executor JVMs below a standalone worker, or below a local cluster's driver, in whose JVM the workers are."""
    return [pid for pid in descendants(root) if "CoarseGrainedExecutorBackend" in _command(pid)]


def task_workers(driver: int) -> list[int]:
    """Python workers that run tasks: those that a daemon of tasks has forked."""
    daemons = [pid for pid in descendants(driver) if "pyspark.daemon pyspark.worker" in _command(pid)]
    return [pid for pid in daemons if parent(pid) in daemons]


def executor_of(worker: int) -> int:
    """The JVM that a Python worker belongs to: its daemon's parent."""
    return parent(parent(worker))


def kill_9(pids: list[int]) -> list[int]:
    """SIGKILL; those that were alive before and are gone afterwards."""
    there = [pid for pid in pids if alive(pid)]
    for pid in there:
        os.kill(pid, signal.SIGKILL)
    give_up = time.monotonic() + GONE_SECONDS_MAX
    while any(map(alive, there)) and time.monotonic() < give_up:
        time.sleep(0.002)
    return [pid for pid in there if not alive(pid)]
