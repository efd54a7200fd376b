"""What transactions ask of other nodes: markers from their leaders, verification from their coordinators.

Two channels to each node, so that no verification waits after a marker that waits for a replica. What comes up in one
turn of the loop, or while the channel has enough on its way, goes in one request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from duramen.client.loop.node_client import NodeRequest
from duramen.client.loop.peer_channels import PeerChannels, Purpose
from duramen.errors import ErrorCode
from duramen.machines.contract import ProducerEpoch
from duramen.machines.metadata.image import MetadataImage
from duramen.model import TopicPartition
from duramen.ports import World
from duramen.server.coordinators.transaction_markers import Codes, MarkerErrand
from duramen.wire.messages import API

TIMEOUT_S: Final = 30.0
"""Kafka's `request.timeout.ms`."""
MOST_ON_THE_WAY: Final = 4
"""Requests of one channel without a reply."""
MOST_PARTITIONS: Final = 2_000
"""Of one request."""
MARKERS: Final = 27, 2
"""API and version."""
VERIFICATION: Final = 24, 5


class _Entry(NamedTuple):
    """What is asked. key: of several in one request each has another, for the reply names nothing else."""

    key: Hashable
    wire: Any
    partitions: int
    done: Callable[[Any], None]
    """Gets that part of the reply which is for it, None when none came."""


class _Line:
    """One channel's worth of entries that wait or are on their way."""

    def __init__(
        self,
        soon: Callable[[Callable[[], None]], None],
        send: Callable[[list[Any], Callable[[Any], None]], None],
        read: Callable[[Any], dict[Hashable, Any]],
    ) -> None:
        self._soon = soon
        self._send = send
        self._read = read
        self._waiting: deque[_Entry] = deque()
        self._on_the_way = 0
        self._is_due = False

    def add(self, entry: _Entry) -> None:
        self._waiting.append(entry)
        if not self._is_due:
            self._is_due = True
            self._soon(self._flush)

    def _flush(self) -> None:
        self._is_due = False
        while self._waiting and self._on_the_way < MOST_ON_THE_WAY:
            batch: dict[Hashable, _Entry] = {}
            partitions = 0
            while self._waiting:
                first = self._waiting[0]
                partitions += first.partitions
                if first.key in batch or (batch and partitions > MOST_PARTITIONS):
                    break
                batch[first.key] = self._waiting.popleft()
            self._on_the_way += 1
            self._send([each.wire for each in batch.values()], partial(self._answered, batch))

    def _answered(self, batch: dict[Hashable, _Entry], response: Any) -> None:
        self._on_the_way -= 1
        answers = {} if response is None else self._read(response)
        self._flush()
        for key, entry in batch.items():
            entry.done(answers.get(key))


class TransactionPeers:
    """Of one node. Loop thread only."""

    def __init__(self, world: World, image: Callable[[], MetadataImage], node_id: int, listener: str) -> None:
        self._clock = world.clock
        self._image = image
        self._listener = listener
        self._channels = PeerChannels(
            world.network, world.clock, world.entropy, f"duramen-{node_id}", lambda purpose, died: None
        )
        self._lines: dict[tuple[Purpose, int], _Line] = {}

    def _line(self, purpose: Purpose, node_id: int) -> _Line:
        line = self._lines.get((purpose, node_id))
        if line is None:
            if purpose is Purpose.COORDINATION:
                api, field, read = MARKERS, "markers", _read_markers
            else:
                api, field, read = VERIFICATION, "transactions", _read_verified
            send = partial(self._send, purpose, node_id, *api, field)
            line = self._lines[purpose, node_id] = _Line(self._clock.call_soon, send, read)
        return line

    def _send(
        self,
        purpose: Purpose,
        node_id: int,
        key: int,
        version: int,
        field: str,
        entries: list[Any],
        on_reply: Callable[[Any], None],
    ) -> None:
        broker = self._image().brokers.get(node_id)
        endpoint = None if broker is None else broker.endpoint(self._listener) or next(iter(broker.endpoints), None)
        if endpoint is None:
            self._clock.call_soon(partial(on_reply, None))
            return
        request = NodeRequest(API[key], version, API[key].request.new(**{field: entries}))
        self._channels.to(purpose, node_id, endpoint.host, endpoint.port).send(request, on_reply, TIMEOUT_S)

    # ---- markers ---------------------------------------------------------------------------------------------

    def write_markers(self, node_id: int, marker: MarkerErrand, done: Callable[[Codes], None]) -> None:
        """Have the leader there append it; `done({})` when no reply came, and it may be written all the same."""
        request = API[MARKERS[0]].request
        wire = request.WritableTxnMarker(
            producer_id=marker.producer.id,
            producer_epoch=marker.producer.epoch,
            transaction_result=marker.commit,
            topics=[
                request.WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
                for name, indexes in by_topic(marker.partitions).items()
            ],
            coordinator_epoch=marker.coordinator_epoch,
            transaction_version=marker.transaction_version,
        )
        entry = _Entry(marker.producer.id, wire, len(marker.partitions), lambda codes: done(codes or {}))
        self._line(Purpose.COORDINATION, node_id).add(entry)

    # ---- verification ----------------------------------------------------------------------------------------

    def verify(
        self,
        node_id: int,
        transactional_id: str,
        producer: ProducerEpoch,
        partitions: tuple[TopicPartition, ...],
        verify_only: bool,
        done: Callable[[Codes], None],
    ) -> None:
        """Ask the coordinator there; `done` gets what it refused, NETWORK_EXCEPTION when no reply came."""
        request = API[VERIFICATION[0]].request
        wire = request.AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            verify_only=verify_only,
            topics=[
                request.AddPartitionsToTxnTopic(name=name, partitions=indexes)
                for name, indexes in by_topic(partitions).items()
            ],
        )

        def answered(codes: Codes | None) -> None:
            if codes is None:
                done(dict.fromkeys(partitions, ErrorCode.NETWORK_EXCEPTION))
            else:
                done({tp: code for tp, code in codes.items() if code is not ErrorCode.NONE})

        entry = _Entry(transactional_id, wire, len(partitions), answered)
        self._line(Purpose.TRANSACTIONS, node_id).add(entry)

    def close(self) -> None:
        """Nothing more is asked; what is on its way has no answer."""
        self._channels.close()


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Their indexes by topic."""
    found: dict[str, list[int]] = {}
    for topic, index in partitions:
        found.setdefault(topic, []).append(index)
    return found


def _code(told: int) -> ErrorCode:
    try:
        return ErrorCode(told)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def _read_markers(response: Any) -> dict[Hashable, Codes]:
    return {
        marker.producer_id: {
            TopicPartition(topic.name, each.partition_index): _code(each.error_code)
            for topic in marker.topics
            for each in topic.partitions
        }
        for marker in response.markers
    }


def _read_verified(response: Any) -> dict[Hashable, Codes]:
    if response.error_code:
        return {}
    return {
        result.transactional_id: {
            TopicPartition(topic.name, each.partition_index): _code(each.partition_error_code)
            for topic in result.topic_results
            for each in topic.results_by_partition
        }
        for result in response.results_by_transaction
    }
