"""The fast ways through records: numbers read in a row, and many batches in lock-step, damaged ones among them."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.errors import ErrorCode, KafkaError
from duramen.spark.codec.decode import Decoder, RecordFilter
from duramen.spark.codec.decode.varints import varint, varints_in_a_row
from duramen.wire.batch import CRC_START, build_batch, replace_payload
from duramen.wire.checksum import crc32c
from duramen.wire.compression import LZ4, NONE

_COUNT_AT, _DELTA_AT, _CRC_AT = 57, 23, 17
SCHEMA = pa.schema([("value", pa.binary()), ("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC"))])


def zigzag(number: int) -> bytes:
    raw = (number << 1) ^ (number >> 63)
    coded = bytearray()
    while raw > 0x7F:
        coded.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*coded, raw])


NUMBERS = st.one_of(st.integers(-70, 70), st.integers(-9000, 9000), st.integers(-(2**63), 2**63 - 1))


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=1, max_size=12),
    count=st.integers(1, 3),
    behind=st.integers(0, 9),
)
def test_numbers_in_a_row_are_those_read_one_by_one(rows: list[list[int]], count: int, behind: int) -> None:
    data = bytearray()
    at = []
    for row in rows:
        at.append(len(data))
        for number in row[:count]:
            data += zigzag(number)
    data += bytes(behind)  # the last of them end with the buffer, or nearly
    found, places = varints_in_a_row(np.frombuffer(data, np.uint8), np.array(at, np.int64), count)
    for row, position, end in zip(range(len(rows)), at, places.tolist(), strict=True):
        for number in found:
            value, position = varint(memoryview(data), position)
            assert number[row] == value
        assert end == position


def some_batches(codec: int, counts: list[int], claimed: dict[int, int], headers: int = 0) -> bytearray:
    """Batches of so many records; batch i claims to hold `claimed[i]`, under a CRC that is right."""
    carried = [(b"h", b"x")] * headers
    log = bytearray()
    offset = 0
    for index, count in enumerate(counts):
        said = claimed.get(index, count)
        values = [(None, b"%d" % index * (30 + number % 50), carried, 10**12 + 90 * number) for number in range(count)]
        batch = build_batch(values, base_offset=offset, compression=codec)
        if said != count:
            struct.pack_into(">i", batch, _COUNT_AT, said)
            struct.pack_into(">i", batch, _DELTA_AT, max(said, count) - 1)
            struct.pack_into(">I", batch, _CRC_AT, crc32c(batch[CRC_START:]))
        log += batch
        offset += max(said, count)
    return log


def decoded(log: bytearray) -> list[dict[str, object]]:
    decoder = Decoder("t", 0, RecordFilter(0, 1 << 40), SCHEMA)
    return [row for batch in decoder.decode(memoryview(log)) for row in batch.to_pylist()]


COUNTS = [*[70] * 20, *[90] * 20, 1, 2, 300, 200]


@pytest.mark.parametrize("codec", [NONE, LZ4])
def test_batches_of_all_lengths_beside_each_other(codec: int) -> None:
    rows = decoded(some_batches(codec, COUNTS, {}))
    assert [row["offset"] for row in rows] == list(range(sum(COUNTS)))
    wanted = [b"%d" % index * (30 + number % 50) for index, count in enumerate(COUNTS) for number in range(count)]
    assert [row["value"] for row in rows] == wanted
    first = [row["timestamp"] for row in rows if row["offset"] in (0, 1)]
    assert (first[1] - first[0]).total_seconds() == 0.09  # type: ignore[operator]


@pytest.mark.parametrize("codec", [NONE, LZ4])
@pytest.mark.parametrize("where", [0, 19, 20, 39, len(COUNTS) - 2, len(COUNTS) - 1])
@pytest.mark.parametrize("more", [-1, 1, 3])
@pytest.mark.parametrize("headers", [0, 1])
def test_one_batch_among_many_that_claims_another_count_is_refused(
    codec: int, where: int, more: int, headers: int
) -> None:
    claimed = COUNTS[where] + more
    with pytest.raises(KafkaError) as refused:
        decoded(some_batches(codec, COUNTS, {where: claimed}, headers))
    assert refused.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("behind", [b"", b"\0"])
def test_a_byte_behind_the_last_field_of_a_record_is_refused(behind: bytes) -> None:
    record = bytes([0, 0, 0, 1, 20, *b"0123456789", 0])  # attributes, two deltas, no key, the value, no headers
    payloads = [zigzag(len(record)) + record] * 40
    payloads.append(zigzag(len(record + behind)) + record + behind)
    log = bytearray()
    for offset, payload in enumerate(payloads):
        log += replace_payload(build_batch([(None, b"v", (), 0)], base_offset=offset), NONE, payload)
    if not behind:
        assert len(decoded(log)) == len(payloads)
        return
    with pytest.raises(KafkaError, match="do not end where"):
        decoded(log)
