"""Random histories of a query: whatever fails, each row is in the log once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.worlds.fake_sinks import Broker
from tests.worlds.sink_histories import Faults, History

from duramen.spark.sink import sink
from duramen.spark.sink.sink_points import ALL


def test_whatever_fails_each_row_is_there_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fired: Counter[str] = Counter()
    fenced = 0
    for seed in range(12):
        broker = Broker({"t": 3})
        monkeypatch.setattr(sink, "Cluster", broker.connect)
        Faults.begin(seed, chance=0.15)
        history = History(tmp_path, "unit", {"bootstrap.servers": "x:1", "topic": "t"}, seed)
        history.run(5)
        assert Counter(broker.values()) == history.written, f"seed {seed}"
        fired += Faults.fired
        fenced += history.fenced
    assert set(fired) == set(ALL), "every point was reached and failed"
    assert fenced


def test_a_node_that_forgets_its_commits_would_be_found_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    doubled = 0
    for seed in range(6):
        broker = Broker({"t": 3}, forgetful=True)
        monkeypatch.setattr(sink, "Cluster", broker.connect)
        Faults.begin(seed, chance=0.15)
        history = History(tmp_path, "unit", {"bootstrap.servers": "x:1", "topic": "t"}, seed)
        history.run(4)
        doubled += Counter(broker.values()) != history.written
    assert doubled
