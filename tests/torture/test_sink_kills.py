"""A short version of `make torture-spark`'s first half: the exactly-once sink and a node that dies under it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.torture.sink_kills import torture
from tests.worlds.served_node import only_duramen

pytestmark = [only_duramen, pytest.mark.slow]


def test_a_query_whose_node_and_driver_die_writes_each_row_once(tmp_path: Path) -> None:
    outcome = torture(tmp_path, kills=2, failures=5, seed=3, chance=0.04)
    assert outcome.wrong == []
    assert outcome.rows > 100
    assert sum(outcome.kills.values()) >= 2
    assert sum(outcome.injected.values()) >= 5
