"""A tombstone stays for `delete.retention.ms` behind the moment from which what it deletes can be read no more."""

from __future__ import annotations

import pytest
from tests.unit.storage.compaction.test_cleaner import HOUR, NOW, Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("segments", [1, 3])
def test_who_reads_while_a_long_pass_runs_has_as_long_to_meet_the_tombstone_as_who_reads_behind_it(
    bench: Bench, segments: int
) -> None:
    bench.config.segment_bytes = 600  # groups of one segment each
    for number in range(segments):
        bench.put((b"a", b"%d" % number), (b"b%d" % number, b"v" * 400))
        bench.roll()
    tombstone = bench.put((b"a", None), (b"b", b"v" * 400))
    bench.roll()
    cleaning = bench.take()
    assert cleaning is not None
    superseded_seen_ms = bench.now
    while not cleaning.over:
        if any(key == b"a" and value is not None for _, key, value in bench.left()):
            superseded_seen_ms = bench.now
        bench.now += 10 * 60_000
        bench.step(cleaning)
    assert superseded_seen_ms > NOW + HOUR
    for now, still_there in ((superseded_seen_ms + HOUR, True), (superseded_seen_ms + 5 * HOUR, False)):
        bench.now = now
        bench.put((b"x", b"%d" % now))
        bench.roll()
        bench.clean()
        assert ((tombstone, b"a", None) in bench.left()) is still_there


@pytest.mark.parametrize("dies", ["", "stop", "kill", "kill behind the swap", "power cut behind the swap"])
def test_and_also_where_the_node_was_started_again_meanwhile(bench: Bench, dies: str) -> None:
    """How long the copy took was known until the next start only."""
    bench.put((b"a", b"1"))
    tombstone = bench.put((b"a", None), (b"b", b"v"))
    bench.roll()
    cleaning = bench.take()
    assert cleaning is not None
    while not cleaning.over and not (cleaning.swaps and "behind" in dies):
        if any(key == b"a" and value is not None for _, key, value in bench.left()):
            superseded_seen_ms = bench.now
        bench.now += 10 * 60_000
        bench.step(cleaning)
    assert superseded_seen_ms > NOW + HOUR
    if dies:
        if dies == "stop":
            bench.directory.close(clean=True)
        elif "power" in dies:
            bench.disk.power_cut()
            bench.disk.power_on()
        else:
            bench.disk.kill()
            bench.disk.power_on()
        bench.open()
    for now, still_there in ((superseded_seen_ms + HOUR, True), (superseded_seen_ms + 9 * HOUR, False)):
        bench.now = now
        bench.put((b"x", b"%d" % now))
        bench.roll()
        bench.housekeep()
        bench.clean()
        assert ((tombstone, b"a", None) in bench.left()) is still_there
