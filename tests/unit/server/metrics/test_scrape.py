"""A scrape of many numbers: in pieces, between which the loop serves others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily
from tests.worlds.group_broker import COMMIT, Broker

from duramen.server.metrics import scrape
from duramen.server.metrics.exposition import BrokerCollector
from duramen.server.metrics.scrape import PIECE_SAMPLES, Scrape, pieces_of, text_of
from duramen.wire.messages import API


def family(numbers: range) -> GaugeMetricFamily:
    made = GaugeMetricFamily("lines", "A help\nof two lines.", labels=["number"])
    for number in numbers:
        made.add_metric([str(number)], number)
    return made


def test_pieces_of_a_family_are_one_text() -> None:
    other = GaugeMetricFamily("other", "x", 1)
    pieces = [family(range(3)), family(range(3, 5)), other, family(range(2))]
    registry: Any = scrape._Only(family(range(5)))
    whole = generate_latest(registry)
    assert b"".join(text_of(pieces[:2])) == whole
    text = b"".join(text_of(pieces))
    assert text.startswith(whole)
    assert text.count(b"# HELP lines") == 2, "a family that comes again later has its heading"


def test_a_family_without_samples_has_its_heading() -> None:
    assert list(pieces_of([])) == [[]]
    assert [len(piece) for piece in pieces_of(range(PIECE_SAMPLES * 2))] == [PIECE_SAMPLES] * 2


def test_a_scrape_takes_a_turn_for_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "TURN_SECONDS", 0.0)
    turns: list[Callable[[], None]] = []
    reading = Scrape(iter([b"a", b"b", b"c"]), turns.append)
    reading.go_on()
    for number in range(1, 4):
        assert reading.turns == number
        assert not reading.answer.done()
        turns.pop()()
    assert reading.answer.result(0) == b"abc"
    assert turns == []


def test_a_scrape_that_nobody_waits_for_ends() -> None:
    turns: list[Callable[[], None]] = []
    reading = Scrape(iter([b"a"]), turns.append)
    assert reading.answer.cancel()
    reading.go_on()
    assert turns == []


def test_a_bug_in_a_number_is_told() -> None:
    reading = Scrape(_failing(), lambda callback: None)
    reading.go_on()
    with pytest.raises(RuntimeError, match="no such"):
        reading.answer.result(0)


def _failing() -> Any:
    yield b"a"
    raise KeyError("no such")


def test_offsets_that_change_between_two_pieces_do_not_end_a_scrape() -> None:
    broker = Broker()
    broker.image.remove_topic(broker.image.topics["t"])
    broker.add_topic("t", b"t" * 16, 300)
    broker.ask(10, 0, key="g")
    broker.clock.advance(1)
    request = API[COMMIT].request
    for group in ("a", "b", "c"):
        entry = request.OffsetCommitRequestPartition
        partitions = [entry(partition_index=index, committed_offset=5) for index in range(300)]
        topic = request.OffsetCommitRequestTopic(name="t", topic_id=b"t" * 16, partitions=partitions)
        broker.ask(COMMIT, 10, group_id=group, topics=[topic])
    collector = BrokerCollector(broker)  # type: ignore[arg-type]
    numbers = 0
    for number, piece in enumerate(pieces_of(broker.groups.committed_offsets())):
        numbers += len(piece)
        assert len(piece) <= PIECE_SAMPLES
        broker.commit(group_id=f"new{number}")
    assert numbers >= 900
    assert len(list(collector._groups())) == 10, "of a hundred offsets each"
