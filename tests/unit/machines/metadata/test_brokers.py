"""The life of brokers as the active controller decides it: registered, heard, fenced, stopping, gone."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.metadata_cluster import Cluster, registration, topic_id

from duramen.config import BrokerConfig, load_broker_config
from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import TimerFired
from duramen.machines.metadata import (
    BrokerHeartbeat,
    CreateTopics,
    ElectLeaders,
    Endpoint,
    FeatureUpdate,
    FenceBroker,
    HeartbeatAnswer,
    NewTopic,
    Registered,
    UnregisterBroker,
    UpdateFeatures,
    codec,
)
from duramen.machines.metadata.brokers import BALANCE, NEXT_STEP
from duramen.machines.metadata.features import OFFERED
from duramen.machines.metadata.image import BROKER_RESOURCE, LOST_DIRECTORY, UNASSIGNED_DIRECTORY

SESSION_MS = 3000


@pytest.fixture(scope="module")
def config() -> BrokerConfig:
    return load_broker_config(None)


@pytest.fixture
def cluster(config: BrokerConfig) -> Cluster:
    """One broker, in the controller's process."""
    return Cluster(config)


@pytest.fixture
def three(cluster: Cluster) -> Cluster:
    """Brokers 1 (in the controller's process), 2 and 3."""
    cluster.start(2)
    cluster.start(3)
    return cluster


def written(cluster: Cluster, action: Any) -> int:
    """How many records it takes."""
    before = cluster.partition.log_end_offset
    action()
    return cluster.partition.log_end_offset - before


def pass_ms(cluster: Cluster, ms: int, *heard: int) -> None:
    """Time in which these brokers are heard, and no others."""
    for _ in range(0, ms, 500):
        cluster.clock.advance(500)
        for node_id in heard:
            cluster.beat(node_id)


# ---------------------------------------------------------------------- registration


def test_a_registration_is_fenced_and_its_epoch_is_its_offset(cluster: Cluster) -> None:
    offset = cluster.partition.log_end_offset
    assert cluster.ask(registration(2)) == Registered(offset)
    broker = cluster.image.brokers[2]
    assert (broker.epoch, broker.fenced, broker.active) == (offset, True, False)
    assert (broker.rack, broker.directories) == ("r", (topic_id(1002),))
    assert cluster.partition.log_end_offset == offset + 1
    assert cluster.replayed().image.brokers == cluster.image.brokers


def test_the_epoch_is_the_offset_behind_a_transaction_that_was_aborted_too(config: BrokerConfig) -> None:
    cluster = Cluster(config)
    cluster.begin(max_batch_bytes=1000)
    cluster.partition.refuse = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    cluster.partition.accept_before_refusal = 2
    cluster.host.submit(CreateTopics((NewTopic("u", topic_id(2), partitions=100),)), lambda _: None)
    cluster.partition.refuse = None
    epoch = cluster.ask(registration(2)).broker_epoch
    assert epoch == cluster.partition.log_end_offset - 1


def test_the_same_incarnation_again_gets_the_same_epoch(cluster: Cluster) -> None:
    first = cluster.ask(registration(2))
    assert written(cluster, lambda: None) == 0
    end = cluster.partition.log_end_offset
    assert cluster.ask(registration(2)) == first
    assert cluster.partition.log_end_offset == end


def test_a_directory_in_common_is_a_restart_whatever_the_session(three: Cluster) -> None:
    before = three.image.brokers[2].epoch
    both = (topic_id(1002), topic_id(77))
    answer = three.ask(registration(2, incarnation=9, directories=both))
    assert answer.broker_epoch > before
    assert three.image.brokers[2].fenced
    assert three.ask(BrokerHeartbeat(2, before, 999)).code == ErrorCode.STALE_BROKER_EPOCH


def test_other_directories_are_refused_while_the_older_process_may_live(three: Cluster) -> None:
    foreign = registration(2, incarnation=9, directory=77)
    assert three.ask(foreign).code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    pass_ms(three, SESSION_MS + 500, 1, 3)
    assert isinstance(three.ask(foreign), Registered)


def test_other_directories_are_taken_at_once_where_the_process_is_known_to_be_dead(three: Cluster) -> None:
    three.ask(FenceBroker(2, three.image.brokers[2].epoch))
    assert isinstance(three.ask(registration(2, incarnation=9, directory=77)), Registered)


def test_a_new_controller_waits_a_session_for_a_process_in_other_directories(three: Cluster) -> None:
    three.begin()
    foreign = registration(2, incarnation=9, directory=77)
    assert three.ask(foreign).code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    pass_ms(three, SESSION_MS, 1, 3)
    assert isinstance(three.ask(foreign), Registered)


def test_the_controllers_own_node_may_have_moved_its_logs(cluster: Cluster) -> None:
    """`cp` of the logs into another directory: that nobody else has its node's place is shown by this very process."""
    cluster.create("t")
    cluster.begin()
    cluster.start(1, incarnation=9, directory=77)
    assert cluster.leader("t") == 1
    assert cluster.ask(registration(1, 10, directory=78)).code == ErrorCode.DUPLICATE_BROKER_REGISTRATION


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"endpoints": (Endpoint("X", "localhost", 9092, 0),)}, ErrorCode.INVALID_REGISTRATION),
        ({"directories": (topic_id(1001),)}, ErrorCode.INVALID_REGISTRATION),
        ({"features": (("metadata.version", 1, 29),)}, ErrorCode.UNSUPPORTED_VERSION),
        ({"features": (("metadata.version", 31, 40),)}, ErrorCode.UNSUPPORTED_VERSION),
        ({"features": (("other.version", 1, 1), *OFFERED)}, None),
        ({"endpoints": (Endpoint("PLAINTEXT", "elsewhere", 9092, 0),)}, None),
    ],
)
def test_registrations_that_are_refused(cluster: Cluster, given: dict[str, Any], code: ErrorCode | None) -> None:
    answer = cluster.ask(registration(2)._replace(**given))
    assert (answer.code if code else type(answer)) == (code or Registered)
    assert (2 in cluster.image.brokers) is (code is None)


def test_a_level_is_not_raised_above_what_a_broker_reads(three: Cluster) -> None:
    supported = (("metadata.version", 1, 40),)
    update = UpdateFeatures(1, supported, (FeatureUpdate("metadata.version", 31, 1),))
    refused = three.ask(update)
    assert refused.error == ErrorCode.INVALID_UPDATE_VERSION
    assert "Broker 1 only supports versions 1-30" in refused.message


# ---------------------------------------------------------------------- heartbeats


def test_a_broker_is_unfenced_when_it_has_applied_its_registration(cluster: Cluster) -> None:
    epoch = cluster.ask(registration(2)).broker_epoch
    assert cluster.ask(BrokerHeartbeat(2, epoch, epoch - 1)) == HeartbeatAnswer(False, True)
    assert cluster.ask(BrokerHeartbeat(2, epoch, epoch, wants_fence=True)) == HeartbeatAnswer(True, True)
    assert cluster.image.brokers[2].fenced
    assert cluster.ask(BrokerHeartbeat(2, epoch, epoch)) == HeartbeatAnswer(True, False)
    assert cluster.image.brokers[2].active
    assert written(cluster, lambda: cluster.beat(2)) == 0


def test_a_heartbeat_of_nobody_and_of_an_older_process(cluster: Cluster) -> None:
    assert cluster.ask(BrokerHeartbeat(9, 1, 1)).code == ErrorCode.BROKER_ID_NOT_REGISTERED
    epoch = cluster.image.brokers[1].epoch
    assert cluster.ask(BrokerHeartbeat(1, epoch - 1, 99)).code == ErrorCode.STALE_BROKER_EPOCH


def test_a_broker_that_asks_to_be_fenced_is(three: Cluster) -> None:
    three.lay("t", (2, 3))
    assert three.beat(2, wants_fence=True) == HeartbeatAnswer(True, True)
    assert (three.leader("t"), three.state("t")) == (3, (3, 1, (3,)))


def test_what_is_said_of_a_broker_waits_for_its_commit_and_other_answers_do_not(cluster: Cluster) -> None:
    epoch = cluster.ask(registration(2)).broker_epoch
    cluster.partition.commit_at_once = False
    answers: list[Any] = []
    for _ in range(2):
        cluster.host.submit(BrokerHeartbeat(2, epoch, epoch), answers.append)
    assert answers == [], "an unfenced broker serves: not before that is committed"
    cluster.host.submit(BrokerHeartbeat(1, cluster.image.brokers[1].epoch, epoch), answers.append)
    assert answers == [HeartbeatAnswer(True, False)], "nothing new is said of this one"
    cluster.partition.commit()
    assert len(answers) == 3
    cluster.partition.commit_at_once = True
    cluster.create("t")
    cluster.partition.commit_at_once = False
    cluster.host.submit(CreateTopics((NewTopic("u", topic_id(2)),)), lambda _: None)
    cluster.host.submit(BrokerHeartbeat(2, epoch, epoch + 1), answers.append)
    assert len(answers) == 4


# ---------------------------------------------------------------------- sessions


def test_who_is_silent_for_a_session_is_fenced(three: Cluster) -> None:
    three.lay("t", (2, 3))
    pass_ms(three, SESSION_MS - 500, 1, 3)
    assert not three.image.brokers[2].fenced
    pass_ms(three, 1000, 1, 3)
    assert three.image.brokers[2].fenced
    assert three.state("t") == (3, 1, (3,))
    assert three.beat(2) == HeartbeatAnswer(True, False)
    assert three.state("t") == (3, 1, (3,)), "it comes back into the ISR by the leader's word"


def test_who_is_heard_is_not_fenced_though_the_wall_clock_jumps(three: Cluster) -> None:
    pass_ms(three, 2 * SESSION_MS, 2, 3)
    three.clock.wall += 3_600_000
    pass_ms(three, 2 * SESSION_MS, 2, 3)
    three.clock.wall -= 7_200_000
    pass_ms(three, 2 * SESSION_MS, 2, 3)
    assert len(three.image.serving_brokers()) == 3


def test_a_controller_does_not_fence_its_own_process(cluster: Cluster) -> None:
    cluster.clock.advance(10 * SESSION_MS)
    assert cluster.image.brokers[1].active


def test_a_new_controller_gives_everybody_a_full_session(three: Cluster) -> None:
    pass_ms(three, SESSION_MS - 500, 1)
    three.begin(load_broker_config(None, {"node.id": "5"}))
    three.clock.advance(SESSION_MS - 1)
    assert len(three.image.serving_brokers()) == 3
    three.clock.advance(1)
    assert three.image.serving_brokers() == []


def test_a_new_controller_fences_what_its_own_node_was_before(three: Cluster) -> None:
    three.begin()
    pass_ms(three, SESSION_MS, 2, 3)
    assert [broker.id for broker in three.image.serving_brokers()] == [2, 3]


def test_a_session_that_ends_while_the_log_takes_nothing_ends_when_it_does(three: Cluster) -> None:
    three.lay("t", (2, 3))
    three.partition.refuse = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    pass_ms(three, SESSION_MS + 1000, 1, 3)
    assert not three.image.brokers[2].fenced
    three.partition.refuse = None
    pass_ms(three, SESSION_MS + 1000, 1, 3)
    assert three.image.brokers[2].fenced
    assert three.leader("t") == 3


# ---------------------------------------------------------------------- fencing


def test_a_dead_process_is_fenced_at_once(three: Cluster) -> None:
    three.lay("t", (2, 3), (3, 2))
    epoch = three.image.brokers[2].epoch
    assert three.ask(FenceBroker(2, epoch - 1)).code == ErrorCode.STALE_BROKER_EPOCH
    assert three.ask(FenceBroker(9, epoch)).code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert written(three, lambda: three.ask(FenceBroker(2, epoch))) == 3
    assert three.state("t", 0) == (3, 1, (3,))
    assert three.state("t", 1) == (3, 0, (3,)), "the leader epoch does not rise when the ISR shrinks"
    assert written(three, lambda: three.ask(FenceBroker(2, epoch))) == 0


def test_what_nobody_else_can_lead_gets_no_record_and_has_no_leader(three: Cluster) -> None:
    three.lay("t", *[(2,)] * 50)
    assert written(three, lambda: three.ask(FenceBroker(2, three.image.brokers[2].epoch))) == 1
    assert three.leader("t") == -1
    assert three.state("t") == (2, 0, (2,))
    assert written(three, lambda: three.start(2, incarnation=9)) == 2
    assert (three.leader("t"), three.state("t")) == (2, (2, 1, (2,))), "in a new leader epoch"


def test_of_two_fenced_members_the_first_that_is_back_leads(three: Cluster) -> None:
    three.lay("t", (2, 3))
    three.ask(registration(3, incarnation=9))
    three.ask(registration(2, incarnation=9))
    three.clock.advance(0)
    assert (three.leader("t"), three.state("t")[2]) == (-1, (2, 3))
    three.beat(3)
    leader, _, isr = three.state("t")
    assert (leader, isr) == (3, (3,))


def test_a_restart_hands_over_what_others_can_lead(three: Cluster) -> None:
    three.lay("t", (2, 3), (2, 1), (3, 2), (1, 3))
    three.ask(registration(2, incarnation=9))
    three.clock.advance(0)
    assert [three.state("t", index)[0] for index in range(4)] == [3, 1, 3, 1]
    assert [three.state("t", index)[2] for index in range(4)] == [(3,), (1,), (3,), (1, 3)]


def test_a_partition_without_a_leader_is_led_by_a_member_that_comes(three: Cluster) -> None:
    """As a Kafka controller leaves it in the log of a directory."""
    three.lay("t", (2,), (2,))
    three.ask(FenceBroker(2, three.image.brokers[2].epoch))
    partition = three.image.topic("t").partitions[1]._replace(leader=-1, isr=(), elr=(2,))
    three.write(codec.partition_change(topic_id(1), 0, leader=-1), codec.partition_state(topic_id(1), 1, partition))
    three.beat(2)
    assert three.state("t", 0) == (2, 2, (2,))
    assert three.state("t", 1) == (2, 1, (2,)), "KIP-966: it is eligible"


def test_many_partitions_are_moved_in_steps_that_let_others_in(three: Cluster) -> None:
    count = 1700
    three.lay("t", *[(2, 3)] * count)
    assert written(three, lambda: three.ask(FenceBroker(2, three.image.brokers[2].epoch))) == 501
    moved = [three.leader("t", index) for index in range(count)]
    assert (moved.count(3), moved.count(-1)) == (500, 1200)
    three.clock.step()
    assert [three.leader("t", index) for index in range(count)].count(3) == 1000
    three.begin()
    three.clock.advance(0)
    assert {three.state("t", index) for index in range(count)} == {(3, 1, (3,))}, "the successor goes on"


def test_moves_that_the_log_refuses_are_made_later(three: Cluster) -> None:
    three.lay("t", *[(2, 3)] * 700)
    three.ask(FenceBroker(2, three.image.brokers[2].epoch))
    three.partition.refuse = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    pass_ms(three, 2000)
    three.partition.refuse = None
    assert three.leader("t", 699) == -1
    pass_ms(three, 1000, 3)
    assert three.leader("t", 699) == 3


# ---------------------------------------------------------------------- stopping


def test_a_single_node_stops_with_one_record(cluster: Cluster) -> None:
    cluster.create("t", partitions=200)
    assert written(cluster, lambda: cluster.beat(1, wants_shutdown=True)) == 1
    assert cluster.beat(1, wants_shutdown=True) == HeartbeatAnswer(True, True, True)
    broker = cluster.image.brokers[1]
    assert (broker.fenced, broker.in_controlled_shutdown) == (True, True)
    assert cluster.create("u", 2).result.error == ErrorCode.INVALID_REPLICATION_FACTOR
    assert cluster.beat(1) == HeartbeatAnswer(True, True, True), "it does not come back but as another process"
    cluster.start(1, incarnation=9)
    assert (cluster.leader("t"), cluster.state("t")) == (1, (1, 1, (1,)))
    assert not cluster.image.brokers[1].in_controlled_shutdown


def test_a_stop_hands_leaders_over_before_it_is_granted(three: Cluster) -> None:
    three.lay("t", *[(2, 3)] * 600, (2,), (3, 2))
    assert three.beat(2, wants_shutdown=True) == HeartbeatAnswer(True, False, False)
    broker = three.image.brokers[2]
    assert (broker.fenced, broker.in_controlled_shutdown) == (False, True)
    assert three.leader("t", 0) == 3
    assert three.leader("t", 599) == three.leader("t", 600) == 2, "until somebody else does, it does"
    assert not three.beat(2, wants_shutdown=True).should_shut_down
    three.clock.advance(0)
    assert three.leader("t", 599) == 3
    assert three.state("t", 601) == (3, 0, (3,))
    assert not three.beat(2, wants_shutdown=True).should_shut_down, "the others do not know yet who leads"
    three.beat(1)
    assert not three.beat(2).should_shut_down
    three.beat(3)
    assert three.beat(2) == HeartbeatAnswer(True, True, True)
    assert three.leader("t", 600) == -1
    assert three.state("t", 600) == (2, 0, (2,))


def test_a_broker_that_stops_and_is_fenced_may_go(three: Cluster) -> None:
    three.lay("t", (2, 3))
    assert three.beat(3, wants_shutdown=True).should_shut_down, "it leads nothing"
    assert three.state("t") == (2, 0, (2,))
    assert three.beat(2, wants_fence=True, wants_shutdown=True) == HeartbeatAnswer(True, True, True)
    assert three.leader("t") == -1


def test_a_stopping_broker_gets_no_new_partitions_to_lead(three: Cluster) -> None:
    three.lay("t", (2, 3))
    three.beat(2, wants_shutdown=True)
    three.create("u", 2, partitions=6, replication_factor=3)
    assert {three.leader("u", index) for index in range(6)} == {1, 3}
    assert all(2 not in three.state("u", index)[2] for index in range(6))


# ---------------------------------------------------------------------- gone, and lost disks


def test_a_broker_that_is_gone_is_unregistered(three: Cluster) -> None:
    three.lay("t", (2, 3), (2,))
    assert three.ask(UnregisterBroker(9)).code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert three.ask(UnregisterBroker(2)).code == ErrorCode.INVALID_REQUEST, "it lives"
    pass_ms(three, SESSION_MS + 500, 1, 3)
    assert written(three, lambda: three.ask(UnregisterBroker(2))) == 1
    assert sorted(three.image.brokers) == [1, 3]
    assert (three.leader("t", 0), three.leader("t", 1)) == (3, -1)
    assert three.replayed().image.brokers == three.image.brokers
    three.clock.advance(2 * SESSION_MS)
    moved = registration(4)._replace(endpoints=registration(2).endpoints)
    assert isinstance(three.ask(moved), Registered), "its address is free"


def test_a_wiped_disk_never_leads_what_was_on_it(three: Cluster) -> None:
    three.lay("t", (2, 3), (2,), (3, 2), (3,))
    three.ask(registration(3, incarnation=9))
    three.ask(registration(2, incarnation=9))
    three.ask(FenceBroker(2, three.image.brokers[2].epoch))
    assert three.state("t", 0) == (2, 1, (2, 3))
    three.start(2, incarnation=10, directory=77)
    assert three.state("t", 0) == (-1, 2, (3,)), "3 is in sync and not there"
    assert three.state("t", 1) == (-1, 2, (2,))
    assert three.state("t", 2) == (3, 1, (3,))
    assert three.image.topic("t").partitions[1].directories == (LOST_DIRECTORY,)
    assert [three.leader("t", index) for index in range(4)] == [-1, -1, -1, -1]
    three.beat(3)
    assert [three.leader("t", index) for index in range(4)] == [3, -1, 3, 3]
    preferred, unclean = (three.ask(ElectLeaders(kind, (("t", 1),)))[0][2] for kind in (0, 1))
    assert preferred.error == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert unclean.error == ErrorCode.UNSUPPORTED_VERSION, "an empty log is not elected"
    assert (three.leader("t", 1), three.state("t", 1)) == (-1, (-1, 2, (2,)))


def test_who_was_unregistered_and_comes_back_counts_as_new(three: Cluster) -> None:
    three.lay("t", (2,))
    three.ask(FenceBroker(2, three.image.brokers[2].epoch))
    three.ask(UnregisterBroker(2))
    three.start(2, incarnation=9)
    assert three.leader("t") == -1, "the log does not know whether its disk is the same"


def test_a_registration_waits_until_all_that_is_lost_counts_as_lost(three: Cluster) -> None:
    three.lay("t", *[(2,)] * 1200)
    three.ask(FenceBroker(2, three.image.brokers[2].epoch))
    answers: list[Any] = []
    three.host.submit(registration(2, 9, directory=77), answers.append)
    assert answers == []
    three.host.submit(registration(2, 9, directory=77), answers.append)
    three.clock.advance(0)
    epoch = three.image.brokers[2].epoch
    assert answers == [Registered(epoch)] * 2
    three.beat(2)
    assert {three.state("t", index) for index in range(1200)} == {(-1, 1, (2,))}


def test_a_registration_that_waits_is_told_when_the_log_takes_nothing_more(three: Cluster) -> None:
    three.lay("t", *[(2,)] * 1200)
    three.ask(FenceBroker(2, three.image.brokers[2].epoch))
    answers: list[Any] = []
    three.host.submit(registration(2, 9, directory=77), answers.append)
    three.partition.refuse = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    three.clock.advance(0)
    assert [answer.code for answer in answers] == [ErrorCode.KAFKA_STORAGE_ERROR]
    three.partition.refuse = None
    assert three.image.brokers[2].incarnation_id == topic_id(7)
    three.host.submit(registration(2, 9, directory=77), answers.append)
    three.clock.advance(1000)
    assert isinstance(answers[1], Registered)


def test_one_of_several_directories_is_lost(three: Cluster) -> None:
    kept, lost = topic_id(500), topic_id(501)
    three.start(2, 8, directories=(topic_id(1002), kept, lost))
    three.lay("t", (2,), (2,), (2,))
    homes = enumerate((kept, lost, UNASSIGNED_DIRECTORY))
    three.write(*(codec.partition_change(topic_id(1), index, directories=[home]) for index, home in homes))
    three.start(2, 9, directories=(topic_id(1002), kept))
    assert [three.leader("t", index) for index in range(3)] == [2, -1, 2]


# ---------------------------------------------------------------------- elections


def test_preferred_leaders_are_elected_where_they_are_active(three: Cluster) -> None:
    three.lay("t", (2, 3), (3, 2), (2,))
    three.write(codec.partition_change(topic_id(1), 0, leader=3))
    (answer,) = three.ask(ElectLeaders(0, None))
    assert (answer[0], answer[1], answer[2].error) == ("t", 0, ErrorCode.NONE)
    assert three.state("t", 0) == (2, 2, (2, 3))
    three.beat(2, wants_fence=True)
    assert [result.error for _, _, result in three.ask(ElectLeaders(0, (("t", 0), ("t", 1), ("t", 2))))] == [
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    ]


def test_an_unclean_election_is_refused_and_says_why(three: Cluster) -> None:
    three.lay("t", (2, 3), (2,), (3, 2))
    three.beat(3, wants_fence=True)
    three.ask(FenceBroker(2, three.image.brokers[2].epoch))
    assert three.state("t", 0) == (2, 0, (2,))
    three.beat(3)
    assert three.leader("t", 0) == -1, "by itself nobody leads who may lack what was acknowledged"
    answers = three.ask(ElectLeaders(1, (("t", 0), ("t", 1), ("t", 3))))
    assert [result.error for _, _, result in answers] == [
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert "acknowledged records could be lost" in answers[0][2].message
    assert three.state("t", 0) == (2, 0, (2,))
    three.start(2, incarnation=12)
    again = three.ask(ElectLeaders(1, (("t", 0),)))
    assert again[0][2].error == ErrorCode.ELECTION_NOT_NEEDED


# ---------------------------------------------------------------------- leaders go back by themselves

BALANCE_MS = 300_000


def away(cluster: Cluster, count: int = 1) -> None:
    """Partitions of 2 and 3 that 3 leads."""
    cluster.lay("t", *[(2, 3)] * count)
    cluster.write(*(codec.partition_change(topic_id(1), index, leader=3) for index in range(count)))


def test_first_replicas_lead_again_after_a_while(three: Cluster) -> None:
    away(three)
    began = three.clock.wall_ms()
    while three.leader("t") == 3:
        pass_ms(three, 10_000, 1, 2, 3)
        assert three.clock.wall_ms() - began <= BALANCE_MS + 10_000
    assert three.clock.wall_ms() - began >= BALANCE_MS - 10_000
    assert three.state("t") == (2, 2, (2, 3))
    three.write(codec.partition_change(topic_id(1), 0, leader=3))
    pass_ms(three, BALANCE_MS + 500, 1, 2, 3)
    assert three.leader("t") == 2, "and again"


def test_only_who_is_in_sync_and_active_gets_back(three: Cluster) -> None:
    three.lay("t", (2, 3), (3, 1), (2, 1))
    three.write(
        codec.partition_change(topic_id(1), 0, leader=3, isr=[3]),
        codec.partition_change(topic_id(1), 1, leader=1),
        codec.partition_change(topic_id(1), 2, leader=1),
    )
    three.beat(2, wants_fence=True)
    pass_ms(three, BALANCE_MS, 1, 3)
    assert [three.leader("t", index) for index in range(3)] == [3, 3, 1]


def test_many_go_back_in_several_decisions(three: Cluster) -> None:
    count = 1200
    away(three, count)
    three.machine._brokers.fire(three.image, TimerFired(BALANCE), 0, 0)
    for step in (500, 1000, 1200):
        outcome = three.machine.decide(TimerFired(NEXT_STEP), 0, 0)
        three.write(*outcome.records)
        assert [three.leader("t", index) for index in range(count)].count(2) == step
    assert outcome.timers == []


def test_they_stay_where_nobody_is_to_move_them(config: BrokerConfig) -> None:
    cluster = Cluster(load_broker_config(None, {"auto.leader.rebalance.enable": "false"}))
    cluster.start(2)
    cluster.start(3)
    away(cluster)
    pass_ms(cluster, BALANCE_MS + 1000, 1, 2, 3)
    assert cluster.leader("t") == 3


def test_many_elections_are_answered_when_all_are_made(three: Cluster) -> None:
    count = 1200
    three.lay("t", *[(2, 3)] * count)
    three.write(*(codec.partition_change(topic_id(1), index, leader=3) for index in range(count)))
    answers: list[Any] = []
    three.host.submit(ElectLeaders(0, None), answers.append)
    assert answers == []
    assert [three.leader("t", index) for index in range(count)].count(2) == 500
    three.clock.advance(0)
    assert [index for _, index, _ in answers[0]] == list(range(count))
    assert {three.leader("t", index) for index in range(count)} == {2}


def test_a_broker_without_directories_is_one_of_an_older_release(cluster: Cluster) -> None:
    cluster.start(2, directories=())
    cluster.lay("t", (2,))
    cluster.start(2, incarnation=9)
    assert cluster.leader("t") == 2


# ---------------------------------------------------------------------- who slept through its session


@pytest.mark.parametrize("new_controller", [False, True])
def test_who_was_silent_is_unfenced_when_it_has_read_what_others_lead(three: Cluster, new_controller: bool) -> None:
    """Its registration it knew all the time: it would lead what it does not know to be led elsewhere."""
    three.lay("t", (2, 1), (2, 3), (1, 3))
    epoch = three.image.brokers[2].epoch
    asleep = three.partition.log_end_offset - 1
    pass_ms(three, SESSION_MS + 500, 1, 3)
    assert three.state("t")[0] == 1
    last = three.partition.log_end_offset - 1
    if new_controller:
        three.begin()
    for offset in range(asleep, last):
        assert three.ask(BrokerHeartbeat(2, epoch, offset)) == HeartbeatAnswer(True, True)
    assert three.ask(BrokerHeartbeat(2, epoch, last)) == HeartbeatAnswer(True, False)
    pass_ms(three, SESSION_MS + 500, 1, 3)
    assert three.image.brokers[2].fenced, "and again"
    assert three.ask(BrokerHeartbeat(2, epoch, last)).is_fenced


def test_what_moves_in_later_steps_has_to_be_read_too(three: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duramen.machines.metadata.leaders.CHANGES_AT_ONCE", 2)
    three.lay("t", *[(2, 1)] * 7)
    three.ask(FenceBroker(2, three.image.brokers[2].epoch))
    first = three.partition.log_end_offset - 1
    three.clock.advance(0)
    assert [three.state("t", index)[0] for index in range(7)] == [1] * 7
    epoch, last = three.image.brokers[2].epoch, three.partition.log_end_offset - 1
    assert last > first
    assert three.ask(BrokerHeartbeat(2, epoch, first)).is_fenced
    assert three.ask(BrokerHeartbeat(2, epoch, last - 1)).is_fenced
    assert not three.ask(BrokerHeartbeat(2, epoch, last)).is_fenced


# ---------------------------------------------------------------------- stops that were not clean


PAGE_CACHE = (("duramen.ack.durability", "page-cache"),)


def all_die(cluster: Cluster) -> None:
    """At once: nobody is left to leave the others behind."""
    cluster.write(*[codec.broker_change(broker, fenced=True) for broker in cluster.image.brokers.values()])


def register(cluster: Cluster, node_id: int, *, clean: bool) -> None:
    """The next process of a broker; clean: it has found the file that the last one left behind when it stopped."""
    before = cluster.image.brokers[node_id].epoch
    answers: list[Any] = []
    cluster.host.submit(registration(node_id, 99, previous_broker_epoch=before if clean else -1), answers.append)
    cluster.clock.advance(0)
    assert isinstance(answers[0], Registered)


def lay_in_page_cache(cluster: Cluster, *replicas: tuple[int, ...]) -> None:
    cluster.lay("c", *replicas, number=8)
    cluster.write(codec.topic_config("c", *PAGE_CACHE[0]))


@pytest.mark.parametrize("clean", [True, False])
def test_behind_an_unclean_stop_a_broker_leaves_what_it_may_have_lost(three: Cluster, clean: bool) -> None:
    lay_in_page_cache(three, (3, 2), (2, 3), (3,))
    three.lay("s", (3, 2), number=9)
    all_die(three)
    register(three, 3, clean=clean)
    assert [three.state("c", index)[2] for index in range(3)] == (
        [(3, 2), (2, 3), (3,)] if clean else [(2,), (2,), (3,)]
    )
    assert three.state("c")[0] == (3 if clean else -1)
    assert three.state("s")[2] == (3, 2), "what was acknowledged is on its disk"


def test_who_may_have_lost_the_end_does_not_lead_while_others_have_it(three: Cluster) -> None:
    lay_in_page_cache(three, (3, 2, 1))
    three.lay("s", (3, 2, 1), number=9)
    all_die(three)
    register(three, 3, clean=False)
    three.beat(3)
    assert three.state("s") == (3, 1, (3,))
    assert three.state("c")[0] == -1
    assert three.state("c")[2] == (2, 1), "whoever of these is back first has all of it"
    register(three, 2, clean=True)
    three.beat(2)
    assert three.state("c")[0] == 2
    assert three.state("c")[2] == (2,)
    assert three.replayed().image.topics == three.image.topics


def test_the_last_one_in_sync_stays_whatever_it_lost(three: Cluster) -> None:
    lay_in_page_cache(three, (3, 2, 1))
    all_die(three)
    for node_id in (3, 2):
        register(three, node_id, clean=False)
        three.beat(node_id)
        assert three.leader("c") == -1
    assert three.state("c")[2] == (1,)
    register(three, 1, clean=False)
    three.beat(1)
    assert (three.state("c")[0], three.state("c")[2]) == (1, (1,))


@pytest.mark.parametrize(
    ("settings", "leaves"),
    [
        ([("", "page-cache")], True),
        ([("", "page-cache"), ("3", "stable")], False),
        ([("3", "page-cache")], True),
        ([("2", "page-cache")], False),
        ([], False),
    ],
)
def test_the_cluster_and_the_broker_say_it_of_topics_that_do_not(
    three: Cluster, settings: list[tuple[str, str]], leaves: bool
) -> None:
    three.lay("t", (1, 2, 3))
    for node, value in settings:
        three.write(codec.config(BROKER_RESOURCE, node, PAGE_CACHE[0][0], value))
    all_die(three)
    register(three, 3, clean=False)
    assert three.state("t")[2] == ((1, 2) if leaves else (1, 2, 3))


def test_the_controllers_own_file_says_it_where_nothing_else_does() -> None:
    cluster = Cluster(load_broker_config(None, dict(PAGE_CACHE)))
    cluster.start(2)
    cluster.lay("t", (1, 2))
    all_die(cluster)
    register(cluster, 2, clean=False)
    assert cluster.state("t")[2] == (1,)


def test_the_same_process_again_has_lost_nothing(config: BrokerConfig) -> None:
    """Its controller, of the same process, is a new one and has not heard it yet."""
    cluster = Cluster(config)
    cluster.start(2)
    lay_in_page_cache(cluster, (2, 1))
    cluster.begin()
    cluster.ask(registration(1, 7))
    assert cluster.state("c")[2] == (2, 1)


def test_what_is_left_behind_takes_several_decisions(three: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duramen.machines.metadata.leaders.CHANGES_AT_ONCE", 3)
    lay_in_page_cache(three, *[(3, 2, 1)] * 8)
    all_die(three)
    register(three, 3, clean=False)
    assert [three.state("c", index)[2] for index in range(8)] == [(2, 1)] * 8
