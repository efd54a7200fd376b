"""Random histories of compacted logs: what is left folds to what was written, whatever crashes and restarts between."""

from __future__ import annotations

import os

import pytest
from tests.worlds.compaction_world import History

from duramen.sim.world.disk import NodeDied

HISTORIES = int(os.environ.get("COMPACTION_HISTORIES", "240"))
"""2,000 and more with `make compaction-histories`."""
CHUNKS = 8


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_what_is_left_folds_to_what_was_written(chunk: int) -> None:
    passes = deaths = 0
    for seed in range(chunk, HISTORIES, CHUNKS):
        try:
            history = History(seed)
            history.run(history.random.randint(40, 140))
            history.settle()
        except Exception as error:
            raise AssertionError(f"history {seed}") from error
        passes += history.passes
        deaths += history.deaths
    assert passes > HISTORIES // CHUNKS // 2, "hardly anything was compacted"
    assert deaths > HISTORIES // CHUNKS, "hardly anything crashed"


def due(seed: int) -> History:
    """A log of several segments, about to be compacted for the first time."""
    history = History(seed, crashes=False)
    history.config.min_compaction_lag_ms = 0
    for _ in range(12):
        history.put()
        history.put_idempotent()
        history.put_transaction()
        history.commit()
    history.now_ms += 1
    history.end_transactions()
    history.log.roll()
    history.put()
    history.checkpoint()
    history.housekeep()
    return history


@pytest.mark.parametrize("how", ["cut", "kill"])
@pytest.mark.parametrize("seed", [1, 3])
def test_the_node_dies_in_the_disk_calls_of_a_pass(seed: int, how: str) -> None:
    """Every 17th call of it; every single one with `make compaction-histories`."""
    call = swaps = 0
    died = True
    while died:
        call += 17 if HISTORIES < 1000 else 1
        history = due(seed)
        cleaning = history.directory.cleaner.begin_pass(history.settings, history.now_ms)
        assert cleaning is not None
        at = history.disk.calls + call
        if how == "cut":
            history.disk.cut_at = at
        else:
            history.disk.kill_at = at
        died = False
        try:
            while not cleaning.over:
                history.piece(cleaning)
        except NodeDied:
            died = True
            history.recover()
        swaps = max(swaps, cleaning.swaps)
    assert call > 200
    assert swaps > 1
