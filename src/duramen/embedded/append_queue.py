"""One append call: its records as batches, and what became of each of them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator

from duramen.embedded.records import Record
from duramen.errors import KafkaError
from duramen.partition.replica.parked_appends import Appended
from duramen.partition.replica.partition import Partition
from duramen.partition.replica.staged_appends import check_append
from duramen.wire.batch import HEADER_SIZE, build_batch

BATCH_TARGET_BYTES = 512 * 1024
RECORD_BYTES = 36
"""The most that a record takes beside its key, value and headers: seven numbers of one to ten bytes."""
HEADER_BYTES = 10
"""The same of a record's header beside its name and value."""

Row = tuple[bytes | None, bytes | None, list[tuple[bytes, bytes | None]], int]

Done = Callable[[list[int] | Exception], None]
"""Gets the offsets in the order of the records, or the error; in a turn."""


class PendingAppend:
    """One append call until all its batches are durable. spread: positions in `rows` by partition.

    most_bytes: of a batch, by partition.
    """

    def __init__(
        self, rows: list[Record], spread: dict[int, list[int]], now: int, done: Done, most_bytes: Callable[[int], int]
    ) -> None:
        self._done = done
        self._now = now
        self._offsets = [-1] * len(rows)
        self._open = 1
        self._error: KafkaError | None = None
        told = [encode_row(row, now) for row in rows]
        self._encoded = [
            (home, positions, build_batch([told[position] for position in positions]))
            for home, all_positions in spread.items()
            for positions in _chunks(told, all_positions, most_bytes(home))
        ]

    def begin(self, find: Callable[[int], Partition]) -> None:
        """In a turn, once: append all of it, or nothing and raise KafkaError where some of it would be refused."""
        encoded, now = self._encoded, self._now
        for home, _, batch in encoded if len(encoded) > 1 else ():
            check_append(find(home), memoryview(batch), -1, now)
        for home, positions, batch in encoded:
            if self._error is not None:
                break
            self._open += 1
            find(home).append(memoryview(batch), -1, now, _BatchDone(self, positions))
        self.settled()

    def place(self, positions: list[int], result: Appended | KafkaError) -> None:
        if isinstance(result, KafkaError):
            self._error = self._error or result
        else:
            for number, position in enumerate(positions):
                self._offsets[position] = result.base_offset + number
        self.settled()

    def settled(self) -> None:
        self._open -= 1
        if self._open == 0:
            self._done(self._offsets if self._error is None else self._named(self._error))

    def _named(self, error: KafkaError) -> KafkaError:
        """The error of a call of which some batches were stored before another one was refused says so."""
        stored = sum(offset >= 0 for offset in self._offsets)
        if stored:
            text = f"{error.message}; {stored:,} of this call's {len(self._offsets):,} records are stored all the same"
            return KafkaError(error.code, text)
        return error


class _BatchDone:
    """The callback of one batch."""

    __slots__ = ("_call", "_positions")

    def __init__(self, call: PendingAppend, positions: list[int]) -> None:
        self._call = call
        self._positions = positions

    def __call__(self, result: Appended | KafkaError) -> None:
        self._call.place(self._positions, result)


def batch_bytes(max_message_bytes: int) -> int:
    """How large a batch of several records is made for a topic: one that is compressed there may grow a little."""
    return min(BATCH_TARGET_BYTES, max_message_bytes - max_message_bytes // 16)


def _chunks(rows: list[Row], positions: list[int], most_bytes: int) -> Iterator[list[int]]:
    """Split positions so that no batch of several records is larger than that."""
    chunk: list[int] = []
    size = HEADER_SIZE
    for position in positions:
        key, value, headers, _ = rows[position]
        cost = RECORD_BYTES + len(key or b"") + len(value or b"")
        for name, content in headers:
            cost += HEADER_BYTES + len(name) + len(content or b"")
        if chunk and size + cost > most_bytes:
            yield chunk
            chunk, size = [], HEADER_SIZE
        chunk.append(position)
        size += cost
    if chunk:
        yield chunk


def encode_row(record: Record, now: int) -> Row:
    """What a batch is built of; now: the time of a record that has none, ms."""
    headers = [(name.encode() if isinstance(name, str) else name, value) for name, value in record.headers]
    return (
        record.key,
        record.value,
        headers,
        now if record.timestamp_ms is None else operator.index(record.timestamp_ms),
    )
