"""A cluster in memory that serves the staged commit as docs/protocol.md says, for tests without a node."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from duramen.client.protocol.produce import Produced
from duramen.client.protocol.routes import SINK, CoordinatorKey, Route
from duramen.client.protocol.versions import ApiVersions
from duramen.errors import DeadlineError, ErrorCode, KafkaError
from duramen.model import TopicPartition
from duramen.spark.sink.sink_topics import DESCRIBE_CONFIGS
from duramen.wire.batch import check_produced, parse_header
from duramen.wire.batch import records as records_of
from duramen.wire.messages import API

FENCED, GONE, BEHIND = ErrorCode.PRODUCER_FENCED, ErrorCode.RESOURCE_NOT_FOUND, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@dataclass
class Staged:
    epoch: int
    batch_id: int
    parts: list[tuple[TopicPartition, bytes]] = field(default_factory=list)


@dataclass
class Sink:
    runs: list[str] = field(default_factory=list)
    ephemeral: bool = False
    last: int = -1
    metadata: bytes | None = None
    committed: set[int] = field(default_factory=set)
    staged: dict[int, Staged] = field(default_factory=dict)


class Broker:
    """Topics, their records and the sinks. `foreign` is a Kafka that has never heard of the staged commit."""

    def __init__(
        self,
        topics: dict[str, int],
        *,
        foreign: bool = False,
        forgetful: bool = False,
        max_staged_bytes: int = 16 << 20,
    ) -> None:
        """forgetful: does not remember which batches were committed, as it must."""
        self.topics = topics
        self.foreign = foreign
        self.forgetful = forgetful
        self.max_staged_bytes = max_staged_bytes
        self.sinks: dict[str, Sink] = {}
        self.log: dict[TopicPartition, list[bytes]] = defaultdict(list)
        self.max_message_bytes: int | None = 1_048_588
        """None: nobody may ask."""
        self.max_handles = 1000
        self.answers_lost: set[str] = set()
        self.lost_after: dict[str, int] = {}
        """Calls of an API that are answered before the cluster is gone for who calls it."""
        self.on_the_way: list[ErrorCode] = []
        """Errors that say that the batch is committed, and not all of it can be read."""
        self.handle = 0
        self.producers = 0
        self.calls: list[str] = []
        self.refusals: dict[str, list[ErrorCode]] = defaultdict(list)
        """Errors to answer the next calls of an API with, before it does anything."""
        self.partition_refusals: list[ErrorCode] = []

    def connect(self, *_: Any, **__: Any) -> Connected:
        return Connected(self)

    def values(self) -> list[bytes]:
        """Values of all records that a reader sees."""
        return [r.value or b"" for found in self.log.values() for b in found for r in records_of(b, max_bytes=1 << 24)]

    def keep(self, tp: TopicPartition, data: bytes) -> None:
        view = memoryview(data)
        while view:
            size = parse_header(view).size
            check_produced(view[:size], self.max_message_bytes or 1_048_588)
            self.log[tp].append(bytes(view[:size]))
            view = view[size:]

    # ---- the staged commit ---------------------------------------------------------------------------------------

    def serve(self, sink_id: str, key: int, request: Any) -> Any:
        api = API[key]
        self.calls.append(api.name)
        if self.refusals[api.name]:
            return api.response.new(error_code=self.refusals[api.name].pop(0))
        answer = api.response.new()
        sink = self.sinks.get(sink_id)
        if sink is None and key != 10000:
            answer.error_code = GONE
        elif key not in (10000, 10003) and request.epoch != len(sink.runs) - 1:  # type: ignore[union-attr]
            answer.error_code = FENCED
        else:
            serve = {10000: self._claim, 10001: self._stage, 10002: self._commit, 10003: self._describe}
            serve |= {10004: self._abort, 10005: self._release}
            serve[key](sink, request, answer)
        return answer

    def _claim(self, sink: Sink | None, request: Any, answer: Any) -> None:
        sink = self.sinks.setdefault(request.sink_id, Sink(ephemeral=request.ephemeral))
        if request.run_id not in sink.runs:
            sink.runs.append(request.run_id)
            sink.staged.clear()
        elif sink.runs[-1] != request.run_id:
            answer.error_code = FENCED
        answer.epoch = len(sink.runs) - 1
        answer.last_batch_id = sink.last
        answer.max_staged_bytes = self.max_staged_bytes

    def _stage(self, sink: Sink, request: Any, answer: Any) -> None:
        if request.batch_id in sink.committed:
            answer.already_committed = True
            return
        if request.batch_id < sink.last:
            answer.error_code = BEHIND
            return
        message = API[10001].response
        if len(sink.staged) >= self.max_handles:
            answer.error_code = ErrorCode.RECORD_LIST_TOO_LARGE
            return
        for topic in request.topics:
            entries = []
            for partition in topic.partitions:
                entry = message.StagedPartition(index=partition.index)
                data = bytes(partition.records)
                if self.partition_refusals:
                    entry.error_code = self.partition_refusals.pop(0)
                elif partition.index >= self.topics.get(topic.name, 0):
                    entry.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif len(data) > self.max_staged_bytes:
                    entry.error_code = ErrorCode.MESSAGE_TOO_LARGE
                else:
                    entry.handle = self.handle
                    held = sink.staged.setdefault(self.handle, Staged(request.epoch, request.batch_id))
                    held.parts.append((TopicPartition(topic.name, partition.index), data))
                entries.append(entry)
            answer.topics.append(message.StagedTopic(name=topic.name, partitions=entries))
        self.handle += 1

    def _commit(self, sink: Sink, request: Any, answer: Any) -> None:
        self._commit_now(sink, request, answer)
        if answer.state == 2 and not answer.error_code and self.on_the_way:
            answer.state, answer.error_code = 1, self.on_the_way.pop(0)

    def _commit_now(self, sink: Sink, request: Any, answer: Any) -> None:
        answer.state = 2
        if request.batch_id in sink.committed:
            answer.already_committed = True
        elif request.batch_id < sink.last:
            answer.error_code = BEHIND
        elif len(set(request.handles)) < len(request.handles):
            answer.error_code = ErrorCode.INVALID_REQUEST
        elif any(sink.staged[h].batch_id != request.batch_id if h in sink.staged else True for h in request.handles):
            answer.error_code = GONE
        else:
            for handle in request.handles:
                for tp, data in sink.staged[handle].parts:
                    self.keep(tp, data)
            sink.staged = {h: s for h, s in sink.staged.items() if s.batch_id > request.batch_id}
            if not self.forgetful:
                sink.committed.add(request.batch_id)
                sink.last, sink.metadata = request.batch_id, bytes(request.metadata)

    def _describe(self, sink: Sink, _: Any, answer: Any) -> None:
        answer.last_batch_id, answer.last_metadata = sink.last, sink.metadata

    def _abort(self, sink: Sink, request: Any, answer: Any) -> None:
        answer.already_committed = request.batch_id in sink.committed
        if not answer.already_committed:
            gone = [h for h, s in sink.staged.items() if s.batch_id == request.batch_id]
            for handle in gone if request.handles is None else request.handles:
                sink.staged.pop(handle, None)

    def _release(self, sink: Sink, request: Any, _: Any) -> None:
        del self.sinks[request.sink_id]


class Connected:
    """What of `client.Cluster` the sink uses."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def api_versions(self) -> ApiVersions:
        return ApiVersions({0: (0, 13)} if self.broker.foreign else {0: (0, 13), 10000: (0, 0)})

    def partitions(self, topic: str, *, create: bool = False) -> list[int]:
        if topic not in self.broker.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic)
        return list(range(self.broker.topics[topic]))

    def call(
        self, route: Route, key: int, request: Any, *, code_of: Any = lambda answer: answer.error_code, **_: Any
    ) -> Any:
        """Without the retries: what would be tried again until the time limit has passed it."""
        if key == DESCRIBE_CONFIGS:
            return self._configs(request)
        assert isinstance(route, CoordinatorKey)
        assert route.kind == SINK
        if self.broker.calls.count(API[key].name) >= self.broker.lost_after.get(API[key].name, 1 << 30):
            raise DeadlineError(API[key].name)
        answer = self.broker.serve(route.key, key, request)
        if API[key].name in self.broker.answers_lost or code_of(answer) == ErrorCode.REQUEST_TIMED_OUT:
            raise DeadlineError(API[key].name)
        return answer

    def _configs(self, request: Any) -> Any:
        message = API[DESCRIBE_CONFIGS].response
        (asked,) = request.resources
        if self.broker.max_message_bytes is None:
            return message.new(
                results=[message.DescribeConfigsResult(error_code=29, resource_name=asked.resource_name)]
            )
        value = message.DescribeConfigsResourceResult(
            name=asked.configuration_keys[0], value=str(self.broker.max_message_bytes)
        )
        return message.new(results=[message.DescribeConfigsResult(configs=[value])])

    def init_producer_id(self) -> tuple[int, int]:
        self.broker.producers += 1
        return self.broker.producers, 0

    def produce(self, tp: TopicPartition, batch: Any, **_: Any) -> Produced:
        if self.broker.refusals["Produce"]:
            raise KafkaError(self.broker.refusals["Produce"].pop(0), str(tp))
        self.broker.keep(tp, bytes(batch))
        return Produced(0, -1, 0)
