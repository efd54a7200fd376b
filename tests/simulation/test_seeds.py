"""Simulated worlds: every promise holds, runs repeat to the bit, and without a guard a promise breaks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from duramen.sim.__main__ import BROKEN, HELD, SEARCHED_SEEDS, USAGE, main
from duramen.sim.check.invariants import INVARIANTS
from duramen.sim.mutations.mutations import GUARDS, removed
from duramen.sim.run.campaign import Book, Tally, Violation, jobs_for, run_all, run_one
from duramen.sim.run.power_cuts import cut_everywhere
from duramen.sim.run.simulation import simulate
from duramen.sim.world.plan import KINDS, Plan

SEEDS = range(1, 16)
TWICE_EVERY = 3
"""Every so manieth of them is run twice; `make sim SEEDS=n` runs all of its seeds twice."""
OTHER_INVARIANTS = {
    "CleanRestartChangesNothing",
    "DeletedStaysDeleted",
    "FoundByTime",
    "Immutability",
    "NoUnexpectedError",
    "NoUnhandledError",
    "NothingLeaks",
    "Progress",
    "ReplayIdempotent",
    "StagedOnce",
    "SameSeedSameHistory",
}
"""Checked by scripts and by the simulation itself."""
HASH_SEEDED = "import sys; from duramen.sim.run.simulation import simulate; print(simulate(int(sys.argv[1])).digest)"


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_holds_and_the_history_repeats(seed: int) -> None:
    first = simulate(seed)
    assert first.facts > 0
    if seed % TWICE_EVERY == 0:
        assert simulate(seed).digest == first.digest


def test_a_stop_may_take_as_long_as_what_began_on_a_slow_disk() -> None:
    simulate(500416)  # a checkpoint of 38 syncs, 2 s each


def test_a_full_disk_and_a_batch_that_was_damaged_on_the_way_meet_in_one_flight() -> None:
    simulate(990117)  # the first two fail with the disk when those behind the damaged one are out of order already


def test_the_seeds_differ_and_the_nodes_do_die() -> None:
    results = [simulate(seed) for seed in range(100, 104)]
    assert len({result.digest for result in results}) == len(results)
    assert sum(result.deaths for result in results) > len(results)


def test_a_world_whose_journal_takes_few_entries_refuses_batches_and_goes_on() -> None:
    result = simulate(2, Plan(calm=True, features=("few entries",)))
    assert result.states["journal full, batch refused"] > 0
    assert result.states["append refused: KAFKA_STORAGE_ERROR"] > 0


def test_no_order_comes_from_a_hash() -> None:
    digests = set()
    for hash_seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", HASH_SEEDED, "3"]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
        digests.add(run.stdout.strip())
    assert len(digests) == 1
    assert len(digests.pop()) == 64


@pytest.mark.parametrize("guard", GUARDS)
def test_without_the_guard_the_invariant_named_breaks_first(guard: str) -> None:
    outcomes = (run_one(job) for job in jobs_for(range(1, SEARCHED_SEEDS + 1), twice_every=1, guard=guard))
    broken = (outcome for outcome in outcomes if isinstance(outcome, Violation))
    named = next(outcome for outcome in broken if outcome.invariant not in GUARDS[guard].also)
    assert named.invariant == GUARDS[guard].caught_by, named.detail


def test_every_invariant_has_a_guard_that_it_catches() -> None:
    named = {kind.__name__ for kind in INVARIANTS} | OTHER_INVARIANTS
    assert {guard.caught_by for guard in GUARDS.values()} == named


@pytest.mark.parametrize("guard", GUARDS)
def test_a_removed_guard_comes_back(guard: str) -> None:
    parts = GUARDS[guard].parts()
    before = [getattr(owner, method) for owner, method, _ in parts]
    with removed(guard):
        assert all(getattr(owner, method) is not was for (owner, method, _), was in zip(parts, before, strict=True))
    assert [getattr(owner, method) for owner, method, _ in parts] == before


@pytest.mark.slow
def test_a_power_cut_at_some_disk_calls_of_a_run_of_a_thousand_records() -> None:
    calls, runs = cut_everywhere(1, step=149, first=50)
    assert calls > 1000
    assert runs > 10


def test_a_power_cut_at_every_eleventh_disk_call_of_a_short_run() -> None:
    """`make sim-cuts` leaves none out."""
    plan = Plan(records=3, members=0, page_cache=False, partitions=1, calm=True)
    calls, runs = cut_everywhere(7, step=11, plan=plan)
    assert calls > 100
    assert runs == -(-calls // 11)


def test_the_command_ends_with_the_history(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "11"]) == HELD
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"history {simulate(11, KINDS['everything'].single).digest}"


def test_the_command_names_what_broke_and_how_to_see_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "1", "--break", "read-bound"]) == BROKEN
    output = capsys.readouterr().out
    assert "is violated" in output
    assert "replay: make sim SEED=" in output
    assert "BREAK=read-bound" in output


def test_the_command_lists_guards_and_refuses_unknown_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list-guards"]) == HELD
    output = capsys.readouterr().out
    assert all(name in output for name in GUARDS)
    assert main(["--break", "gravity"]) == USAGE
    assert "gravity" in capsys.readouterr().err
    assert main(["--seeds", "0"]) == USAGE


def test_the_processes_that_run_seeds_change_nothing() -> None:
    tallies = []
    for processes in (1, 2):
        tally = Tally()
        for outcome in run_all(jobs_for(range(40, 43), twice_every=3), processes):
            tally.add(outcome)
        tallies.append(tally)
    assert tallies[0] == tallies[1]
    assert tallies[0].seeds == 3
    assert len(tallies[0].history) == 64


def test_a_long_campaign_goes_on_where_it_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "book.json"
    for seeds in ("2", "1"):
        assert main(["--book", str(path), "--seeds", seeds, "--commit", "abc"]) == HELD
    assert "3 seeds done, 0 violations" in capsys.readouterr().out
    content = Book(path).content
    assert content["seeds_done"] == 3
    assert [(each["first_seed"], each["seeds"]) for each in content["campaigns"]] == [(1, 2), (3, 1)]
    assert content["violations"] == []
    assert content["states_never_reached"]
