"""DeleteRecords: raise the log start of partitions, exact to the record (KIP-107). Versions 0-2.

The reply leaves when the new start is in the synced journal, so a power cut cannot bring deleted records back, and when
every live replica's log begins there, so a change of leader cannot either; or when its time is over.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from duramen.errors import ErrorCode, KafkaError
from duramen.model import INTERNAL_TOPICS
from duramen.partition.replica.offset_lookup import delete_records
from duramen.server.net.steps import STEP, Steps
from duramen.wire.messages.delete_records import DeleteRecordsResponse

if TYPE_CHECKING:
    from duramen.partition.replica.partition import Partition
    from duramen.server.api.request import Request


LOOK_SECONDS = 0.02
"""How often is looked whether replicas' logs have followed: as often as they hear of it."""


class _Awaited(NamedTuple):
    """A partition whose replicas' logs are to begin at `start`, too."""

    partition: Partition
    start: int
    entry: Any


class _DeleteRecordsCall:
    """Counts partitions whose new start is not durable yet, and looks after those that have other replicas."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.response = DeleteRecordsResponse.new(topics=[])
        self.open = 1
        self.awaited: deque[_Awaited] = deque()
        self._clock = request.services.clock
        self._expires = self._clock.monotonic() + request.body.timeout_ms / 1000

    def settled(self) -> None:
        self.open -= 1
        if self.open == 0:
            self._look()

    def _look(self) -> None:
        """Answer when all replicas have followed, or the time is over."""
        is_over = self._clock.monotonic() >= self._expires
        while self.awaited and (self._has_followed(self.awaited[0]) or is_over):
            self.awaited.popleft()
        if not self.awaited:
            self.request.reply(self.response)
        elif not self.request.connection.closed:
            self._clock.call_later(LOOK_SECONDS, self._look)

    def _has_followed(self, awaited: _Awaited) -> bool:
        """Whether nothing more is to be waited for; what has not followed yet may still do so."""
        partition, start, entry = awaited
        if entry.error_code not in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT):
            return True  # its disk has failed
        replication, brokers = partition.replication, self.request.services.image.brokers
        if not replication.is_leader or partition.closed:
            entry.error_code, entry.low_watermark = int(ErrorCode.NOT_LEADER_OR_FOLLOWER), -1
            return True
        live = {node_id for node_id in replication.replicas if node_id in brokers and not brokers[node_id].fenced}
        lowest = entry.low_watermark = replication.lowest_start(partition.log_start_offset, live)
        is_everywhere = lowest >= start
        entry.error_code = int(ErrorCode.NONE if is_everywhere else ErrorCode.REQUEST_TIMED_OUT)
        return is_everywhere


def handle(request: Request) -> None:
    """Move every start, reply when all of them are durable, and followed."""
    call = _DeleteRecordsCall(request)
    request.in_steps(_delete_all(request, call), lambda _: call.settled())


def _delete_all(request: Request, call: _DeleteRecordsCall) -> Steps:
    done = 0
    for topic in request.body.topics:
        done += 1
        if done % STEP == 0:
            yield
        entries: list[Any] = []
        call.response.topics.append(DeleteRecordsResponse.DeleteRecordsTopicResult(name=topic.name, partitions=entries))
        for wanted in topic.partitions:
            entry = DeleteRecordsResponse.DeleteRecordsPartitionResult(
                partition_index=wanted.partition_index, low_watermark=-1
            )
            entries.append(entry)
            try:
                _delete(request, topic.name, wanted, entry, call)
            except KafkaError as error:
                entry.error_code = int(error.code)
            done += 1
            if done % STEP == 0:
                yield


class _Synced:
    """Completes one partition when its journal entry is durable, or says that the disk failed."""

    def __init__(self, call: _DeleteRecordsCall, entry: Any) -> None:
        self._call = call
        self._entry = entry

    def __call__(self, error: KafkaError | None) -> None:
        if error is not None:
            self._entry.error_code = int(error.code)
            self._entry.low_watermark = -1
        self._call.settled()


def _delete(request: Request, name: str, wanted: Any, entry: Any, call: _DeleteRecordsCall) -> None:
    if name in request.denied:
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if name in INTERNAL_TOPICS:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is internal")
    partition = request.services.partitions.find(name, wanted.partition_index)
    if partition is None:
        raise KafkaError(request.services.partitions.absence(name, wanted.partition_index))
    if not partition.replication.is_leader:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    policy = partition.config.cleanup_policy
    if "compact" in policy and "delete" not in policy:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{name} is compacted only (cleanup.policy)")
    store = request.services.store
    with store.disk_full.making(store.home(partition.tp)):
        entry.low_watermark = delete_records(partition, wanted.offset)
        call.open += 1
        store.when_synced(partition.tp, _Synced(call, entry))
        if len(partition.replication.replicas) > 1:
            call.awaited.append(_Awaited(partition, entry.low_watermark, entry))
