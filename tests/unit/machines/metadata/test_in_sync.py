"""Who is in sync, as a partition's leader proposes it (AlterPartition): what is taken, and what every refusal says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.worlds.metadata_cluster import Cluster, topic_id

from duramen.config import BrokerConfig, load_broker_config
from duramen.errors import ErrorCode, KafkaError
from duramen.machines.metadata import AlterPartition, BrokerHeartbeat, FenceBroker, IsrChange, IsrChanged, leaders
from duramen.machines.metadata.image import PartitionImage
from duramen.model import TopicPartition


@pytest.fixture(scope="module")
def config() -> BrokerConfig:
    return load_broker_config(None)


@pytest.fixture
def cluster(config: BrokerConfig) -> Cluster:
    """Brokers 1, 2, 3; topic `t` with copies on all of them, led by 1 and by 2."""
    cluster = Cluster(config)
    cluster.start(2)
    cluster.start(3)
    cluster.lay("t", (1, 2, 3), (2, 3, 1))
    return cluster


def partition(cluster: Cluster, index: int = 0) -> PartitionImage:
    found = cluster.image.partition(TopicPartition("t", index))
    assert isinstance(found, PartitionImage)
    return found


def broker_epoch(cluster: Cluster, node_id: int) -> int:
    return int(cluster.image.brokers[node_id].epoch)


def proposal(cluster: Cluster, *isr: int, index: int = 0, **other: Any) -> IsrChange:
    """These replicas, by what the leader of this partition knows when it knows everything."""
    known = partition(cluster, index)
    given = {
        "topic_id": topic_id(1),
        "index": index,
        "leader_epoch": known.leader_epoch,
        "isr": tuple((node_id, broker_epoch(cluster, node_id)) for node_id in isr),
        "partition_epoch": known.partition_epoch,
        **other,
    }
    return IsrChange(**given)


def send(cluster: Cluster, *proposals: IsrChange, node_id: int = 1) -> Any:
    return cluster.ask(AlterPartition(node_id, broker_epoch(cluster, node_id), proposals))


def error(cluster: Cluster, change: IsrChange, node_id: int = 1) -> ErrorCode:
    """What it is refused with; nothing is written, and nothing else is said."""
    end = cluster.partition.log_end_offset
    (answer,) = send(cluster, change, node_id=node_id)
    assert cluster.partition.log_end_offset == end
    assert answer == IsrChanged(change.topic_id, change.index, answer.error, -1, 0, (), 0)
    return ErrorCode(answer.error)


def test_a_replica_leaves_and_joins_again(cluster: Cluster) -> None:
    (gone,) = send(cluster, proposal(cluster, 1, 3))
    assert gone == IsrChanged(topic_id(1), 0, ErrorCode.NONE, 1, 0, (1, 3), 1)
    assert cluster.state("t") == (1, 0, (1, 3)), "the leader epoch stays"
    (back,) = send(cluster, proposal(cluster, 3, 2, 1))
    assert back == IsrChanged(topic_id(1), 0, ErrorCode.NONE, 1, 0, (1, 2, 3), 2)
    assert partition(cluster).partition_epoch == 2
    assert cluster.replayed().image.topics == cluster.image.topics


def test_a_proposal_is_taken_once(cluster: Cluster) -> None:
    smaller = proposal(cluster, 1)
    send(cluster, smaller)
    assert error(cluster, smaller) == ErrorCode.INVALID_UPDATE_VERSION


def test_what_is_proposed_again_raises_the_epoch_so_that_an_earlier_proposal_is_not_taken(cluster: Cluster) -> None:
    send(cluster, proposal(cluster, 1, 3))
    late = proposal(cluster, 1, 2, 3)
    (answer,) = send(cluster, proposal(cluster, 1, 3))
    assert (answer.isr, answer.partition_epoch) == ((1, 3), 2)
    assert error(cluster, late) == ErrorCode.INVALID_UPDATE_VERSION


def test_of_two_proposals_for_one_partition_in_a_request_the_first_counts(cluster: Cluster) -> None:
    first, second = send(cluster, proposal(cluster, 1, 2), proposal(cluster, 1, 3))
    assert (first.isr, second.error) == ((1, 2), ErrorCode.INVALID_UPDATE_VERSION)
    assert cluster.state("t") == (1, 0, (1, 2))


def test_each_partition_has_its_own_answer(cluster: Cluster) -> None:
    taken, refused = send(cluster, proposal(cluster, 1), proposal(cluster, 2, index=1))
    assert (taken.error, refused.error) == (ErrorCode.NONE, ErrorCode.INVALID_REQUEST)
    assert cluster.state("t", 1) == (2, 0, (2, 3, 1))


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"topic_id": topic_id(2)}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"index": 2}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"index": -1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"leader_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        ({"partition_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        ({"leader_epoch": -1, "partition_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"partition_epoch": -1}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"isr": ()}, ErrorCode.INVALID_REQUEST),
        ({"isr": ((2, -1), (3, -1))}, ErrorCode.INVALID_REQUEST),
        ({"isr": ((1, -1), (1, -1))}, ErrorCode.INVALID_REQUEST),
        ({"isr": ((1, -1), (4, -1))}, ErrorCode.INVALID_REQUEST),
        ({"isr": ((1, -1), (2, 0))}, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_what_is_refused(cluster: Cluster, other: dict[str, Any], expected: ErrorCode) -> None:
    assert error(cluster, replace(proposal(cluster, 1, 2, 3), **other)) == expected


def test_only_the_leader_proposes(cluster: Cluster) -> None:
    assert error(cluster, proposal(cluster, 1, 2), node_id=2) == ErrorCode.INVALID_REQUEST


def test_a_leader_of_an_older_epoch_is_fenced(cluster: Cluster) -> None:
    late = proposal(cluster, 1, 2)
    cluster.ask(FenceBroker(1, broker_epoch(cluster, 1)))
    cluster.start(1, incarnation=8)
    assert cluster.leader("t") == 2
    assert error(cluster, late) == ErrorCode.FENCED_LEADER_EPOCH


def test_a_broker_of_an_older_epoch_or_none_is_told_so_for_all(cluster: Cluster) -> None:
    for node_id, epoch in ((1, broker_epoch(cluster, 1) - 1), (9, 0)):
        answer = cluster.ask(AlterPartition(node_id, epoch, (proposal(cluster, 1),)))
        assert isinstance(answer, KafkaError)
        assert answer.code == ErrorCode.STALE_BROKER_EPOCH
    assert partition(cluster).partition_epoch == 0


def test_who_is_fenced_does_not_join(cluster: Cluster) -> None:
    cluster.ask(FenceBroker(3, broker_epoch(cluster, 3)))
    assert cluster.state("t") == (1, 0, (1, 2))
    assert error(cluster, proposal(cluster, 1, 2, 3)) == ErrorCode.INELIGIBLE_REPLICA


def test_who_is_unregistered_does_not_join(cluster: Cluster) -> None:
    known = ((1, -1), (2, -1), (3, -1))
    cluster.ask(FenceBroker(3, broker_epoch(cluster, 3)))
    del cluster.image.brokers[3]
    assert error(cluster, proposal(cluster, isr=known)) == ErrorCode.INELIGIBLE_REPLICA


def test_who_is_stopping_does_not_join(cluster: Cluster) -> None:
    cluster.ask(BrokerHeartbeat(3, broker_epoch(cluster, 3), 0, wants_shutdown=True))
    assert cluster.image.brokers[3].in_controlled_shutdown
    assert error(cluster, proposal(cluster, 1, 2, 3)) == ErrorCode.INELIGIBLE_REPLICA


def test_who_has_started_again_joins_by_its_new_epoch_alone(cluster: Cluster) -> None:
    before = broker_epoch(cluster, 3)
    cluster.start(3, incarnation=8)
    assert cluster.state("t") == (1, 0, (1, 2))
    members = ((1, broker_epoch(cluster, 1)), (2, broker_epoch(cluster, 2)))
    assert error(cluster, proposal(cluster, isr=(*members, (3, before)))) == ErrorCode.INELIGIBLE_REPLICA
    (answer,) = send(cluster, proposal(cluster, 1, 2, 3))
    assert answer.isr == (1, 2, 3)


def test_who_joins_a_leader_that_is_stopping_leads(cluster: Cluster) -> None:
    cluster.lay("v", (1, 2, 3), number=7)  # to be handed over, so that it does not stop at once
    send(cluster, proposal(cluster, 1))
    cluster.ask(BrokerHeartbeat(1, broker_epoch(cluster, 1), 0, wants_shutdown=True))
    assert cluster.state("t") == (1, 0, (1,)), "nobody else has what was acknowledged"
    (answer,) = send(cluster, proposal(cluster, 1, 2))
    assert (answer.leader, answer.isr) == (1, (1, 2))
    cluster.clock.advance(0)
    assert cluster.state("t") == (2, 1, (2,))


def test_a_large_request_is_decided_in_steps(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.lay("u", *[(1, 2, 3)] * 7, number=5)
    monkeypatch.setattr(leaders, "CHANGES_AT_ONCE", 3)
    isr = tuple((node_id, broker_epoch(cluster, node_id)) for node_id in (1, 3))
    proposals = tuple(IsrChange(topic_id(5), index, 0, isr, 0) for index in range(7))
    answers: list[Any] = []
    cluster.host.submit(AlterPartition(1, broker_epoch(cluster, 1), proposals), answers.append)
    assert not answers
    assert [cluster.state("u", index)[2] for index in range(7)] == [(1, 3)] * 3 + [(1, 2, 3)] * 4
    cluster.clock.advance(0)
    ((*told,),) = answers
    assert [(each.index, each.error, each.isr) for each in told] == [(index, 0, (1, 3)) for index in range(7)]
    assert [cluster.state("u", index)[2] for index in range(7)] == [(1, 3)] * 7


def test_the_rest_of_a_large_request_is_not_taken_of_a_process_that_started_anew(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.lay("u", *[(1, 2, 3)] * 7, number=5)
    monkeypatch.setattr(leaders, "CHANGES_AT_ONCE", 3)
    isr = tuple((node_id, broker_epoch(cluster, node_id)) for node_id in (2, 3))
    cluster.ask(FenceBroker(1, broker_epoch(cluster, 1)))
    proposals = tuple(IsrChange(topic_id(5), index, 1, isr[:1], 1) for index in range(7))
    answers: list[Any] = []
    cluster.host.submit(AlterPartition(2, broker_epoch(cluster, 2), proposals), answers.append)
    cluster.start(2, incarnation=8)
    (answer,) = answers
    assert isinstance(answer, KafkaError)
    assert answer.code == ErrorCode.STALE_BROKER_EPOCH
