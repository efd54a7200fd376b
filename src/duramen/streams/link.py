"""What a back end has to do: topics, appends, positions and stretches of log. All else of streams stands upon it.

Its methods are coroutines. Those of a back end that blocks never wait for a loop, so `immediate.run` gets their result
at once; those on asyncio do. What is written upon them is written once, for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol

from duramen.client.protocol.positions import Position
from duramen.client.protocol.producers import ProducerProgress
from duramen.dlsn import ANYWHERE, Dlsn, LogEnd, expected_end
from duramen.errors import ErrorCode
from duramen.model import NO_PRODUCER_ID, is_named
from duramen.streams.namespace_link import NamespaceLink
from duramen.streams.records import Row, StreamSpot, Stretch
from duramen.wire.conditional_answer import ConditionalAnswer

SETTLED: Final = (ErrorCode.NONE, ErrorCode.END_IS_ELSEWHERE, ErrorCode.OFFSET_OUT_OF_RANGE)
"""Answers behind which it is known whether a batch is stored, so that its producer's next number is known, too."""

TxidKind = Literal["none", "application", "assigned"]
"""Who gives the transaction ids of a stream."""


class StreamKind(NamedTuple):
    """txids: who gives its transaction ids; stream_id: which one of the name that was seen of, "" without ids."""

    txids: TxidKind
    stream_id: str


class WriterTurn(NamedTuple):
    """Who appends a batch, and its number: `sequence` in `epoch`. name: "" for an id that no name stands for."""

    name: str
    producer_id: int
    epoch: int
    sequence: int


class AppendTerms(NamedTuple):
    """expected: where the stream has to end, as a position that names its history, too, or as an offset alone; None:
    anywhere. close: nothing is appended after it. stream_id: which stream of the name is meant; "" for any.
    """

    expected: Dlsn | int | None = None
    close: bool = False
    writer: WriterTurn | None = None
    stream_id: str = ""

    @property
    def expected_end(self) -> LogEnd:
        """The same as a leader is asked."""
        if self.expected is None:
            return ANYWHERE
        return expected_end(self.expected) if isinstance(self.expected, Dlsn) else LogEnd(self.expected)

    @property
    def closer(self) -> int:
        """The producer id of who closes an exclusive stream, without a batch; -1 for anybody else."""
        writer = self.writer
        return NO_PRODUCER_ID if writer is None or is_named(writer.producer_id) else writer.producer_id


class StreamTail(NamedTuple):
    """How a stream stands. end: the offset after its last record; last_txid: 0 before the first, -1 where records
    have none.
    """

    end: int
    closed: bool
    last_txid: int


class StreamLink(Protocol):
    """A back end. Streams are named by their topics here. Raises KafkaError and the other errors of duramen.errors.

    A topic that is not there: KafkaError UNKNOWN_TOPIC_OR_PARTITION; an offset that is not: OFFSET_OUT_OF_RANGE.
    Another topic than a spot's under its name: TopicReplacedError, or one of these two.
    """

    @property
    def namespaces(self) -> NamespaceLink:
        """What it does about namespaces."""
        ...

    async def names(self, namespace: str, prefix: str, after: str, limit: int) -> list[str]:
        """Names of the streams of a namespace, as `Namespace.list`."""
        ...

    async def exists(self, topic: str) -> bool:
        """Whether there is such a topic. KafkaError INVALID_PARTITIONS for one with several partitions."""
        ...

    async def stream_id(self, topic: str) -> str:
        """The id of the topic (hexadecimal), which one that is made later under its name does not have; "" without."""
        ...

    async def create(self, topic: str, settings: Mapping[str, str]) -> str:
        """A topic with one partition, and its id as of `stream_id`; KafkaError TOPIC_ALREADY_EXISTS."""
        ...

    async def delete(self, topic: str) -> None:
        """The topic and its records."""
        ...

    async def append(self, topic: str, rows: Sequence[Row] | None, terms: AppendTerms) -> ConditionalAnswer:
        """One batch, all of it or nothing; rows None: close alone. A refusal is an answer, too.

        TopicReplacedError where another stream has the name than the terms are for.
        """
        ...

    async def open_writer(self, topic: str, name: str) -> int:
        """Let one writer alone append to an exclusive topic; its producer id. Whoever had it is fenced."""
        ...

    async def release_writer(self, topic: str, name: str, producer_id: int) -> None:
        """Let nobody append until it is opened again. KafkaError PRODUCER_FENCED where somebody else has it."""
        ...

    async def progress(self, topic: str, name: str, producer_id: int) -> ProducerProgress:
        """How far a writer is: one of the name, where it has one."""
        ...

    async def locate(self, topic: str, wanted: Position) -> StreamSpot:
        """Where a position is, with the stream's id.

        BelowStartError, DlsnDivergedError; KafkaError OFFSET_OUT_OF_RANGE above the end.
        """
        ...

    async def fetch(self, topic: str, spot: StreamSpot) -> Stretch:
        """Committed batches from the one with the spot's record on, without waiting."""
        ...

    async def wait(self, topic: str, spot: StreamSpot) -> None:
        """Until there may be more at a spot where there was nothing, half a second at most. It may return early."""
        ...

    async def state(self, topic: str) -> StreamTail:
        """How the stream stands."""
        ...

    async def kind(self, topic: str) -> StreamKind:
        """Whose transaction ids its records have. Where it is made again meanwhile, the id is of the one before."""
        ...

    async def settings(self, topic: str) -> Mapping[str, str]:
        """Its topic settings as they are now, by Kafka's names."""
        ...

    async def truncate(self, topic: str, before: int) -> int:
        """Delete the records below an offset, durably; the new first offset."""
        ...

    async def close(self) -> None:
        """Give up connections or files; calling it again does nothing."""
        ...
