"""What the metrics of three nodes tell of their cluster, with all of them and with one that died."""

from __future__ import annotations

from tests.worlds.broker_world import InProcess
from tests.worlds.copies_world import TOPIC, CopiesWorld

from duramen.server.broker import Broker
from duramen.server.metrics.exposition import BrokerCollector

Labels = tuple[tuple[str, str], ...]


def samples(collector: BrokerCollector) -> dict[tuple[str, Labels], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in collector.collect()
        for sample in family.samples
    }


class Told:
    """The metrics of one node; 0 for what is not there."""

    def __init__(self, collector: BrokerCollector) -> None:
        self._samples = samples(collector)

    def __call__(self, name: str, **labels: object) -> float:
        return self._samples.get((f"duramen_{name}", tuple(sorted((k, str(v)) for k, v in labels.items()))), 0)

    def has(self, name: str) -> bool:
        return any(each == f"duramen_{name}" for each, _ in self._samples)


def collectors(world: CopiesWorld) -> dict[int, BrokerCollector]:
    found = {}
    for node_id in world.running:
        broker: Broker = world.brokers[node_id]
        found[node_id] = BrokerCollector(broker)
    return found


def test_three_nodes_that_are_well_and_then_without_one() -> None:
    world = CopiesWorld(partitions=3)
    world.run(3.0)  # followers' answers and heartbeats
    looks = collectors(world)
    told = {node_id: Told(look) for node_id, look in looks.items()}
    active = world.active()
    for node_id, tell in told.items():
        assert tell("quorum_leader") == active
        assert tell("quorum_epoch") >= 1
        assert tell("quorum_voters") == tell("brokers") == 3
        assert tell("fenced_brokers") == tell("leaderless_partitions") == 0
        assert tell("active_controller") == (node_id == active)
        assert tell("replicas_here") == 3
        assert tell("under_replicated_partitions") == tell("under_min_isr_partitions") == 0
        assert tell("heartbeat_seconds_count") > 2
        assert tell("metadata_applied_offset") > 10
    assert sum(tell("led_partitions") for tell in told.values()) == 3
    assert [told[active]("quorum_lag_records", replica=each) for each in world.running] == [0, 0, 0]
    assert not told[world.others()[0]].has("quorum_lag_records")

    leader = world.leader()
    gone = world.others()[0] if world.others()[0] != leader else world.others()[1]
    led_by_gone = told[gone]("led_partitions")
    world.world.nodes[gone].kill()
    assert world.until(lambda: all(gone not in world.image(index).isr for index in range(3)))
    for number in range(5):
        world.produce(b"%d" % number)
    world.run(1.0)
    told = {node_id: Told(looks[node_id]) for node_id in world.running}
    alive = sorted(told)
    assert sum(told[each]("led_partitions") for each in alive) == 3
    assert sum(told[each]("under_replicated_partitions") for each in alive) == 3
    assert sum(told[each]("at_min_isr_partitions") for each in alive) == 3
    assert sum(told[each]("under_min_isr_partitions") for each in alive) == 0
    assert sum(told[each]("isr_shrinks_total") for each in alive) == 3
    for node_id in alive:
        assert told[node_id]("fenced_brokers") == 1
        assert told[node_id]("broker_fencings_total", broker=gone) == 1
        assert told[node_id]("leader_elections_total") == led_by_gone
    other = next(each for each in alive if each != leader)
    here = {"topic": TOPIC, "partition": 0}
    assert told[leader]("in_sync_replicas", **here) == 2
    assert told[leader]("follower_lag_records", follower=gone, **here) == 5
    assert told[leader]("follower_lag_records", follower=other, **here) == 0
    assert told[other]("in_sync_replicas", **here) == 0, "who does not lead it does not tell"

    world.start(gone)
    assert world.until(lambda: all(len(world.image(index).isr) == 3 for index in range(3)))
    world.run(1.0)
    told = {node_id: Told(looks[node_id]) for node_id in alive}
    assert sum(told[each]("isr_expands_total") for each in alive) == 3
    assert sum(told[each]("under_replicated_partitions") for each in alive) == 0
    assert told[leader]("follower_lag_records", follower=gone, **here) == 0


def test_a_node_alone_tells_of_itself() -> None:
    server = InProcess()
    server.connect().create_topic("t")
    tell = Told(BrokerCollector(server.broker))
    assert tell("quorum_leader") == tell("brokers") == tell("active_controller") == 1
    assert tell("led_partitions") == tell("replicas_here") == 1
    assert tell("under_replicated_partitions") == tell("at_min_isr_partitions") == 0
    assert not tell.has("follower_lag_records")


def test_the_partitions_of_groups_share_a_row_of_each_follower() -> None:
    world = CopiesWorld(settings={"offsets_topic_num_partitions": "4", "offsets_topic_replication_factor": "3"})
    broker = world.brokers[1]
    done: list[object] = []
    broker.groups.ensure_topics(done.append)
    assert world.until(lambda: bool(done))
    world.run(2.0)
    rows = [
        (name, dict(labels))
        for node_id, look in collectors(world).items()
        for (name, labels), _ in samples(look).items()
        if dict(labels).get("topic") == "__consumer_offsets" and ("follower" in name or "in_sync" in name)
    ]
    assert rows
    assert {labels["partition"] for _, labels in rows} == {"all"}
