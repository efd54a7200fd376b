"""All write paths, their crash states opened on every core: what `make crash-states` runs.

    python -m tests.crash.sweep [--seeds 4] [--workers 2] [--only PATH] [--first-seed 1] [--minutes M]

Every seed varies the sizes of a workload and the samples of its states. A state counts once, by its content, whatever
workload and moment it came from. The exit status is 1 when a promise was broken.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from tests.crash.explore import Findings, check_storage, explore
from tests.crash.format_path import check_format, format_directories
from tests.crash.node_paths import NODE_PATHS
from tests.crash.node_run import NodeRun, check_node
from tests.crash.quorum_path import check_quorum_state, quorum_state
from tests.crash.repair_paths import check_repair, repair_journal
from tests.crash.session import Session
from tests.crash.states import State, crash_states
from tests.crash.tape import Tape
from tests.crash.write_paths import STORAGE_PATHS

REPAIR = "repair_journal"
QUORUM = "quorum_state"
FORMAT = "format_directories"
NODE_SEEDS = 3
"""A broker's start is dearer than a directory's: so many seeds of its paths for ten of the others, at least one."""


class Task(NamedTuple):
    """One write path under one seed. about: so many states of it, spread evenly; None: all."""

    path: str
    seed: int
    about: int | None = None


def tasks(seeds: int, first_seed: int = 1) -> list[Task]:
    """Every path with so many seeds, the longest paths first."""
    few = max(1, seeds * NODE_SEEDS // 10)
    paths = [*STORAGE_PATHS, REPAIR, QUORUM, FORMAT]
    listed = [Task(path, seed) for path in paths for seed in range(first_seed, first_seed + seeds)]
    return listed + [Task(path, seed) for path in NODE_PATHS for seed in range(first_seed, first_seed + few)]


def record(path: str, seed: int) -> tuple[Tape, int]:
    """Run a write path on a taped disk; returns the tape and the first step that belongs to the path."""
    if path in STORAGE_PATHS:
        session = Session(seed)
        STORAGE_PATHS[path](session)
        return session.disk.tape, session.first_step
    if path == REPAIR:
        return repair_journal(seed)
    if path == QUORUM:
        return quorum_state(seed)
    if path == FORMAT:
        return format_directories(seed)
    run = NodeRun()
    run.start()
    NODE_PATHS[path](run, seed)
    return run.disk.tape, run.first_step


def check_of(path: str) -> Callable[[State], None]:
    """How the states of this path are checked."""
    if path == REPAIR:
        return check_repair
    if path == QUORUM:
        return check_quorum_state
    if path == FORMAT:
        return check_format
    return check_storage if path in STORAGE_PATHS else check_node


def explore_task(task: Task) -> Findings:
    """Run one path and check what crashes leave of it."""
    tape, first = record(task.path, task.seed)
    states = crash_states(tape, first=first, seed=task.seed, about=task.about)
    return explore(task.path, states, check_of(task.path), steps=len(tape.steps) - first)


def sweep(listed: list[Task], workers: int, minutes: float = float("inf")) -> tuple[int, list[str]]:
    """Explore all tasks, or what ends within so many minutes, and print the findings; (distinct states, violations)."""
    began = time.monotonic()
    distinct: set[bytes] = set()
    by_path: dict[str, list[Findings]] = {}
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for findings in pool.imap_unordered(explore_task, listed):
            by_path.setdefault(findings.path, []).append(findings)
            distinct |= findings.states
            if time.monotonic() - began > 60 * minutes:
                break
    print(f"{'write path':28}{'runs':>6}{'steps':>8}{'opened':>10}{'distinct':>10}{'violations':>12}")
    violations: list[str] = []
    for path in [*STORAGE_PATHS, REPAIR, QUORUM, FORMAT, *NODE_PATHS]:
        found = by_path.get(path, [])
        if found:
            states = set().union(*(each.states for each in found))
            broken = [violation for each in found for violation in each.violations]
            violations += broken
            steps, opened = sum(each.steps for each in found), sum(each.opened for each in found)
            print(f"{path:28}{len(found):>6}{steps:>8,}{opened:>10,}{len(states):>10,}{len(broken):>12,}")
    opened = sum(each.opened for found in by_path.values() for each in found)
    took = time.monotonic() - began
    print(f"{opened:,} states opened, {len(distinct):,} distinct, {len(violations):,} violations, {took:.0f} s")
    for violation in violations[:20]:
        print("  " + violation)
    return len(distinct), violations


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.sweep")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--only", action="append", choices=[*STORAGE_PATHS, REPAIR, QUORUM, FORMAT, *NODE_PATHS])
    arguments = parser.parse_args()
    listed = tasks(arguments.seeds, arguments.first_seed)
    listed = [task for task in listed if arguments.only is None or task.path in arguments.only]
    return 1 if sweep(listed, arguments.workers, arguments.minutes)[1] else 0


if __name__ == "__main__":
    sys.exit(main())
