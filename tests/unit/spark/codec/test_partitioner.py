"""Kafka's default partitioner by columns: known hashes, another implementation, and every shape of column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from duramen.spark.codec.partitioner import (
    STICKY_BYTES,
    StickyPartitions,
    assign,
    murmur2,
    murmur2_column,
    partitions_of_keys,
)

# Hashes (signed) that Kafka's own UtilsTest.testMurmur2 states.
KNOWN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def signed(hashed: int) -> int:
    return hashed - (1 << 32) if hashed >> 31 else hashed


def test_hashes_are_those_of_kafka() -> None:
    keys = list(KNOWN)
    assert [signed(murmur2(key)) for key in keys] == list(KNOWN.values())
    assert [signed(h) for h in murmur2_column(pa.array(keys, pa.binary())).tolist()] == list(KNOWN.values())


@given(st.lists(st.binary(max_size=40) | st.binary(min_size=200, max_size=300), max_size=80), st.integers(1, 50))
def test_the_column_agrees_with_another_implementation(keys: list[bytes], count: int) -> None:
    expected = [(kafka_python_murmur2(key) & 0x7FFFFFFF) % count for key in keys]
    assert partitions_of_keys(pa.array(keys, pa.binary()), count).tolist() == expected


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.binary_view()])
def test_every_type_of_column_and_a_slice_of_it(kind: pa.DataType) -> None:
    keys = [f"key-{number}" * (number % 5) for number in range(100)]
    expected = [murmur2(key.encode()) for key in keys]
    column = pa.array([key.encode() if "binary" in str(kind) else key for key in keys], kind)
    assert murmur2_column(column).tolist() == expected
    assert murmur2_column(column[13:77]).tolist() == expected[13:77]
    assert murmur2_column(column[5:5]).tolist() == []


def test_keyless_rows_stick_for_a_batch_and_then_move_on() -> None:
    sticky = StickyPartitions(3, first=5)
    sizes = np.full(8, STICKY_BYTES // 2, np.int64)
    assert sticky.take(sizes[:3]).tolist() == [2, 2, 0]
    assert sticky.take(sizes[:5]).tolist() == [0, 1, 1, 2, 2]


def test_a_null_key_is_keyless_and_an_empty_one_is_a_key() -> None:
    keys = pa.array([b"", None, b"foobar", None], pa.binary())
    chosen = assign(keys, np.full(4, STICKY_BYTES, np.int64), 7, StickyPartitions(7, first=3))
    of_empty, of_foobar = (int(kafka_python_murmur2(key)) & 0x7FFFFFFF for key in (b"", b"foobar"))
    assert chosen.tolist() == [of_empty % 7, 3, of_foobar % 7, 4]
    assert assign(None, np.full(2, STICKY_BYTES, np.int64), 7, StickyPartitions(7, first=6)).tolist() == [6, 0]
