"""Batches whose header does not say how young their records are, or says that they come from the future."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.partition_world import NOW, Bench

from duramen.errors import ErrorCode
from duramen.partition.replica.batch_rules import RecordsRefusedError
from duramen.partition.replica.parked_appends import Appended
from duramen.wire.batch import build_batch, check_crc, stamp_max_timestamp
from duramen.wire.compression import GZIP, NONE


def silent(*times: int, **fields: Any) -> bytearray:
    """As Sarama makes batches before 1.44: the header's greatest timestamp is left at -1."""
    batch = build_batch([(b"k", b"%d" % n, (), time) for n, time in enumerate(times)], **fields)
    stamp_max_timestamp(batch, -1)
    return batch


@pytest.mark.parametrize("compression", [NONE, GZIP])
@pytest.mark.parametrize("settings", [{}, {"compression_type": "zstd"}, {"cleanup_policy": "compact"}])
def test_a_greatest_timestamp_that_the_producer_left_out_is_found(compression: int, settings: dict[str, str]) -> None:
    bench = Bench(**settings)
    assert bench.produce(silent(NOW, NOW + 70, NOW + 30, compression=compression)) == Appended(0, -1, 0)
    (header,) = bench.headers()
    assert (header.base_timestamp, header.max_timestamp) == (NOW, NOW + 70)
    assert check_crc(bench.bytes_from(), header)
    assert bench.values() == [b"0", b"1", b"2"]
    assert bench.partition.log.active.max_timestamp == NOW + 70, "retention goes by that"


@pytest.mark.parametrize("said", [NOW, NOW + 60, NOW + 500])
def test_a_batch_that_is_decoded_anyway_says_how_young_its_records_are(said: int) -> None:
    """Some clients write the first record's timestamp, or the last one's; Kafka puts it right, too."""
    bench = Bench(cleanup_policy="compact")
    batch = silent(NOW, NOW + 70, NOW + 60)
    stamp_max_timestamp(batch, said)
    assert bench.produce(batch) == Appended(0, -1, 0)
    (header,) = bench.headers()
    assert header.max_timestamp == NOW + 70
    assert check_crc(bench.bytes_from(), header)


def test_a_record_from_the_future_is_refused_also_where_the_header_is_silent() -> None:
    bench = Bench(message_timestamp_after_max_ms="1000")
    assert bench.produce(silent(NOW, NOW + 1000)) == Appended(0, -1, 0)
    refused = bench.produce(silent(NOW, NOW + 1001))
    assert isinstance(refused, RecordsRefusedError)
    assert (refused.code, [index for index, _ in refused.errors]) == (ErrorCode.INVALID_TIMESTAMP, [1])


@pytest.mark.parametrize("compression", [NONE, GZIP])
def test_records_from_the_future_are_named_and_the_others_of_their_batch_are_not(compression: int) -> None:
    bench = Bench(message_timestamp_after_max_ms="1000")
    times = (NOW, NOW + 1001, NOW + 1000, NOW + 90_000)
    refused = bench.produce(build_batch([(None, b"v", (), time) for time in times], compression=compression))
    assert isinstance(refused, RecordsRefusedError)
    assert (refused.code, [index for index, _ in refused.errors]) == (ErrorCode.INVALID_TIMESTAMP, [1, 3])
    assert bench.partition.log_end_offset == 0


def test_a_header_that_is_further_ahead_than_its_records_is_put_right() -> None:
    bench = Bench(message_timestamp_after_max_ms="1000")
    batch = silent(NOW, NOW + 70)
    stamp_max_timestamp(batch, NOW + 5000)
    assert bench.produce(batch) == Appended(0, -1, 0)
    (header,) = bench.headers()
    assert header.max_timestamp == NOW + 70
    assert check_crc(bench.bytes_from(), header)


def test_a_retry_whose_header_is_silent_is_known_again() -> None:
    bench = Bench()
    for _ in range(2):
        answer = bench.produce(silent(NOW, producer_id=5, producer_epoch=0, base_sequence=0))
        assert isinstance(answer, Appended)
        assert answer.base_offset == 0
    assert bench.values() == [b"0"]
