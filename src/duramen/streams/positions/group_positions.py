"""A position as the committed offset of a consumer group, where the tools for lag look."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final, Self

from duramen.client import GROUP, Cluster, CoordinatorKey
from duramen.client.protocol.metadata import error_code
from duramen.dlsn import Dlsn, identified_text, is_of, parse_identified
from duramen.errors import ConfigError, ErrorCode, KafkaError
from duramen.streams.errors import NoSuchStreamError
from duramen.streams.positions.position_store import (
    NamedStream,
    PositionTakenError,
    check_same_stream,
    position_text,
)
from duramen.wire.messages import API

_OFFSET_COMMIT: Final = 8
_OFFSET_FETCH: Final = 9
_BY_NAME: Final = {_OFFSET_COMMIT: 9, _OFFSET_FETCH: 7}
"""Their highest versions that name one group, and topics by their names."""
_MEMBERS: Final = frozenset(
    (
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_INSTANCE_ID,
    )
)
_NONE: Final = -1


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
        self._topic = stream.topic
        self._stream = stream
        self._group = group

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
        message = API[_OFFSET_FETCH].request
        topic = message.OffsetFetchRequestTopic(name=self._topic, partition_indexes=[0])
        request = message.new(group_id=self._group, topics=[topic], require_stable=True)
        reply = self._call(_OFFSET_FETCH, request, lambda found: found.error_code or _partition(found).error_code)
        found = _partition(reply)
        if found.committed_offset == _NONE:
            return None
        try:
            position, digits = parse_identified(found.metadata or "")
        except ValueError:
            return int(found.committed_offset) - 1
        is_ours = position.is_record and position.offset + 1 == found.committed_offset
        if is_ours and not is_of(self._stream.stream_id, digits):
            stored_id = digits  # the first of them
            remedy = "reset it (duramen group reset-offsets), or take another group"
            check_same_stream(f"the position of the group {self._group!r}", stored_id, self._stream, remedy)
        return position if is_ours else int(found.committed_offset) - 1

    def save(self, position: Dlsn) -> None:
        """Commit the offset behind the record, its leader epoch, and as metadata the DLSN (`identified_text`).

        PositionTakenError where the group has members, whose positions they are. NoSuchStreamError where the stream was
        deleted. KafkaError for other refusals.
        """
        position_text(position)  # refuses what is none of a record
        message = API[_OFFSET_COMMIT].request
        partition = message.OffsetCommitRequestPartition(
            partition_index=0,
            committed_offset=position.offset + 1,
            committed_leader_epoch=position.leader_epoch,
            committed_metadata=identified_text(position, self._stream.stream_id),
        )
        topic = message.OffsetCommitRequestTopic(name=self._topic, partitions=[partition])
        request = message.new(group_id=self._group, member_id="", topics=[topic])
        self._call(_OFFSET_COMMIT, request, lambda reply: _partition(reply).error_code)

    def _call(self, key: int, request: Any, code_of: Any) -> Any:
        def final(reply: Any) -> int:
            code = int(code_of(reply))
            return 0 if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else code  # there will be none later either

        route = CoordinatorKey(self._group, GROUP)
        reply = self._cluster.call(route, key, request, code_of=final, highest=_BY_NAME[key])
        if refused := code_of(reply):
            code = error_code(refused)
            if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise NoSuchStreamError(self._topic)
            if code in _MEMBERS:
                text = f"the group {self._group!r} has members, which commit its positions; take another name"
                raise PositionTakenError(text)
            raise KafkaError(code, f"the position of the group {self._group!r} in {self._topic}: {code.name}")
        return reply


def _partition(reply: Any) -> Any:
    return reply.topics[0].partitions[0]
