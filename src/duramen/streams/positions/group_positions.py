"""A position as the committed offset of a consumer group, where the tools for lag look."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from duramen.client import GROUP, Cluster, CoordinatorKey
from duramen.client.protocol.group_descriptions import OFFSET_FETCH
from duramen.client.protocol.group_offsets import OFFSET_COMMIT, GroupOffset, OffsetsExchange
from duramen.dlsn import Dlsn, identified_text, is_of, parse_identified
from duramen.errors import ConfigError, ErrorCode, KafkaError
from duramen.model import TopicPartition
from duramen.streams.errors import NoSuchStreamError
from duramen.streams.positions.position_store import (
    NamedStream,
    PositionTakenError,
    check_same_stream,
    position_text,
)

_T = TypeVar("_T")
_MEMBERS: Final = frozenset(
    (
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_INSTANCE_ID,
    )
)


class GroupPositions:
    """The position of a group in one stream of a cluster; for one thread. A context manager, or `close` it.

    A save commits as a consumer without members does, so `duramen group describe` and Kafka's tools show the lag. It is
    a note beside the effects and not one change with them: after a crash what lies between an effect and its save is
    done again, and two processes with one group are not kept apart. So apply each record by its DLSN or by a key, or
    keep the exact position with the data and save here for the tools.
    """

    def __init__(self, nodes: str, stream: NamedStream, group: str) -> None:
        """nodes: "host:port[,host:port]" of the cluster."""
        if not group:
            raise ConfigError("a group has a name")
        self._cluster = Cluster(nodes, client_id="duramen-streams")
        self._partition = TopicPartition(stream.topic, 0)
        self._stream = stream
        self._group = group
        self._offsets = OffsetsExchange(group)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up. Calling it again does nothing."""
        self._cluster.close()

    def load(self) -> Dlsn | int | None:
        """The position that is stored; None where there is none, or where it expired.

        An offset, that of the last record applied, where a tool has put the group to another place: -1 for the
        beginning. A cluster forgets what a group without members did not commit anew for `offsets.retention.minutes`
        (7 days). PositionDivergedError where it is of a stream that was deleted, and another one has its name.
        KafkaError where the cluster refuses.
        """
        exchange, wanted = self._offsets, [self._partition]
        reply = self._call(OFFSET_FETCH, exchange.fetch(wanted), exchange.fetch_code)
        found = self._checked(lambda: exchange.fetched(reply, wanted)).get(self._partition)
        if found is None:
            return None
        try:
            position, digits = parse_identified(found.metadata)
        except ValueError:
            return found.offset - 1
        is_ours = position.is_record and position.offset + 1 == found.offset
        if is_ours and not is_of(self._stream.stream_id, digits):
            stored_id = digits  # the first of them
            remedy = "reset it (duramen group reset-offsets), or take another group"
            check_same_stream(f"the position of the group {self._group!r}", stored_id, self._stream, remedy)
        return position if is_ours else found.offset - 1

    def save(self, position: Dlsn) -> None:
        """Commit the offset after the record, its leader epoch, and as metadata the DLSN (`identified_text`).

        PositionTakenError where the group has members, whose positions they are. NoSuchStreamError where the stream was
        deleted. KafkaError for other refusals.
        """
        position_text(position)  # refuses what is none of a record
        note = identified_text(position, self._stream.stream_id)
        offsets = {self._partition: GroupOffset(position.offset + 1, position.leader_epoch, note)}
        reply = self._call(OFFSET_COMMIT, self._offsets.commit(offsets), self._offsets.commit_code)
        self._checked(lambda: self._offsets.check_committed(reply, offsets))

    def _call(self, key: int, request: Any, code_of: Callable[[Any], int]) -> Any:
        def final(reply: Any) -> int:
            code = code_of(reply)
            return 0 if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else code  # there will be none later either

        highest = self._offsets.highest([self._partition])
        return self._cluster.call(CoordinatorKey(self._group, GROUP), key, request, code_of=final, highest=highest)

    def _checked(self, take: Callable[[], _T]) -> _T:
        """What it takes from an answer; refusals as this class raises them."""
        try:
            return take()
        except KafkaError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise NoSuchStreamError(self._partition.topic) from None
            if error.code in _MEMBERS:
                text = f"the group {self._group!r} has members, which commit its positions; take another name"
                raise PositionTakenError(text) from None
            raise
