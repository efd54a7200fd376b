"""When the cleaner looks: where only a checkpoint is missing, as soon as that is there, however long it takes."""

from __future__ import annotations

import pytest
from tests.worlds.broker_world import InProcess

from duramen.storage.compaction.cleaner import Cleaner

BACKOFF_MS = 100_000
VALUE = b"v" * 600


def closed(others: int) -> InProcess:
    """A node a second before the cleaner looks, with a segment to compact and so many other logs that have changed."""
    server = InProcess(log_cleaner_backoff_ms=str(BACKOFF_MS))
    line = server.connect()
    line.create_topic("t", cleanup_policy="compact", internal_segment_bytes="2000")
    for number in range(others):
        line.create_topic(f"other-{number}")
    server.pass_ms(BACKOFF_MS - 1_000)
    for number in range(others):
        assert line.produce(f"other-{number}", b"x").error_code == 0
    for _ in range(8):
        assert line.produce("t", VALUE).error_code == 0
    return server


@pytest.mark.parametrize(("others", "within_ms"), [(0, 8_000), (20, 12_000), (100, 25_000), (400, 30_000)])
def test_what_was_just_closed_is_compacted_behind_the_checkpoint_it_waits_for(others: int, within_ms: int) -> None:
    """With many logs a checkpoint takes some twenty seconds: one look after three was too early, the next far off."""
    server = closed(others)
    statistics = server.broker.store.directories[0].cleaner.statistics
    server.pass_ms(500)
    assert statistics.passes == 0
    server.pass_ms(within_ms)
    assert statistics.passes == 1


def test_the_looks_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """They cost the loop time for every compacted log: there are some, and then it is as before."""
    looks: list[int] = []
    begin_pass = Cleaner.begin_pass

    def counted(self: Cleaner, *args: object) -> object:
        looks.append(server.clock.wall_ms())
        return begin_pass(self, *args)  # type: ignore[arg-type]

    server = closed(100)
    server.lanes.held.add("checkpoint")
    monkeypatch.setattr(Cleaner, "begin_pass", counted)
    server.pass_ms(BACKOFF_MS - 1_000)
    assert 5 < len(looks) <= 12, "the checkpoint never ends"
    server.lanes.held.clear()
    server.pass_ms(BACKOFF_MS)
    assert server.broker.store.directories[0].cleaner.statistics.passes == 1
    before = len(looks)
    server.pass_ms(BACKOFF_MS)
    assert len(looks) == before + 1, "nothing waits"
