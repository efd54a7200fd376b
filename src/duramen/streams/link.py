"""What a back end has to do: topics, appends and stretches of log. Everything else of a stream stands upon it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from duramen.errors import ErrorCode
from duramen.streams.records import Row
from duramen.wire.aborted import AbortedTransaction

NO_CONDITION: Final = -1


class StreamAnswer(NamedTuple):
    """What became of an append, and how the log stands. code NONE: it is stored.

    base_offset: of the batch, -1 where there is none. end_offset: of the log, behind the batch where one was stored.
    leader_epoch: of the batch. stable: on stable storage, not in the page cache alone. copies: in-sync replicas.
    """

    code: ErrorCode
    message: str
    base_offset: int
    end_offset: int
    leader_epoch: int
    stable: bool
    copies: int
    closed: bool


class Stretch(NamedTuple):
    """Whole batches, empty at the end, and which transactions in them were rolled back. bound: offset of the end."""

    data: bytes | memoryview
    aborted: Sequence[AbortedTransaction]
    bound: int


class StreamLink(Protocol):
    """A back end. Streams are named by their topics here. Raises KafkaError and the other errors of duramen.errors.

    A topic that is not there: KafkaError UNKNOWN_TOPIC_OR_PARTITION; an offset that is not: OFFSET_OUT_OF_RANGE.
    """

    def topics(self) -> list[str]:
        """Topics with one partition, sorted."""
        ...

    def exists(self, topic: str) -> bool:
        """Whether there is such a topic. KafkaError INVALID_PARTITIONS for one with several partitions."""
        ...

    def create(self, topic: str, settings: Mapping[str, str]) -> None:
        """A topic with one partition; KafkaError TOPIC_ALREADY_EXISTS."""
        ...

    def delete(self, topic: str) -> None:
        """The topic and its records."""
        ...

    def append(self, topic: str, rows: Sequence[Row] | None, expected: int, *, close: bool) -> StreamAnswer:
        """One batch, all of it or nothing; rows None: close alone, or ask. expected: NO_CONDITION or an offset."""
        ...

    def fetch(self, topic: str, offset: int) -> Stretch:
        """Committed batches from the one with `offset`, without waiting."""
        ...

    def wait(self, topic: str, offset: int) -> None:
        """Until there may be more behind `offset`, where the log ended. It may return early."""
        ...

    def bounds(self, topic: str) -> tuple[int, int]:
        """First offset, and the one behind the last record that is committed."""
        ...

    def offset_at(self, topic: str, timestamp_ms: int) -> int | None:
        """Offset of the first record of this time or later; None where there is none."""
        ...

    def truncate(self, topic: str, before: int) -> int:
        """Delete the records below an offset, durably; the new first offset."""
        ...

    def close(self) -> None:
        """Give up connections or files; calling it again does nothing."""
        ...
