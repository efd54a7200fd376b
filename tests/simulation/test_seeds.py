"""Simulated worlds: every promise holds, runs repeat to the bit, and without a guard a promise breaks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from duramen.sim.__main__ import BROKEN, HELD, SEARCHED_SEEDS, USAGE, main
from duramen.sim.cuts import cut_everywhere
from duramen.sim.guards import GUARDS, removed
from duramen.sim.invariants import InvariantViolated
from duramen.sim.simulation import Plan, simulate

SEEDS = range(1, 26)
HASH_SEEDED = "import sys; from duramen.sim.simulation import simulate; print(simulate(int(sys.argv[1])).digest)"


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_holds_and_the_history_repeats(seed: int) -> None:
    first = simulate(seed)
    assert simulate(seed).digest == first.digest
    assert first.facts > 0


def test_the_seeds_differ_and_the_nodes_do_die() -> None:
    results = [simulate(seed) for seed in range(100, 106)]
    assert len({result.digest for result in results}) == len(results)
    assert sum(result.deaths for result in results) > len(results)


def test_no_order_comes_from_a_hash() -> None:
    digests = set()
    for hash_seed in ("0", "1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", HASH_SEEDED, "3"]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
        digests.add(run.stdout.strip())
    assert len(digests) == 1
    assert len(digests.pop()) == 64


def breaks(seed: int) -> bool:
    """Whether a promise breaks under this seed."""
    try:
        simulate(seed)
    except InvariantViolated:
        return True
    return False


@pytest.mark.parametrize("guard", GUARDS)
def test_without_the_guard_a_promise_breaks(guard: str) -> None:
    with removed(guard):
        assert any(breaks(seed) for seed in range(1, SEARCHED_SEEDS + 1))


@pytest.mark.parametrize("guard", GUARDS)
def test_a_removed_guard_comes_back(guard: str) -> None:
    entry = GUARDS[guard]
    before = getattr(entry.owner, entry.method)
    with removed(guard):
        assert getattr(entry.owner, entry.method) is not before
    assert getattr(entry.owner, entry.method) is before


@pytest.mark.slow
@pytest.mark.parametrize("first", [1, 50])
def test_a_power_cut_at_some_disk_calls_of_a_run_of_a_thousand_records(first: int) -> None:
    calls, runs = cut_everywhere(1, step=97, first=first)
    assert calls > 1000
    assert runs > 10


def test_a_power_cut_at_every_disk_call_of_a_short_run() -> None:
    plan = Plan(records=3, members=0, page_cache=False, partitions=1, calm=True)
    calls, runs = cut_everywhere(1, plan=plan)
    assert calls > 100
    assert runs == calls


def test_the_command_ends_with_the_history(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "4"]) == HELD
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"history {simulate(4).digest}"


def test_the_command_names_what_broke_and_how_to_see_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "1", "--break", "sync"]) == BROKEN
    output = capsys.readouterr().out
    assert "is violated" in output
    assert "replay: make sim SEED=" in output
    assert "BREAK=sync" in output


def test_the_command_lists_guards_and_refuses_unknown_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list-guards"]) == HELD
    output = capsys.readouterr().out
    assert all(name in output for name in GUARDS)
    assert main(["--break", "gravity"]) == USAGE
    assert "gravity" in capsys.readouterr().err
    assert main(["--seeds", "0"]) == USAGE
