"""Rows of one topic as record batches (magic 2): one pass over the columns, then one slice per batch.

The varints of all records are made as columns, headers likewise; Arrow joins the pieces of every record in C++, so
that a value's bytes are copied once to their record and, where partitions lie mixed, once more to their place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from duramen.errors import ErrorCode, KafkaError, check
from duramen.spark.codec.encode.arrow_buffers import as_binary, binary_column, lengths_of, plain_binary, varints
from duramen.wire.batch import CRC_START, HEADER, HEADER_SIZE, LOG_OVERHEAD, MAGIC
from duramen.wire.checksum import crc32c
from duramen.wire.compression import compress

Ints = np.ndarray[Any, Any]

RECORD_OVERHEAD: Final = 24
"""Upper bound of a record's bytes beside key, value and headers, while a batch has below 2**20 records."""
_JOINED_MAX: Final = 1 << 30
_NULL_LENGTH: Final = 1  # -1, zigzagged
_CRC_AT: Final = 17


@dataclass(frozen=True, slots=True)
class HeaderEntries:
    """Headers to add to those the rows have: the same number for each row, as they stand in a record."""

    count: int
    entries: pa.BinaryArray


class Rows(NamedTuple):
    """Columns of rows that go to one topic; a column that is None holds null in every row."""

    key: pa.Array | None
    value: pa.Array
    headers: pa.ListArray | None
    """list<struct<key, value>>; keys must not be null."""
    timestamps: Ints
    """int64[n] in ms."""
    tags: HeaderEntries | None = None

    def sizes(self) -> Ints:
        """int64[n]: about what each record takes, never less."""
        rows = len(self.value)
        sizes = np.maximum(lengths_of(self.value, rows), 0) + RECORD_OVERHEAD
        if self.key is not None:
            sizes += np.maximum(lengths_of(self.key, rows), 0)
        if self.headers is not None:
            sizes += headers_bytes(self.headers)
        if self.tags is not None:
            sizes += lengths_of(self.tags.entries, rows)
        return sizes

    def slice(self, start: int, end: int) -> Rows:
        """Rows [start, end), without a copy."""
        return Rows(
            None if self.key is None else self.key[start:end],
            self.value[start:end],
            None if self.headers is None else self.headers[start:end],
            self.timestamps[start:end],
            None if self.tags is None else HeaderEntries(self.tags.count, self.tags.entries[start:end]),
        )


@dataclass(frozen=True, slots=True)
class Encoded:
    """One record batch, without a place and without a producer, and what it holds."""

    partition: int
    count: int
    data: bytearray


def encode(
    rows: Rows, partitions: Ints, *, compression: int, batch_bytes: int, sizes: Ints | None = None
) -> Iterator[Encoded]:
    """The rows as batches, grouped by partition, in the order of the rows within each.

    partitions: int32[n]; compression: codec number; batch_bytes bounds a batch before compression, except that a
    record which is larger gets a batch of its own. sizes: `rows.sizes()`, where it is known already.
    """
    sizes = rows.sizes() if sizes is None else sizes
    for start, end in _portions(sizes):
        yield from _encode(rows.slice(start, end), partitions[start:end], sizes[start:end], compression, batch_bytes)


def _portions(sizes: Ints) -> Iterator[tuple[int, int]]:
    """Row ranges whose records stay well below Arrow's 2 GiB to an array of bytes."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + _JOINED_MAX, "right")))
        yield start, end
        start = end


def _encode(rows: Rows, partitions: Ints, sizes: Ints, compression: int, batch_bytes: int) -> Iterator[Encoded]:
    order: Ints | None = None
    if len(partitions) and (partitions[1:] < partitions[:-1]).any():
        order = np.argsort(partitions, kind="stable")
        partitions, sizes = partitions[order], sizes[order]
    times = rows.timestamps if order is None else rows.timestamps[order]
    starts = _cuts(partitions, sizes, batch_bytes)
    counts = np.diff(starts)
    first = np.repeat(starts[:-1], counts)
    deltas = np.arange(len(partitions)) - first
    elapsed = times - times[first]
    records = _records(rows, _unordered(deltas, order), _unordered(elapsed, order))
    if order is not None:
        records = records.take(pa.array(order))
    offsets, data = plain_binary(records)
    places = offsets[starts].tolist()
    payload = memoryview(data)  # type: ignore[arg-type]
    latest = np.maximum.reduceat(times, starts[:-1]).tolist() if len(times) else []
    for index, count in enumerate(counts.tolist()):
        row = int(starts[index])
        batch = framed(payload[places[index] : places[index + 1]], count, int(times[row]), latest[index], compression)
        yield Encoded(int(partitions[row]), count, batch)


def _unordered(values: Ints, order: Ints | None) -> Ints:
    """Back from the partitions' order to that of the rows."""
    if order is None:
        return values
    out = np.empty_like(values)
    out[order] = values
    return out


def _cuts(partitions: Ints, sizes: Ints, batch_bytes: int) -> Ints:
    """int64[batches + 1]: the first row of each batch, and the number of rows; partitions must be sorted."""
    ends = np.cumsum(sizes)
    borders = [*(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(partitions)]
    starts = [0]
    for border in borders:
        while starts[-1] < border:
            start = starts[-1]
            before = int(ends[start - 1]) if start else 0
            fitting = int(np.searchsorted(ends, before + batch_bytes, "right"))
            starts.append(min(border, max(start + 1, fitting)))
    return np.asarray(starts, np.int64)


def _records(rows: Rows, deltas: Ints, elapsed: Ints) -> pa.BinaryArray:
    """binary[n]: every row as the bytes of its record."""
    count = len(deltas)
    value = as_binary(rows.value)
    value_lengths = lengths_of(value, count)
    pieces: list[pa.Array | pa.Scalar] = []
    if rows.key is None:
        pieces.append(varints(0, elapsed, deltas, _NULL_LENGTH, value_lengths))
        body = np.maximum(value_lengths, 0)
    else:
        key = as_binary(rows.key)
        key_lengths = lengths_of(key, count)
        between = varints(value_lengths)
        pieces += [varints(0, elapsed, deltas, key_lengths), key, between]
        body = np.maximum(value_lengths, 0) + np.maximum(key_lengths, 0) + lengths_of(between, count)
    body += lengths_of(pieces[0], count)
    pieces.append(value)
    if rows.headers is None and rows.tags is None:
        pieces.append(_bytes(b"\0"))  # none
        body += 1
    else:
        headers = headers_column(rows.headers, rows.tags)
        pieces.append(headers)
        body += lengths_of(headers, count)
    return joined(varints(body), *pieces)


def joined(*pieces: pa.Array | pa.Scalar) -> pa.BinaryArray:
    """Row by row the bytes of all pieces, one behind the other; a null is nothing."""
    return pc.binary_join_element_wise(*pieces, _bytes(b""), null_handling="replace", null_replacement="")


def _bytes(data: bytes) -> pa.Scalar:
    # Not a constant of the module: Arrow's first conversion loads pandas, which Spark's planning has no need of.
    return pa.scalar(data, pa.binary())


def headers_bytes(headers: pa.ListArray) -> Ints:
    """int64[n]: upper bound of what each row's headers take beyond RECORD_OVERHEAD."""
    entries = headers.flatten()
    sizes = np.maximum(lengths_of(entries.field(0), len(entries)), 0) + 10
    sizes += np.maximum(lengths_of(entries.field(1), len(entries)), 0)
    ends = _ends(sizes)
    bounds = _ends(_header_counts(headers))
    return np.diff(ends[bounds]) + 5


def headers_column(headers: pa.ListArray | None, tags: HeaderEntries | None) -> pa.BinaryArray:
    """binary[n]: count and entries of each row's headers as they stand in a record; a null list is an empty one.

    Raises KafkaError INVALID_RECORD where a header has no key: the protocol cannot say that.
    """
    if headers is None:
        check(tags, "rows have headers of their own or tags")
        return joined(varints(np.full(len(tags.entries), tags.count)), tags.entries)  # type: ignore[union-attr]
    entries = headers.flatten()  # without what lies behind null lists
    keys, values = (as_binary(column) for column in entries.flatten())
    if keys.null_count:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a record header without a key")
    lengths = varints(lengths_of(keys, len(keys))), varints(lengths_of(values, len(keys)))
    offsets, data = plain_binary(joined(lengths[0], keys, lengths[1], values))
    counts = _header_counts(headers)
    own = binary_column(offsets[_ends(counts)], data)
    return joined(varints(counts + tags.count), own, tags.entries) if tags else joined(varints(counts), own)


def _header_counts(headers: pa.ListArray) -> Ints:
    return np.asarray(pc.list_value_length(headers).fill_null(0)).astype(np.int64)


def _ends(sizes: Ints) -> Ints:
    """int64[n + 1]: where each of n neighbours begins, and the end."""
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends


def framed(payload: memoryview, count: int, first_time: int, latest: int, compression: int) -> bytearray:
    """One whole batch around the records' bytes, with a valid CRC; base offset 0, no producer, no leader epoch."""
    packed = compress(compression, payload) if compression else payload
    batch = bytearray(HEADER_SIZE + len(packed))
    length = len(batch) - LOG_OVERHEAD
    HEADER.pack_into(batch, 0, 0, length, -1, MAGIC, 0, compression, count - 1, first_time, latest, -1, -1, -1, count)
    batch[HEADER_SIZE:] = packed
    batch[_CRC_AT:CRC_START] = crc32c(memoryview(batch)[CRC_START:]).to_bytes(4, "big")
    return batch
