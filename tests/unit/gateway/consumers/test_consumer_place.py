"""Which gateway holds a consumer, and which consumers are gone."""

from __future__ import annotations

from collections.abc import Sequence

from tests.worlds.namespace_topic import NamespaceTopic

from duramen.gateway.consumers.consumer_place import (
    ConsumerKey,
    ConsumerPlace,
    GatewayIdentity,
    Places,
    claim,
    consumer_path,
    consumers_of_ended,
    neighbours,
    place_table,
    removals,
    those_of,
)
from duramen.wire.batch import NewRecord

HERE = GatewayIdentity("p2", "http://127.0.0.1:8082", "m")
KEY, OTHER = ConsumerKey("g", "c"), ConsumerKey("g", 'a"/é')
PLACE = ConsumerPlace("c1", "p1", "http://127.0.0.1:8082", "m")


def test_a_record_reads_back_as_it_was_written_until_it_is_removed() -> None:
    topic, table = NamespaceTopic(), place_table()
    topic.append([claim(KEY, PLACE, 1), claim(OTHER, PLACE, 1), (b"x", b"{", (), 1), (None, b"{}", (), 1)])
    topic.run(table.read())
    assert table.records == {str(KEY): PLACE, str(OTHER): PLACE}

    def decide(places: Places) -> Sequence[NewRecord]:
        return removals(places, {str(KEY): "c1", str(OTHER): "another", "none": "c1"}, 2)

    topic.run(table.change(decide))
    topic.run(table.read())
    assert table.records == {str(OTHER): PLACE}


def test_paths_are_quoted() -> None:
    assert consumer_path(OTHER) == "/consumers/g/instances/a%22%2F%C3%A9"


def test_what_a_process_left_behind_and_who_else_is_there() -> None:
    elsewhere = ConsumerPlace("c2", "p3", "http://127.0.0.1:8082", "another machine")
    far = ConsumerPlace("c3", "p4", "https://gateway-2:8082", "another machine")
    own = ConsumerPlace("c4", "p2", "http://127.0.0.1:8082", "m")
    near = ConsumerPlace("c5", "p5", "http://127.0.0.1:8083", "m")
    places = dict(zip("abcde", (PLACE, elsewhere, far, own, near), strict=True))
    assert consumers_of_ended(places, HERE) == {"a": "c1"}
    assert those_of(places, "p2") == {"d": "c4"}
    assert neighbours(places, HERE) == {"p4": "https://gateway-2:8082", "p5": "http://127.0.0.1:8083"}
    assert [HERE.reaches(place) for place in places.values()] == [True, False, True, True, True]
