"""A whole broker on a taped disk, driven through its protocol, with a ledger of what its clients were told.

What a client asks for is noted before it is asked, what it is told in the very step in which the reply leaves: the
states behind that step are held against it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, cast

from tests.crash.promises import require
from tests.crash.states import State
from tests.crash.tape import TapeDisk
from tests.worlds.broker_world import NOW, InProcess

from duramen.errors import ErrorCode
from duramen.model import OFFSETS_TOPIC, SINK_TOPICS, TopicId
from duramen.wire.batch import batches, build_batch, records
from duramen.wire.messages import API

SETTINGS = {
    "duramen_journal_max_bytes": str(1 << 20),
    "duramen_journal_part_bytes": str(1 << 16),
    "duramen_reserve_bytes": str(1 << 14),
    "offsets_topic_num_partitions": "1",
    "duramen_sink_topic_num_partitions": "1",
    "auto_create_topics_enable": "false",
    "log_segment_bytes": str(1 << 20),
    "metadata_log_max_record_bytes_between_snapshots": "400",
    "metadata_max_retention_bytes": "4000",
}
START_MS = 2000
"""In which a start has read again what the disk could not read."""
PRODUCE, FETCH, OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 0, 1, 8, 9, 10
OWN_TOPICS = {OFFSETS_TOPIC, *SINK_TOPICS}
REFUSALS = frozenset(
    {
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""What a client may hear of a disk that fails: that its topic could not be made is among it."""
CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, INIT_PRODUCER_ID = 19, 20, 21, 22


@dataclass(slots=True)
class TopicLife:
    """One topic from its creation to its deletion. id: once its creation was answered."""

    created: bool = False
    id: TopicId | None = None
    delete_asked: bool = False
    deleted: bool = False
    asked: list[bytes] = field(default_factory=list)
    stored: dict[int, bytes] = field(default_factory=dict)
    start_asked: int = 0
    start: int = 0
    epoch: int = -1


@dataclass(slots=True)
class NodePromise:
    """What clients were told. topics: the lives of each name, oldest first. positions: (asked, told) by group."""

    topics: dict[str, list[TopicLife]] = field(default_factory=dict)
    positions: dict[str, list[int]] = field(default_factory=dict)
    committed: dict[str, int] = field(default_factory=dict)
    producer_ids: set[int] = field(default_factory=set)


class NodeRun:
    """One broker and the clients of a write path."""

    def __init__(self, disk: TapeDisk | None = None, promise: NodePromise | None = None) -> None:
        self.disk = disk or TapeDisk()
        self.promise = promise or NodePromise()
        self.first_step = 0
        self.refused: list[ErrorCode] = []
        self.serving = False
        self.may_refuse = False
        """Whether the disk is allowed to fail: then requests may be refused for that reason, and for no other."""
        self._waiting: deque[tuple[int, int, Callable[[Any], None]]] = deque()

    def start(self) -> None:
        """Start the broker; nobody is told anything before it serves."""
        self.serving = False
        patience = START_MS if self.may_refuse else 0
        self.server = InProcess(cast(Any, self.disk), patience_ms=patience, **SETTINGS)
        self.line = self.server.connect()
        self.serving = True
        self._note_epochs()
        self.mark()

    @property
    def unanswered(self) -> int:
        """Requests without a reply."""
        return len(self._waiting)

    def begin(self) -> None:
        """States before this moment are another path's."""
        self.settle()
        self.first_step = len(self.disk.tape.steps)

    def mark(self) -> None:
        """What clients know from here on."""
        self.disk.mark(deepcopy(self.promise))

    def _note_epochs(self) -> None:
        image = self.server.broker.image
        for lives in self.promise.topics.values():
            for life in lives:
                topic = None if life.id is None else image.topic_by_id(life.id)
                if topic is not None:
                    life.epoch = max(life.epoch, topic.partitions[0].leader_epoch)

    # ---- running, one step at a time

    def settle(self) -> None:
        """Until nothing is left to do; replies are noted in the step in which they leave."""
        server = self.server
        while True:
            self._listen()
            if server.clock.ready:
                server.clock.ready.pop(0)()
            elif not (self.line.deliver() or server.lanes.step()):
                self._listen()
                return

    def _listen(self) -> None:
        """Note the replies that have come."""
        while self._waiting:
            key, version, told = self._waiting[0]
            reply = self.line.answer(key, version)
            if reply is None:
                return
            self._waiting.popleft()
            told(reply)
            self._note_epochs()
            self.mark()

    def ask(self, api: int, version: int, told: Callable[[Any], None], **fields: Any) -> None:
        """Send a request; `told` gets the reply when it comes."""
        self.mark()
        self._waiting.append((api, version, told))
        self.line.ask(api, version, **fields)

    def call(self, api: int, version: int, **fields: Any) -> Any:
        """Send a request and run until its reply is there."""
        replies: list[Any] = []
        self.ask(api, version, replies.append, **fields)
        self.settle()
        if not replies:  # it may wait for more to come, for no time at all
            self.server.pass_ms(1)
            self.settle()
        require(bool(replies), f"no reply to a request of API {api}")
        return replies[0]

    def _accepted(self, code: int, what: str) -> bool:
        """Whether a reply says that it was done; PromiseBrokenError for a refusal that has no reason."""
        if code == 0:
            return True
        require(self.may_refuse and code in REFUSALS, f"{what}: {ErrorCode(code).name}")
        self.refused.append(ErrorCode(code))
        return False

    # ---- what clients do

    def create(self, name: str, **configs: str) -> None:
        """Ask for a topic."""
        life = TopicLife()
        self.promise.topics.setdefault(name, []).append(life)
        request = API[CREATE_TOPICS].request
        listed = [
            request.CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()
        ]
        topic = request.CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=listed)

        def told(reply: Any) -> None:
            if self._accepted(reply.topics[0].error_code, f"{name} was not created"):
                life.created, life.id = True, bytes(reply.topics[0].topic_id)

        self.ask(CREATE_TOPICS, 7, told, topics=[topic], timeout_ms=1000)

    def delete(self, name: str) -> None:
        """Ask for a topic's deletion."""
        life = self.promise.topics[name][-1]
        life.delete_asked = True
        state = API[DELETE_TOPICS].request.DeleteTopicState(name=name, topic_id=bytes(16))

        def told(reply: Any) -> None:
            if self._accepted(reply.responses[0].error_code, f"{name} was not deleted"):
                life.deleted = True

        self.ask(DELETE_TOPICS, 6, told, topics=[state], timeout_ms=1000)

    def produce(self, name: str, *values: bytes, producer: tuple[int, int] | None = None) -> None:
        """Send a batch; producer: (producer id, base sequence)."""
        life = self.promise.topics[name][-1]
        life.asked += values
        identity: dict[str, int] = {}
        if producer is not None:
            identity = {"producer_id": producer[0], "producer_epoch": 0, "base_sequence": producer[1]}
        batch = build_batch([(b"k", value, (), NOW) for value in values], **identity)
        request = API[PRODUCE].request
        partition = request.PartitionProduceData(index=0, records=batch)
        data = request.TopicProduceData(name=name, partition_data=[partition])

        def told(reply: Any) -> None:
            answer = reply.responses[0].partition_responses[0]
            if self._accepted(answer.error_code, f"a batch for {name}"):
                life.stored |= {answer.base_offset + index: value for index, value in enumerate(values)}

        self.ask(PRODUCE, 9, told, acks=-1, timeout_ms=1000, topic_data=[data])

    def delete_records(self, name: str, offset: int) -> None:
        """Ask for the deletion of what lies below an offset."""
        life = self.promise.topics[name][-1]
        life.start_asked = offset
        request = API[DELETE_RECORDS].request
        partition = request.DeleteRecordsPartition(partition_index=0, offset=offset)
        topic = request.DeleteRecordsTopic(name=name, partitions=[partition])

        def told(reply: Any) -> None:
            if self._accepted(reply.topics[0].partitions[0].error_code, "records were not deleted"):
                life.start = offset

        self.ask(DELETE_RECORDS, 2, told, topics=[topic], timeout_ms=1000)

    def find_coordinator(self, group: str) -> None:
        """Ask who coordinates a group; the first such question creates `__consumer_offsets`."""

        def told(reply: Any) -> None:
            self._accepted(reply.coordinators[0].error_code, "no coordinator")

        self.ask(FIND_COORDINATOR, 4, told, key_type=0, coordinator_keys=[group])

    def commit(self, group: str, name: str, offset: int) -> None:
        """Commit a group's position."""
        self.promise.positions.setdefault(group, []).append(offset)
        request = API[OFFSET_COMMIT].request
        partition = request.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=""
        )
        topic = request.OffsetCommitRequestTopic(name=name, partitions=[partition])

        def told(reply: Any) -> None:
            if self._accepted(reply.topics[0].partitions[0].error_code, "a commit"):
                self.promise.committed[group] = offset

        self.ask(OFFSET_COMMIT, 8, told, group_id=group, member_id="", generation_id_or_member_epoch=-1, topics=[topic])

    def producer_id(self) -> None:
        """Ask for a producer id."""

        def told(reply: Any) -> None:
            if self._accepted(reply.error_code, "no producer id"):
                require(reply.producer_id not in self.promise.producer_ids, f"{reply.producer_id} was given before")
                self.promise.producer_ids.add(reply.producer_id)

        self.ask(INIT_PRODUCER_ID, 4, told, transactional_id=None, transaction_timeout_ms=1000)

    # ---- holding it to its promises

    def position(self, group: str, name: str) -> int:
        """Where the group is told to go on; -1 where no group could ever commit."""
        topic = API[OFFSET_FETCH].request.OffsetFetchRequestTopic(name=name, partition_indexes=[0])
        reply = self.call(OFFSET_FETCH, 7, group_id=group, topics=[topic], require_stable=True)
        if not reply.topics:
            require(OFFSETS_TOPIC not in self.server.broker.image.names(), f"group {group}: error {reply.error_code}")
            return -1
        return int(reply.topics[0].partitions[0].committed_offset)

    def records(self, name: str) -> dict[int, bytes]:
        """Everything in a topic's partition that readers get."""
        partition = self.server.broker.partitions.find(name, 0)
        require(partition is not None, f"{name} is in the metadata, its partition is not there")
        offset = partition.log_start_offset if partition is not None else 0
        request = API[FETCH].request
        part = request.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        topics = [request.FetchTopic(topic=name, partitions=[part])]
        reply = self.call(FETCH, 12, max_wait_ms=0, min_bytes=1, topics=topics)
        answer = reply.responses[0].partitions[0]
        require(answer.error_code == 0, f"{name} cannot be read: {answer.error_code}")
        data = memoryview(answer.records or b"")
        return {
            record.offset: bytes(record.value)
            for at, header in batches(data)
            for record in records(data[at:], header, max_bytes=1 << 20)
            if record.offset >= offset
        }

    def check(self, promise: NodePromise, *, unclean: bool) -> dict[str, Any]:
        """Hold everything against what was promised before this start; returns what clients see."""
        image = self.server.broker.image
        seen: dict[str, Any] = {}
        for name, lives in promise.topics.items():
            topic = image.topic(name)
            required = [life for life in lives if life.created and not life.delete_asked]
            if topic is None:
                require(not required, f"{name} is gone, and nobody asked for it")
                continue
            life = next((life for life in lives if life.id == topic.id), None)
            life = life or next((life for life in lives if life.id is None), None)
            require(life is not None, f"{name} has an id that nobody was told")
            if life is not None:
                require(not life.deleted, f"{name} was deleted and is back")
                seen[name] = (topic.id, self._check_topic(name, life, topic.partitions[0].leader_epoch, unclean))
        require(not set(image.names()) - set(promise.topics) - OWN_TOPICS, "topics that nobody made")
        for group, asked in promise.positions.items():
            name = next(iter(promise.topics))
            position = self.position(group, name)
            told = promise.committed.get(group)
            allowed = {-1, *asked} if told is None else set(asked[asked.index(told) :])
            require(position in allowed, f"group {group} goes on at {position}, it was told {told} of {asked}")
            seen[group] = position
        self.producer_id()
        self.settle()
        return seen

    def _check_topic(self, name: str, life: TopicLife, epoch: int, unclean: bool) -> dict[int, bytes]:
        found = self.records(name)
        partition = self.server.broker.partitions.find(name, 0)
        start = partition.log_start_offset if partition is not None else -1
        require(life.start <= start <= max(life.start, life.start_asked), f"{name} starts at {start}, not {life.start}")
        require(list(found) == list(range(start, start + len(found))), f"{name} has holes: {list(found)}")
        for offset, value in life.stored.items():
            require(offset < start or found.get(offset) == value, f"{name}: the record at {offset} is lost")
        places = [life.asked.index(value) if value in life.asked else -1 for value in found.values()]
        require(-1 not in places, f"{name} holds a record that nobody produced")
        require(places == sorted(set(places)), f"{name}: records out of order or twice: {places}")
        raised = epoch > life.epoch if unclean else epoch >= life.epoch
        require(raised or life.epoch < 0, f"{name} is led in epoch {epoch}, before the crash in {life.epoch}")
        return found


def check_node(state: State) -> None:
    """Start a broker on what the crash left, hold it to its promises, and start it once more."""
    promise = deepcopy(cast(NodePromise, state.promised)) if state.promised is not None else NodePromise()
    disk = TapeDisk(state.tree)
    seen = _started(disk, promise)
    disk.end_process()
    if state.key[0] % 3 == 0:
        require(_started(disk, promise) == seen, "a second start answers something else")


def _started(disk: TapeDisk, promise: NodePromise) -> dict[str, Any]:
    run = NodeRun(disk, promise)
    run.server = InProcess(cast(Any, disk), **SETTINGS)
    run.line = run.server.connect()
    seen = run.check(deepcopy(promise), unclean=not run.server.broker.store.directories[0].clean_start)
    run._note_epochs()
    return seen
