"""The topic that tells the swaps: it keeps what it acknowledges, on nodes whose topics do not by default, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from tests.worlds.served_node import Served, only_duramen

from duramen.client import LATEST, Cluster
from duramen.model import TopicPartition
from duramen.swaps import CutOver, SwapConflictError, SwapLog
from duramen.swaps.swap_log import SWAPS_TOPIC

CUTS = [CutOver("late", {0: 5}, "late.v2", {0: 3}), CutOver("late.v2", {0: 9}, "late", {0: 7})]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path, {"duramen.ack.durability": "page-cache"})
    served.start()
    try:
        yield served
    finally:
        served.kill()


def settings(node: Served) -> tuple[str, str]:
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    (described,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, SWAPS_TOPIC)]).values()
    found = described.result(20)
    return found["cleanup.policy"].value, found["duramen.ack.durability"].value


def end(cluster: Cluster) -> int:
    place = TopicPartition(SWAPS_TOPIC, 0)
    return cluster.list_offsets({place: LATEST})[place].offset


@only_duramen
def test_what_is_published_is_on_stable_storage(node: Served) -> None:
    with Cluster(node.bootstrap) as cluster:
        log = SwapLog(cluster)
        log.publish("late", [])
        assert SWAPS_TOPIC not in [name for name, topic in cluster.metadata().topics.items() if not topic.error]
        log.publish("late", CUTS[:1])
        assert settings(node) == ("compact", "stable")
        log.publish("late", CUTS[:1])
        assert end(cluster) == 1, "the node has it already"
        log.publish("late", CUTS)
        node.kill()
        node.start()
        assert SwapLog(cluster).cuts("late") == tuple(CUTS)
        assert SwapLog(cluster).chains() == {"late": tuple(CUTS)}
        with pytest.raises(SwapConflictError, match="another pipeline"):
            log.publish("late", CUTS[:1])


@only_duramen
def test_a_topic_that_was_there_is_made_stable(node: Served) -> None:
    """And what it had is written once more, for nobody knows whether it outlives a power cut."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(SWAPS_TOPIC, 1, 1, config={"cleanup.policy": "compact"})])[SWAPS_TOPIC].result(20)
    assert settings(node) == ("compact", "page-cache")
    with Cluster(node.bootstrap) as cluster:
        SwapLog(cluster).publish("late", CUTS)
        assert settings(node) == ("compact", "stable")
        (altered,) = admin.incremental_alter_configs([_page_cache()]).values()
        altered.result(20)
        SwapLog(cluster).publish("late", CUTS)
        assert settings(node) == ("compact", "stable")
        assert (end(cluster), SwapLog(cluster).cuts("late")) == (2, tuple(CUTS))


def _page_cache() -> ConfigResource:

    return ConfigResource(
        ConfigResource.Type.TOPIC,
        SWAPS_TOPIC,
        incremental_configs=[
            ConfigEntry("duramen.ack.durability", "page-cache", incremental_operation=AlterConfigOpType.SET)
        ],
    )


def test_a_log_that_was_deleted_has_no_cuts(node: Served) -> None:
    with Cluster(node.bootstrap) as cluster:
        log = SwapLog(cluster)
        log.publish("late", CUTS)
        assert log.cuts("late") == tuple(CUTS)
        admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
        admin.delete_topics([SWAPS_TOPIC])[SWAPS_TOPIC].result(20)
        assert log.cuts("late") == ()
        log.publish("late", CUTS)
        assert SwapLog(cluster).cuts("late") == tuple(CUTS)


def test_a_chain_may_be_longer_than_a_record_usually_is(node: Served) -> None:
    offsets = dict.fromkeys(range(10_000), 1 << 60)
    cuts = [CutOver(f"late.v{number}", offsets, f"late.v{number + 1}", offsets) for number in range(1, 6)]
    with Cluster(node.bootstrap) as cluster:
        SwapLog(cluster).publish("late.v1", cuts)
        assert SwapLog(cluster).cuts("late.v1") == tuple(cuts)


@only_duramen
def test_of_two_that_publish_at_the_same_moment_the_first_one_has_swapped(
    node: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both asked before either wrote. Whoever is second leaves the first one's chain as the last record."""
    theirs = [CutOver("late", {0: 6}, "late.theirs", {0: 2})]
    with Cluster(node.bootstrap) as one, Cluster(node.bootstrap) as other:
        first, second = SwapLog(one), SwapLog(other)
        prepare = second._prepare

        def overtaken() -> bool:
            made = prepare()
            first.publish("late", CUTS[:1])
            return made

        monkeypatch.setattr(second, "_prepare", overtaken)
        with pytest.raises(SwapConflictError, match="another pipeline"):
            second.publish("late", theirs)
        for log in (first, second, SwapLog(one)):
            assert log.cuts("late") == tuple(CUTS[:1])
        first.publish("late", CUTS)
        assert second.cuts("late") == tuple(CUTS)


@only_duramen
def test_who_came_second_and_was_killed_has_not_swapped(node: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record is the last one, and it could not put that right any more: those who swapped were refused then."""
    theirs = [CutOver("late", {0: 6}, "late.theirs", {0: 2})]
    with Cluster(node.bootstrap) as one, Cluster(node.bootstrap) as other:
        first, second = SwapLog(one), SwapLog(other)
        first.publish("late", CUTS[:1])
        second._write("late", tuple(theirs))
        for log in (first, second, SwapLog(one)):
            assert log.cuts("late") == tuple(CUTS[:1])
        with pytest.raises(SwapConflictError, match="another pipeline"):
            SwapLog(one).publish("late", theirs)
        assert end(one) == 3, "what compaction keeps is the first one's"
        first.publish("late", CUTS[:1])
        assert end(one) == 3
        first.publish("late", CUTS)
        assert SwapLog(other).cuts("late") == tuple(CUTS)
