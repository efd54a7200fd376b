"""Where the copies of new partitions go: leaders even, racks apart, fenced brokers last and never leading."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.metadata.image import BrokerImage, MetadataImage
from duramen.machines.metadata.placement import place

TOPIC = bytes(range(16))


def cluster(racks: dict[int, str | None], fenced: frozenset[int] = frozenset()) -> MetadataImage:
    image = MetadataImage()
    for node, rack in racks.items():
        image.brokers[node] = BrokerImage(node, 0, bytes(16), (), rack=rack, fenced=node in fenced)
    return image


THREE = cluster({1: None, 2: None, 3: None})


def test_twelve_partitions_of_three_nodes_have_four_leaders_each() -> None:
    assert Counter(nodes[0] for nodes in place(THREE, TOPIC, 12, 1)) == {1: 4, 2: 4, 3: 4}


def test_topics_of_one_partition_begin_at_different_nodes() -> None:
    first = {place(THREE, bytes(15) + bytes([number]), 1, 1)[0][0] for number in range(3)}
    assert first == {1, 2, 3}


def test_partitions_added_later_go_on_where_the_topic_ended() -> None:
    assert place(THREE, TOPIC, 12, 2) == place(THREE, TOPIC, 5, 2) + place(THREE, TOPIC, 7, 2, first=5)


def test_what_a_node_led_is_spread_over_the_others_when_it_dies() -> None:
    seconds = Counter(nodes[1] for nodes in place(THREE, TOPIC, 12, 2) if nodes[0] == 2)
    assert seconds == {1: 2, 3: 2}


def test_a_fenced_node_gets_copies_and_leads_none() -> None:
    placed = place(cluster({1: None, 2: None, 3: None}, frozenset({2})), TOPIC, 12, 3)
    assert all(set(nodes) == {1, 2, 3} and nodes[2] == 2 for nodes in placed)
    assert Counter(nodes[0] for nodes in placed) == {1: 6, 3: 6}


def test_a_fenced_node_is_left_out_where_the_others_are_enough() -> None:
    assert all(2 not in nodes for nodes in place(cluster({1: None, 2: None, 3: None}, frozenset({2})), TOPIC, 12, 2))


@pytest.mark.parametrize(
    ("fenced", "copies", "words"),
    [
        (frozenset({1, 2, 3}), 1, "All brokers are currently fenced"),
        (frozenset[int](), 4, "only 3 broker(s) are registered"),
        (frozenset({1, 2, 3}), 4, "only 3 broker(s) are registered"),
    ],
)
def test_what_cannot_be_placed_says_why(fenced: frozenset[int], copies: int, words: str) -> None:
    with pytest.raises(KafkaError) as caught:
        place(cluster({1: None, 2: None, 3: None}, fenced), TOPIC, 1, copies)
    assert caught.value.code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert words in caught.value.message


@given(
    racks=st.dictionaries(st.integers(0, 9), st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=9),
    data=st.data(),
    topic_id=st.binary(min_size=16, max_size=16),
)
def test_every_placement_keeps_the_rules(racks: dict[int, str | None], data: st.DataObject, topic_id: bytes) -> None:
    fenced = data.draw(st.frozensets(st.sampled_from(sorted(racks)), max_size=len(racks) - 1))
    copies = data.draw(st.integers(1, len(racks)))
    count = data.draw(st.integers(1, 40))
    placed = place(cluster(racks, fenced), topic_id, count, copies)
    assert len(placed) == count
    for nodes in placed:
        assert len(set(nodes)) == copies
        assert nodes[0] not in fenced
        assert len({racks[node] or "" for node in nodes}) == min(copies, len({rack or "" for rack in racks.values()}))
    leaders = Counter(nodes[0] for nodes in placed)
    led = [leaders[node] for node in racks if node not in fenced]
    assert max(led) - min(led) <= 1
