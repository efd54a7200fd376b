"""Random histories of compacted logs: what is left folds to what was written, whatever crashes and restarts between."""

from __future__ import annotations

import os

import pytest
from compaction_world import History

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
