"""TxnOffsetCommit in every version: offsets of a group in a transaction, and what refuses them."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from tests.worlds.broker_world import InProcess

from duramen.errors import ErrorCode
from duramen.machines.contract import ProducerEpoch
from duramen.model import FIRST_SINK_PRODUCER_ID, TopicPartition
from duramen.partition.replica.partition import Partition
from duramen.sim.world.disk import CrashDisk
from duramen.wire.messages import API

COMMIT, FETCH, FIND, INIT, ADD, ADD_OFFSETS, END, TXN_COMMIT = 8, 9, 10, 22, 24, 25, 26, 28
GROUP, TRANSACTION = 0, 1
VERSIONS = range(6)
PARTITION = API[TXN_COMMIT].request.TxnOffsetCommitRequestPartition
TOPIC = API[TXN_COMMIT].request.TxnOffsetCommitRequestTopic


class Copier(NamedTuple):
    """A transactional producer that copies the topic `t` for the group `g`."""

    server: InProcess
    line: Any
    name: str
    producer: ProducerEpoch

    def add_offsets(self, group: str = "g") -> int:
        reply = self.line.call(
            ADD_OFFSETS, 3, transactional_id=self.name, producer_id=self.producer.id,
            producer_epoch=self.producer.epoch, group_id=group,
        )  # fmt: skip
        return int(reply.error_code)

    def commit(self, version: int, *offsets: tuple[int, int], topic: str = "t", **fields: Any) -> list[int]:
        """The codes of the partitions; offsets: (partition, offset)."""
        partitions = [
            PARTITION(partition_index=index, committed_offset=offset, committed_metadata="m")
            for index, offset in offsets
        ]
        own: dict[str, Any] = {
            "transactional_id": self.name,
            "group_id": "g",
            "producer_id": self.producer.id,
            "producer_epoch": self.producer.epoch,
            "topics": [TOPIC(name=topic, partitions=partitions)],
        }
        reply = self.line.call(TXN_COMMIT, version, **{**own, **fields})
        return [each.error_code for each in reply.topics[0].partitions]

    def end(self, *, commit: bool, version: int = 3) -> Copier:
        """The copier of the next transaction."""
        reply = self.line.call(
            END, version, transactional_id=self.name, producer_id=self.producer.id,
            producer_epoch=self.producer.epoch, committed=commit,
        )  # fmt: skip
        assert reply.error_code == 0
        self.server.run()
        return self if version < 5 else self._replace(producer=ProducerEpoch(reply.producer_id, reply.producer_epoch))

    def offsets(self, *, stable: bool = False, version: int = 8) -> dict[int, int]:
        """What the group has, by partition; the code where there is one, as a negative number."""
        topic = API[FETCH].request.OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1, 2])
        group = API[FETCH].request.OffsetFetchRequestGroup(group_id="g", topics=[topic])
        old = API[FETCH].request.OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1, 2])
        asked: dict[str, Any] = {"groups": [group]} if version >= 8 else {"group_id": "g", "topics": [old]}
        reply = self.line.call(FETCH, version, require_stable=stable, **asked)
        (found,) = (reply.groups[0] if version >= 8 else reply).topics
        told = {each.partition_index: -each.error_code or each.committed_offset for each in found.partitions}
        return {index: offset for index, offset in told.items() if offset != -1}

    def partition(self) -> Partition:
        """The group's, of `__consumer_offsets`."""
        broker = self.server.broker
        tp = broker.services.groups.partition_of("g")
        assert tp is not None
        return broker.store.partitions[tp]


def started(**settings: str) -> InProcess:
    server = InProcess(CrashDisk(), **settings)
    server.connect().create_topic("t", 3)
    return server


@pytest.fixture
def server() -> InProcess:
    return started()


def copier(server: InProcess, name: str = "copier") -> Copier:
    line = server.connect()
    for kind, key in ((GROUP, "g"), (TRANSACTION, name)):
        assert line.call(FIND, 4, key_type=kind, coordinator_keys=[key]).coordinators[0].error_code == 0
    server.run()
    reply = line.call(INIT, 4, transactional_id=name, transaction_timeout_ms=60_000)
    assert reply.error_code == 0
    return Copier(server, line, name, ProducerEpoch(reply.producer_id, reply.producer_epoch))


# ---------------------------------------------------------------------- commits


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", VERSIONS)
def test_offsets_come_or_go_with_the_transaction_in_every_version(
    server: InProcess, version: int, commit: bool
) -> None:
    own = copier(server)
    if version < 5:
        assert own.add_offsets() == 0
    assert own.commit(version, (0, 5), (1, 6)) == [0, 0]
    assert own.offsets() == {}
    unstable = -int(ErrorCode.UNSTABLE_OFFSET_COMMIT)
    for fetch in (7, 8):
        assert own.offsets(stable=True, version=fetch) == {0: unstable, 1: unstable}
    following = own.end(commit=commit, version=5 if version >= 5 else 3)
    expected = {0: 5, 1: 6} if commit else {}
    assert own.offsets(stable=True) == expected
    if version < 5:
        assert following.add_offsets() == 0
    assert following.commit(version, (0, 9)) == [0]
    following.end(commit=True, version=5 if version >= 5 else 3)
    assert own.offsets(stable=True) == {**expected, 0: 9}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_partition_that_was_not_added_is_refused_or_added(server: InProcess, version: int) -> None:
    """As 4.3.1: from 5 on it is added, older ones are told what they know."""
    refused = ErrorCode.TRANSACTION_ABORTABLE if version == 4 else ErrorCode.INVALID_TXN_STATE
    assert copier(server).commit(version, (0, 5)) == [0 if version >= 5 else refused]


def test_the_word_of_the_coordinator_is_asked_for_once_in_a_transaction(server: InProcess) -> None:
    own = copier(server)
    assert own.add_offsets() == 0
    assert own.commit(3, (0, 5)) == [0]
    asked: list[Any] = []
    transactions = server.broker.services.transactions
    transactions.verify = lambda *given: asked.append(given)  # type: ignore[method-assign]
    assert own.commit(3, (0, 6)) == [0]
    assert asked == []
    own.end(commit=True)
    assert own.offsets() == {0: 6}


@pytest.mark.parametrize("version", VERSIONS)
def test_without_verification_only_the_new_ones_ask(version: int) -> None:
    own = copier(started(**{"transaction.partition.verification.enable": "false"}))
    assert own.commit(version, (0, 5)) == [0]
    assert own.partition().log.producers.first_unstable_offset is not None


def test_a_word_that_is_stale_when_it_comes_appends_nothing(server: InProcess) -> None:
    """Verified, then aborted, and only then here: the batch would be in no transaction that anybody ends (KIP-890)."""
    own = copier(server)
    assert own.add_offsets() == 0
    transactions = server.broker.services.transactions
    asked, done = transactions.verify, []

    def held(name: str, producer: Any, partitions: Any, verify_only: bool, answer: Any) -> None:
        asked(name, producer, partitions, verify_only, lambda refused: done.append((answer, refused)))

    transactions.verify = held  # type: ignore[method-assign]
    line = server.connect()
    partition = PARTITION(partition_index=0, committed_offset=5, committed_metadata="")
    line.ask(
        TXN_COMMIT, 3, transactional_id=own.name, group_id="g", producer_id=own.producer.id,
        producer_epoch=own.producer.epoch, topics=[TOPIC(name="t", partitions=[partition])],
    )  # fmt: skip
    server.run()
    ((answer, refused),) = done
    assert refused == {}
    own.end(commit=False)
    end = own.partition().log_end_offset
    answer(refused)
    server.run()
    (code,) = [each.error_code for each in line.answer(TXN_COMMIT, 3).topics[0].partitions]
    assert code == ErrorCode.INVALID_TXN_STATE
    assert own.partition().log_end_offset == end


def test_a_fenced_producer_commits_nothing(server: InProcess) -> None:
    old = copier(server)
    assert old.add_offsets() == 0
    assert old.commit(3, (0, 5)) == [0]
    reply = old.line.call(INIT, 4, transactional_id=old.name, transaction_timeout_ms=60_000)
    while reply.error_code == ErrorCode.CONCURRENT_TRANSACTIONS:
        server.run()
        server.pass_ms(100)
        reply = old.line.call(INIT, 4, transactional_id=old.name, transaction_timeout_ms=60_000)
    assert reply.error_code == 0
    for version in VERSIONS:
        assert old.commit(version, (0, 6)) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert old.offsets(stable=True) == {}


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize("version", VERSIONS)
def test_partitions_and_topics_that_are_not_there_have_errors_of_their_own(server: InProcess, version: int) -> None:
    own = copier(server)
    assert own.add_offsets() == 0
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert own.commit(version, (0, 5), (3, 5), (-1, 5)) == [0, unknown, unknown]
    assert own.commit(version, (0, 5), topic="none") == [unknown]


def test_what_no_coordinator_gives_out_is_refused(server: InProcess) -> None:
    own = copier(server)
    assert own.commit(5, (0, 5), group_id="") == [ErrorCode.INVALID_GROUP_ID]
    for fields, code in (
        ({"producer_id": -1}, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ({"producer_id": 7777}, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ({"producer_id": FIRST_SINK_PRODUCER_ID}, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ({"producer_epoch": -1}, ErrorCode.INVALID_PRODUCER_EPOCH),
        ({"producer_epoch": 9}, ErrorCode.INVALID_PRODUCER_EPOCH),
        ({"transactional_id": "another"}, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
    ):
        for version in VERSIONS:
            assert own.commit(version, (0, 5), **fields) == [code], (fields, version)
    assert own.partition().log_end_offset == 0
    assert own.line.call(TXN_COMMIT, 3, transactional_id="x", group_id="g", producer_id=1, topics=[]).topics == []


def test_members_are_checked_and_old_clients_name_none(server: InProcess) -> None:
    own = copier(server)
    assert own.add_offsets() == 0
    assert own.commit(3, (0, 5), generation_id=1, member_id="m") == [ErrorCode.ILLEGAL_GENERATION]
    assert own.commit(2, (0, 5)) == [0]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.NETWORK_EXCEPTION, {0: 15, 1: 15, 2: 14, 3: 14, 4: 14, 5: 14}),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, {0: 15, 1: 15, 2: 14, 3: 14, 4: 14, 5: 14}),
        (ErrorCode.CONCURRENT_TRANSACTIONS, dict.fromkeys(VERSIONS, 51)),
        (ErrorCode.PRODUCER_FENCED, dict.fromkeys(VERSIONS, 47)),
        (ErrorCode.TRANSACTION_ABORTABLE, {0: 48, 1: 48, 2: 48, 3: 48, 4: 120, 5: 120}),
    ],
)
def test_each_version_is_told_what_it_knows(server: InProcess, code: ErrorCode, told: dict[int, int]) -> None:
    own = copier(server)
    transactions = server.broker.services.transactions

    def verify(name: str, producer: Any, partitions: tuple[TopicPartition, ...], only: bool, done: Any) -> None:
        done(dict.fromkeys(partitions, code))

    transactions.verify = verify  # type: ignore[method-assign]
    assert {version: own.commit(version, (0, 5))[0] for version in VERSIONS} == told


# ---------------------------------------------------------------------- many, and what comes after


def test_thousands_of_positions_are_committed_in_pieces_of_one_transaction() -> None:
    server = InProcess(CrashDisk())
    server.connect().create_topic("t", 2500)
    own = copier(server)
    assert set(own.commit(5, *((index, index) for index in range(2500)))) == {0}
    headers = own.partition().log_end_offset
    assert headers == 2500
    own.end(commit=True, version=5)
    assert own.offsets() == {0: 0, 1: 1, 2: 2}


def test_a_plain_commit_behind_the_transactions_stays(server: InProcess) -> None:
    own = copier(server)
    assert own.commit(5, (0, 5), (1, 5)) == [0, 0]
    request = API[COMMIT].request
    partition = request.OffsetCommitRequestPartition(partition_index=0, committed_offset=3)
    topic = request.OffsetCommitRequestTopic(name="t", partitions=[partition])
    own.line.call(COMMIT, 5, group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=[topic])
    own.end(commit=True, version=5)
    assert own.offsets(stable=True) == {0: 3, 1: 5}


@pytest.mark.parametrize("crash", ["kill", "power_cut"])
def test_a_start_finds_pending_offsets_and_takes_the_marker_that_comes_later(server: InProcess, crash: str) -> None:
    own = copier(server)
    assert own.commit(5, (0, 5)) == [0]
    getattr(server.disk, crash)()
    server.disk.power_on()
    again = InProcess(server.disk)
    line = again.connect()
    assert line.call(FIND, 4, key_type=GROUP, coordinator_keys=["g"]).coordinators[0].error_code == 0
    assert line.call(FIND, 4, key_type=TRANSACTION, coordinator_keys=[own.name]).coordinators[0].error_code == 0
    again.run()
    own = own._replace(server=again, line=line)
    assert own.offsets(stable=True) == {0: -int(ErrorCode.UNSTABLE_OFFSET_COMMIT)}
    own.end(commit=True, version=5)
    assert own.offsets(stable=True) == {0: 5}
