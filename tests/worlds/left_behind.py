"""What a broker leaves behind in transactions and groups, and how whoever opens its directory has to go on with it.

Spoken in single requests, so that it is known what each party knows: Kafka and Duramen are asked the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.integration.rawclient import SEQUENCE, Raw, frame
from tests.worlds.transaction_client import TransactionClient

from duramen.errors import ErrorCode
from duramen.machines.contract import LogRecord, ProducerEpoch
from duramen.machines.transaction import records
from duramen.machines.transaction.transitions import ONGOING, TransactionEvent
from duramen.server.coordinators.partitioner import partition_for
from duramen.wire.batch import BatchHeader, Record, batches, build_batch
from duramen.wire.batch import records as records_of
from duramen.wire.messages import API

FETCH, COMMIT_OFFSETS, FETCH_OFFSETS, FIND = 1, 8, 9, 10
JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE_GROUPS = 11, 12, 13, 14, 15
CREATE_TOPICS, WRITE_MARKERS, COMMIT_IN_TRANSACTION = 19, 27, 28
CONSUMER_HEARTBEAT, CONSUMER_DESCRIBE = 68, 69
SECONDS = 60.0
STATE_PARTITIONS = 4
TOPICS = ("left-a", "left-b")
SHARED = "left-shared"
"""Of four partitions, which the groups share out."""
TIMEOUT_MS = 600_000
SOON_MS = 20_000
"""The time-out of a transaction that nobody comes back to: longer than the directory takes to change hands."""
PLAIN, IN_TRANSACTION = 3, 7
"""Positions of a transaction's group: committed before it, and in it."""
NOT_YET = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
)
"""What a client answers by asking again."""


class Generation(NamedTuple):
    """The versions in which a client of this generation speaks."""

    number: int
    init: int
    produce: int
    commit_offsets: int
    end: int


GENERATIONS = (Generation(1, 4, 11, 4, 4), Generation(2, 5, 12, 5, 5))
ENDS = ("finished", "rolled-back", "resumed", "timed-out", "prepared", "prepared-abort", "half-marked")
COUNT = frozenset({"finished", "prepared", "half-marked"})
"""Of these the records and positions count in the end."""


def until(ask: Callable[[], Any], fine: Callable[[Any], bool], seconds: float = SECONDS) -> Any:
    """Ask until the answer is fine; it is shown where it never is."""
    deadline = time.monotonic() + seconds
    while not fine(answer := ask()):
        assert time.monotonic() < deadline, answer
        time.sleep(0.1)
    return answer


def ready(ask: Callable[[], int]) -> int:
    """The code that is not one of those that pass."""
    code: int = until(ask, lambda code: code not in NOT_YET)
    return code


def unpacked(data: Any) -> list[tuple[BatchHeader, list[Record]]]:
    """The whole batches of a fetched record set."""
    view = memoryview(bytes(data or b""))
    return [
        (header, list(records_of(view[at : at + header.size], header, max_bytes=1 << 20)))
        for at, header in batches(view)
    ]


class Opened:
    """A broker, in front of a directory that is new or that another one has left."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connections: list[Raw] = []
        self.raw = self.connect()

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.connections:
            each.socket.close()

    def connect(self) -> Raw:
        """As TransactionClient asks a broker."""
        self.connections.append(Raw(self.port))
        return self.connections[-1]

    def find(self, name: str, key_type: int) -> None:
        ready(lambda: self.raw.call(FIND, 4, key_type=key_type, coordinator_keys=[name]).coordinators[0].error_code)

    def create(self, topic: str, partitions: int) -> None:
        asked = API[CREATE_TOPICS].request.CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)
        assert self.raw.call(CREATE_TOPICS, 7, topics=[asked], timeout_ms=30_000).topics[0].error_code == 0

    def values(self, topic: str, *, committed: bool = True) -> list[bytes]:
        """What a reader sees now, from the start on."""
        found: list[bytes] = []
        offset = 0
        while True:  # a broker hands out what is in one segment
            data = self.fetched(topic, 0, committed, offset)
            aborted = sorted((each.first_offset, each.producer_id) for each in data.aborted_transactions or ())
            ended: set[int] = set()
            several = unpacked(data.records)
            if not several:
                return found
            for header, inside in several:
                while aborted and aborted[0][0] <= header.base_offset:
                    ended.add(aborted.pop(0)[1])
                if header.is_control:
                    ended.discard(header.producer_id)
                elif not (committed and header.is_transactional and header.producer_id in ended):
                    found += [record.value or b"" for record in inside]
                offset = header.next_offset

    def fetched(self, topic: str, partition: int, committed: bool, offset: int = 0) -> Any:
        request = API[FETCH].request
        place = request.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        answer = self.raw.call(
            FETCH, 12, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, isolation_level=int(committed),
            topics=[request.FetchTopic(topic=topic, partitions=[place])],
        )  # fmt: skip
        data = answer.responses[0].partitions[0]
        assert data.error_code == 0, data
        return data

    # ---- positions -------------------------------------------------------------------------------------------

    def commit(self, group: str, topic: str, offset: int, member: str = "", epoch: int = -1, version: int = 9) -> int:
        request = API[COMMIT_OFFSETS].request
        place = request.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
        answer = self.raw.call(
            COMMIT_OFFSETS, version, group_id=group, member_id=member, generation_id_or_member_epoch=epoch,
            topics=[request.OffsetCommitRequestTopic(name=topic, partitions=[place])],
        )  # fmt: skip
        code: int = answer.topics[0].partitions[0].error_code
        return code

    def position(self, group: str, topic: str, *, stable: bool = True) -> tuple[int, int]:
        """(code, offset)."""
        request = API[FETCH_OFFSETS].request
        asked = request.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
        answer = self.raw.call(
            FETCH_OFFSETS, 9, require_stable=stable,
            groups=[request.OffsetFetchRequestGroup(group_id=group, topics=[asked])],
        )  # fmt: skip
        (found,) = answer.groups
        place = None if found.error_code else found.topics[0].partitions[0]
        return (found.error_code, -1) if place is None else (place.error_code, place.committed_offset)


class LeftTransaction:
    """One that is open, in both topics and in the positions of a group of its own, when its broker goes."""

    def __init__(self, broker: Opened, generation: Generation, end: str) -> None:
        self.generation, self.end = generation, end
        self.id = f"{end}-{generation.number}"
        self.group = f"of-{self.id}"
        self.value = self.id.encode()
        self.client = TransactionClient(
            broker,
            self.id,
            SOON_MS if end == "timed-out" else TIMEOUT_MS,  # type: ignore[arg-type]
        )
        broker.find(self.id, 1)
        broker.find(self.group, 0)
        assert ready(lambda: self.client.init(generation.init).error_code) == 0
        assert ready(lambda: broker.commit(self.group, TOPICS[0], PLAIN)) == 0
        self.write()

    @property
    def counts(self) -> bool:
        return self.end in COUNT

    def write(self) -> None:
        if self.generation.number == 1:
            assert ready(lambda: max(self.client.add(*((topic, 0) for topic in TOPICS)))) == 0
            assert ready(lambda: self.client.add_offsets(self.group)) == 0
        for topic in TOPICS:
            assert ready(lambda: self.client.produce(topic, self.value, version=self.generation.produce)) == 0  # noqa: B023 - asked at once
        request = API[COMMIT_IN_TRANSACTION].request
        place = request.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=IN_TRANSACTION, committed_metadata=""
        )
        asked = request.TxnOffsetCommitRequestTopic(name=TOPICS[0], partitions=[place])
        assert ready(
            lambda: (
                self.client.line.call(
                    COMMIT_IN_TRANSACTION, self.generation.commit_offsets, transactional_id=self.id,
                    group_id=self.group, producer_id=self.client.producer.id,
                    producer_epoch=self.client.producer.epoch, topics=[asked],
                ).topics[0].partitions[0].error_code
            )
        ) == 0  # fmt: skip

    @property
    def decision(self) -> bool | None:
        """Whether it was decided, and how, before the broker went."""
        return {"prepared": True, "half-marked": True, "prepared-abort": False}.get(self.end)

    def prepare_by_record(self, broker: Opened) -> None:
        """What a broker has written that goes before it can send a marker: the record, and no more."""
        index = partition_for(self.id, STATE_PARTITIONS)
        data = broker.fetched("__transaction_state", index, committed=False)
        stored = [
            found
            for _, several in unpacked(data.records)
            for record in several
            if (found := records.decode(LogRecord(record.key, record.value))) and found.transactional_id == self.id
        ][-1]
        assert stored.transaction is not None
        assert stored.transaction.state is ONGOING
        event = TransactionEvent.COMMITTED if self.decision else TransactionEvent.ABORTED
        now = int(time.time() * 1000)
        version = 2 if self.generation.number == 2 else 0
        prepared = records.record(self.id, stored.transaction.prepared(event, version, -1, now), 2)
        request = API[0].request
        place = request.PartitionProduceData(
            index=index, records=build_batch([(prepared.key, prepared.value, (), now)])
        )
        topic = request.TopicProduceData(name="__transaction_state", partition_data=[place])
        number = next(SEQUENCE)
        asked = request.new(acks=-1, timeout_ms=30_000, topic_data=[topic])
        broker.raw.send(frame(0, 9, asked, number, "__admin_client"))  # whom Kafka lets write there
        _, answer = broker.raw.reply(0, 9)
        assert answer.responses[0].partition_responses[0].error_code == 0, answer
        self.mark(broker)

    def prepare_by_request(self, broker: Opened) -> None:
        """To a broker that sends no markers."""
        if self.generation.number == 1:
            assert self.client.end(bool(self.decision), self.generation.end) == 0
        else:  # whose answer is the next epoch, which its client is not to know
            at = self.client.producer
            assert self.client.end(bool(self.decision), self.generation.end) == 0
            self.client.producer = at
        self.mark(broker)

    def mark(self, broker: Opened) -> None:
        """One marker of two, where it is to be half marked."""
        if self.end != "half-marked":
            return
        request = API[WRITE_MARKERS].request
        second = self.generation.number == 2
        marker = request.WritableTxnMarker(
            producer_id=self.client.producer.id,
            producer_epoch=self.client.producer.epoch + second,
            transaction_result=True,
            coordinator_epoch=0,
            transaction_version=2 if second else 0,
            topics=[request.WritableTxnMarkerTopic(name=TOPICS[0], partition_indexes=[0])],
        )
        answer = broker.raw.call(WRITE_MARKERS, 2, markers=[marker])
        assert answer.markers[0].topics[0].partitions[0].error_code == 0, answer

    # ---- afterwards ------------------------------------------------------------------------------------------

    def is_open(self, broker: Opened) -> None:
        """Directly behind the change of hands, for those that nobody has decided."""
        client = self.client_at(broker)
        state = until(client.describe, lambda answer: answer.error_code not in NOT_YET)
        assert (state.error_code, state.transaction_state) == (0, "Ongoing"), state
        assert (state.producer_id, state.producer_epoch) == self.client.producer
        assert {each.topic for each in state.topics} == {*TOPICS, "__consumer_offsets"}
        found = until(lambda: broker.position(self.group, TOPICS[0]), lambda found: found[0] not in NOT_YET)
        assert found == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
        assert broker.position(self.group, TOPICS[0], stable=False) == (0, PLAIN)

    def client_at(self, broker: Opened) -> TransactionClient:
        client = TransactionClient(broker, self.id, self.client.timeout_ms)  # type: ignore[arg-type]
        client.producer, client.sequences = self.client.producer, self.client.sequences
        return client

    def goes_on(self, broker: Opened) -> None:
        """The client that knows (id, epoch) ends it, or comes back in a new life; others wait."""
        broker.find(self.id, 1)
        client = self.client_at(broker)
        if self.end in ("finished", "rolled-back"):
            if self.end == "finished":
                for topic in TOPICS:
                    assert client.produce(topic, self.value + b" more", version=self.generation.produce) == 0
            assert ready(lambda: client.end(self.end == "finished", self.generation.end)) == 0
        if self.end == "resumed":
            before = client.producer
            assert ready(lambda: client.init(5, before).error_code) == 0
            assert client.producer.id == before.id
            assert client.producer.epoch > before.epoch
            assert self.client_at(broker).end(True, self.generation.end) == ErrorCode.PRODUCER_FENCED

    def is_over(self, broker: Opened) -> None:
        """In state, positions, and for the next transaction of the same id."""
        wanted = "CompleteCommit" if self.counts else "Empty" if self.end == "resumed" else "CompleteAbort"
        client = self.client_at(broker)
        until(lambda: client.describe().transaction_state, lambda state: state == wanted)
        offset = IN_TRANSACTION if self.counts else PLAIN
        until(lambda: broker.position(self.group, TOPICS[0]), lambda found: found == (0, offset))

    @property
    def seen(self) -> list[bytes]:
        """Its values in each topic, in order."""
        if not self.counts:
            return []
        return [self.value, self.value + b" more"] if self.end == "finished" else [self.value]

    def lives_on(self, broker: Opened) -> None:
        """Another transaction of the id."""
        client = self.client_at(broker)
        client.producer = ProducerEpoch(-1, -1)
        assert ready(lambda: client.init(self.generation.init).error_code) == 0
        if self.generation.number == 1:
            assert ready(lambda: client.add((TOPICS[0], 0))[0]) == 0
        assert ready(lambda: client.produce(TOPICS[0], b"next " + self.value, version=self.generation.produce)) == 0
        assert ready(lambda: client.end(True, self.generation.end)) == 0


def all_transactions(broker: Opened) -> list[LeftTransaction]:
    """One of each kind, of both generations."""
    for topic in TOPICS:
        broker.create(topic, 1)
    return [LeftTransaction(broker, generation, end) for generation in GENERATIONS for end in ENDS]


def check_transactions(broker: Opened, left: list[LeftTransaction]) -> None:
    """What has to become of them, by whoever has opened the directory."""
    for each in left:
        broker.find(each.id, 1)
        broker.find(each.group, 0)
    for each in left:
        if each.decision is None and each.end != "timed-out":
            each.is_open(broker)
    for topic in TOPICS:  # an open transaction was there first
        assert broker.values(topic) == []
    for each in left:
        each.goes_on(broker)
    for each in left:
        each.is_over(broker)
    wanted = sorted(value for each in left for value in each.seen)
    for topic in TOPICS:
        until(lambda: sorted(broker.values(topic)), lambda found: found == wanted)  # noqa: B023 - asked at once
    for each in left:
        each.lives_on(broker)
    lived = sorted(b"next " + each.value for each in left)
    until(
        lambda: sorted(value for value in broker.values(TOPICS[0]) if value.startswith(b"next ")),
        lambda found: found == lived,
    )


# ---- groups ----------------------------------------------------------------------------------------------------


class ClassicGroup:
    """A dynamic and a static member of the classic protocol, in a generation that both know."""

    name = "left-classic"
    protocols = (b"\0\1\0\0\0\1\0\x0bleft-shared\xff\xff\xff\xff\0\0\0\0",)

    def __init__(self, broker: Opened) -> None:
        broker.find(self.name, 0)
        self.lines = (broker.connect(), broker.connect())
        given = until(lambda: self.join(0, ""), lambda answer: answer.error_code not in NOT_YET)
        assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED
        first = self.join(0, given.member_id)
        assert first.error_code == 0
        self.ask_to_join(1, "", "left-static")
        time.sleep(0.5)  # so that it is there before the other one comes again
        self.ask_to_join(0, first.member_id)
        joined = [line.reply(JOIN, 9)[1] for line in self.lines]
        assert [each.error_code for each in joined] == [0, 0]
        self.members = tuple(each.member_id for each in joined)
        self.generation = joined[0].generation_id
        self.leader = self.members.index(joined[0].leader)
        synced = self.sync(broker)
        assert synced == [b"for %d" % index for index in range(2)]
        assert broker.commit(self.name, SHARED, 5, self.members[0], self.generation) == 0
        self.described = self.describe(broker)
        assert self.described["state"] == "Stable"

    def ask_to_join(self, index: int, member: str, instance: str | None = None) -> None:
        request = API[JOIN].request
        asked = request.new(
            group_id=self.name, session_timeout_ms=45_000, rebalance_timeout_ms=45_000, member_id=member,
            group_instance_id=instance, protocol_type="consumer",
            protocols=[request.JoinGroupRequestProtocol(name="range", metadata=each) for each in self.protocols],
        )  # fmt: skip
        self.lines[index].send(frame(JOIN, 9, asked, next(SEQUENCE)))

    def join(self, index: int, member: str, instance: str | None = None) -> Any:
        self.ask_to_join(index, member, instance)
        return self.lines[index].reply(JOIN, 9)[1]

    def sync(self, broker: Opened) -> list[bytes]:
        request = API[SYNC].request
        for index in range(2):
            asked = request.new(
                group_id=self.name, generation_id=self.generation, member_id=self.members[index],
                group_instance_id="left-static" if index else None, protocol_type="consumer", protocol_name="range",
                assignments=[
                    request.SyncGroupRequestAssignment(member_id=member, assignment=b"for %d" % number)
                    for number, member in enumerate(self.members)
                ] if index == self.leader else [],
            )  # fmt: skip
            self.lines[index].send(frame(SYNC, 5, asked, next(SEQUENCE)))
        answers = [line.reply(SYNC, 5)[1] for line in self.lines]
        assert [each.error_code for each in answers] == [0, 0]
        return [bytes(each.assignment) for each in answers]

    def describe(self, broker: Opened) -> dict[str, Any]:
        found = broker.raw.call(DESCRIBE_GROUPS, 5, groups=[self.name]).groups[0]
        members = sorted(
            (each.member_id, each.group_instance_id, bytes(each.member_assignment)) for each in found.members
        )
        return {
            "error": found.error_code, "state": found.group_state, "protocol": found.protocol_data,
            "members": members,
        }  # fmt: skip

    def heartbeat(self, broker: Opened, index: int, member: str = "") -> int:
        code: int = broker.raw.call(
            HEARTBEAT, 4, group_id=self.name, generation_id=self.generation, member_id=member or self.members[index],
            group_instance_id="left-static" if index else None,
        ).error_code  # fmt: skip
        return code

    def goes_on(self, broker: Opened) -> None:
        """With the same generation, members and assignments; then one leaves, and the other takes its place."""
        broker.find(self.name, 0)
        found = until(lambda: self.describe(broker), lambda found: found["error"] not in NOT_YET)
        assert found == self.described
        assert broker.position(self.name, SHARED) == (0, 5)
        assert [self.heartbeat(broker, index) for index in range(2)] == [0, 0]
        assert broker.commit(self.name, SHARED, 6, self.members[0], self.generation) == 0
        assert broker.commit(self.name, SHARED, 9, self.members[0], self.generation - 1) == ErrorCode.ILLEGAL_GENERATION
        self.lines = (broker.connect(), broker.connect())
        again = self.join(1, "", "left-static")  # the static member's next life: no rebalance
        assert (again.error_code, again.generation_id) == (0, self.generation), again
        assert again.member_id != self.members[1]
        assert self.heartbeat(broker, 1, self.members[1]) == ErrorCode.FENCED_INSTANCE_ID
        assert self.heartbeat(broker, 0) == 0
        leaver = API[LEAVE].request.MemberIdentity(member_id=self.members[0])
        assert broker.raw.call(LEAVE, 5, group_id=self.name, members=[leaver]).error_code == 0
        assert self.heartbeat(broker, 1, again.member_id) == ErrorCode.REBALANCE_IN_PROGRESS
        joined = self.join(1, again.member_id, "left-static")
        assert (joined.error_code, joined.generation_id) == (0, self.generation + 1)
        assert joined.leader == again.member_id
        assert broker.position(self.name, SHARED) == (0, 6)


class ConsumerGroup:
    """A dynamic and a static member of KIP-848, each with what it was assigned."""

    name = "left-consumers"

    def __init__(self, broker: Opened) -> None:
        broker.find(self.name, 0)
        self.epochs = [0, 0]
        self.owned: list[Any] = [[], []]
        self.ids = ["first-member", "static-member"]
        for index in range(2):
            until(lambda: self.beat(broker, index, joining=True), lambda answer: answer.error_code == 0)  # noqa: B023 - asked at once
        self.settle(broker)
        assert broker.commit(self.name, SHARED, 5, self.ids[0], self.epochs[0]) == 0
        self.described = self.describe(broker)

    def beat(self, broker: Opened, index: int, *, joining: bool = False, epoch: int | None = None) -> Any:
        request = API[CONSUMER_HEARTBEAT].request
        full: dict[str, Any] = {"rebalance_timeout_ms": 45_000, "subscribed_topic_names": [SHARED]}
        answer = broker.raw.call(
            CONSUMER_HEARTBEAT, 1, group_id=self.name, member_id=self.ids[index],
            member_epoch=(0 if joining else self.epochs[index]) if epoch is None else epoch,
            instance_id="left-static" if index else None,
            topic_partitions=[] if joining else [
                request.TopicPartitions(topic_id=topic, partitions=list(parts)) for topic, parts in self.owned[index]
            ],
            **full,
        )  # fmt: skip
        if answer.error_code == 0 and answer.member_epoch >= 0:
            self.epochs[index] = answer.member_epoch
            if answer.assignment is not None:
                self.owned[index] = [(each.topic_id, each.partitions) for each in answer.assignment.topic_partitions]
        return answer

    def count(self, index: int) -> int:
        return sum(len(parts) for _, parts in self.owned[index])

    def settle(self, broker: Opened) -> None:
        """Both heartbeat until each has its half in the same epoch."""

        def step() -> tuple[list[int], list[int], str]:
            assert [self.beat(broker, index).error_code for index in range(2)] == [0, 0]
            return self.epochs, [self.count(0), self.count(1)], self.describe(broker).group_state

        until(step, lambda found: found[0][0] == found[0][1] and found[1] == [2, 2] and found[2] == "Stable")

    def describe(self, broker: Opened) -> Any:
        return broker.raw.call(CONSUMER_DESCRIBE, 1, group_ids=[self.name]).groups[0]

    def goes_on(self, broker: Opened) -> None:
        """With the same epochs, targets and assignments; then the static member is away and comes back."""
        broker.find(self.name, 0)
        found = until(lambda: self.describe(broker), lambda found: found.error_code not in NOT_YET)
        assert sorted(found.members, key=lambda each: each.member_id) == sorted(
            self.described.members, key=lambda each: each.member_id
        )
        assert found.group_epoch == self.described.group_epoch
        assert found.assignment_epoch == self.described.assignment_epoch
        assert broker.position(self.name, SHARED) == (0, 5)
        assert broker.commit(self.name, SHARED, 6, self.ids[0], self.epochs[0]) == 0
        owned = [list(each) for each in self.owned]
        self.settle(broker)
        assert self.owned == owned, "nobody lost what it had"
        assert self.beat(broker, 0, epoch=self.epochs[0] + 1).error_code == ErrorCode.FENCED_MEMBER_EPOCH
        assert self.beat(broker, 1, epoch=-2).error_code == 0
        self.ids[1] = "static-member-again"
        assert self.beat(broker, 1, joining=True).error_code == 0
        self.settle(broker)
        assert self.owned[1] == owned[1], "the static member's place was kept"
        assert broker.position(self.name, SHARED) == (0, 6)


def groups(broker: Opened) -> list[ClassicGroup | ConsumerGroup]:
    broker.create(SHARED, 4)
    return [ClassicGroup(broker), ConsumerGroup(broker)]
