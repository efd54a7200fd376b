"""A record's timestamp is its batch's plus what the record says, which may be more than eight bytes hold."""

from __future__ import annotations

import pytest
from tests.worlds.broker_world import NOW, InProcess, claiming

from duramen.wire.batch import GREATEST, build_batch, parse_header, records
from duramen.wire.batch_filter import filtered_batch, spans
from duramen.wire.compression import decompress


def batch(base: int, newest: int, *deltas: int, value: bytes | None = b"v") -> bytearray:
    """Records so long behind `base` (ms); newest: what the header says of the youngest."""
    made = build_batch([(b"k%d" % delta, value, (), delta) for delta in (0, *deltas)])
    return claiming(made, base_timestamp=base, max_timestamp=newest)


def test_a_record_with_such_a_timestamp_does_not_fail_who_looks_for_a_time() -> None:
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    assert line.produce_batch("t", batch(NOW, NOW + 5, GREATEST)).error_code == 0
    assert line.produce_batch("t", batch(NOW + 10, NOW + 10)).error_code == 0
    for timestamp, offset in ((NOW, 0), (NOW + 1, 2), (NOW + 11, -1)):
        found = line.look_up("t", timestamp)
        assert (found.error_code, found.offset) == (0, offset)
    assert line.look_up("t", -3).error_code == 0


@pytest.mark.parametrize("base", [NOW, GREATEST, -GREATEST - 1, 0])
@pytest.mark.parametrize("delta", [GREATEST, -GREATEST - 1, 5, -5])
@pytest.mark.parametrize("horizon", [None, 0, NOW, GREATEST])
def test_compaction_keeps_the_timestamps_that_readers_see(base: int, delta: int, horizon: int | None) -> None:
    stored = batch(base, base, delta, value=None)
    header = parse_header(stored)
    payload = decompress(0, memoryview(stored)[61:], 1 << 20)
    before = [record.timestamp for record in records(stored, max_bytes=1 << 20)]
    assert all(-GREATEST - 1 <= each <= GREATEST for each in before)
    after = filtered_batch(header, payload, list(spans(payload, header)), horizon)
    assert [record.timestamp for record in records(after, max_bytes=1 << 20)] == before
    assert parse_header(after).max_timestamp == max(before)
