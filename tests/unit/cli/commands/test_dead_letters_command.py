"""`duramen dead-letters`: what was put aside, why, and back once; with Apache Kafka as with Duramen."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from duramen.cli.commands import dead_letters
from duramen.cli.main import main
from duramen.cli.shared.letters import OffsetSpan, letter_of, span
from duramen.cli.shared.records import Incoming
from duramen.librdkafka import LibraryProducer
from duramen.pipelines.model import dead_letter

Run = Callable[..., Any]
NO_TEXT = b"\xff\x00"


def headers(topic: str, offset: int, reason: str, step: str = "shop.paid") -> list[tuple[str, bytes | None]]:
    said = {
        dead_letter.TOPIC: topic,
        dead_letter.PARTITION: "1",
        dead_letter.OFFSET: str(offset),
        dead_letter.GROUP: step,
        dead_letter.MESSAGE: "the value does not fit the topic's schema",
        dead_letter.REASON: reason,
        dead_letter.VERSION: "v1",
        dead_letter.TIMESTAMP: str(1_700_000_000_000 + offset),
    }
    return [("trace", NO_TEXT), ("none", None), *((name, value.encode()) for name, value in said.items())]


@pytest.fixture
def letters(bootstrap: str, run: Run, topic: str) -> str:
    """A topic of dead letters: of three records, one of which has two, and one that is none."""
    run("topic", "create", topic, "--partitions", "2")
    name = f"dlq.{topic}"
    run("topic", "create", name)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for offset, value, reason, step in (
        (0, NO_TEXT, "corrupt", "shop.paid"),
        (0, NO_TEXT, "corrupt", "shop.sums"),
        (3, b"{}", "paid, named", "shop.paid"),
        (7, None, "named", "shop.paid"),
    ):
        told: Any = headers(topic, offset, reason, step)
        producer.produce(name, value=value, key=b"k", headers=told)
    producer.produce(name, b"no dead letter")
    assert producer.flush(30) == 0
    return name


def records(bootstrap: str, topic: str) -> list[tuple[int, int, bytes | None, Any]]:
    """Partition, time, value and headers of all committed records."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "look", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(2)])
    found, ended = [], 0
    while ended < 2:
        message: Any = consumer.poll(10)
        assert message is not None
        if message.error() is None:
            found.append((message.partition(), message.timestamp()[1], message.value(), message.headers()))
        else:
            ended += 1
    consumer.close()
    return found


def test_they_are_counted_shown_and_put_back_once(run: Run, bootstrap: str, topic: str, letters: str) -> None:
    found = run("dead-letters", "list", letters, "--json")
    assert [(row["step"], row["reason"], row["count"], row["replayed"]) for row in found] == [
        ("shop.paid", "corrupt", 1, 0),
        ("shop.paid", "named", 1, 0),
        ("shop.paid", "paid, named", 1, 0),
        ("shop.sums", "corrupt", 1, 0),
    ]
    assert letters in run("dead-letters", "list")
    (shown,) = run("dead-letters", "show", letters, "--step", "paid", "--reason", "corrupt", "--json")
    assert shown == {
        "dead_letter": {"topic": letters, "partition": 0, "offset": 0},
        "topic": topic,
        "partition": 1,
        "offset": 0,
        "timestamp": 1_700_000_000_000,
        "step": "shop.paid",
        "version": "v1",
        "reason": "corrupt",
        "message": "the value does not fit the topic's schema",
        "replayed": False,
        "key": "k",
        "value_base64": base64.b64encode(NO_TEXT).decode(),
        "headers": [["trace", {"base64": base64.b64encode(NO_TEXT).decode()}], ["none", None]],
    }
    text = run("dead-letters", "show", letters, "--offsets", "0:2-3")
    assert f"{topic}-1@3: paid, named ({letters} 0:2)" in text
    assert r"trace=\xff" in text

    assert "--yes" in run("dead-letters", "replay", letters, code=2)
    assert run("dead-letters", "replay", letters, "--reason", "corrupt", "--yes", "--json") == [
        {"topic": topic, "records": 1}
    ]
    own = [("trace", NO_TEXT), ("none", None)]
    assert records(bootstrap, topic) == [(1, 1_700_000_000_000, NO_TEXT, own)]
    assert f"{topic}: 2 records put back" in run("dead-letters", "replay", letters, "--yes")
    assert run("dead-letters", "replay", letters, "--yes", "--json") == []
    assert [(at, value) for at, _, value, _ in records(bootstrap, topic)] == [(1, NO_TEXT), (1, b"{}"), (1, None)]
    assert {row["replayed"] for row in run("dead-letters", "list", letters, "--json")} == {1}


def test_a_replay_that_fails_puts_nothing_back(
    run: Run, bootstrap: str, topic: str, letters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("topic", "create", f"{topic}-mended")
    failing = [True]
    committed = LibraryProducer.commit_transaction

    def commit(self: LibraryProducer, *arguments: Any) -> None:
        if failing:
            failing.clear()
            raise KafkaException("cut off")
        committed(self, *arguments)

    monkeypatch.setattr(LibraryProducer, "commit_transaction", commit, raising=False)
    told = run("dead-letters", "replay", letters, "--to", f"{topic}-mended", "--yes", code=1)
    assert "0 records put back; another replay goes on with the others" in told
    assert run("dead-letters", "replay", letters, "--to", f"{topic}-mended", "--yes", "--json") == [
        {"topic": f"{topic}-mended", "records": 3}
    ]
    assert records(bootstrap, topic) == []


def test_what_cannot_be_is_told_in_one_line(run: Run, topic: str, letters: str) -> None:
    assert "no such topic" in run("dead-letters", "show", topic + "-not", code=1)
    assert "expected PARTITION:OFFSET" in run("dead-letters", "show", letters, "--offsets", "17", code=2)
    assert "no such topic" in run("dead-letters", "replay", letters, "--to", topic + "-not", "--yes", code=1)
    assert run("dead-letters", "list", topic, "--json") == []


@pytest.mark.parametrize("command", [("show",), ("replay", "--yes")])
def test_who_asks_for_what_there_is_none_of_hears_what_there_is(
    letters: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dead-letters", *command, letters, "--reason", "corupt"]) == 0
    said = capsys.readouterr().err
    assert "of these; there are the reasons corrupt, named, paid and the steps shop.paid, shop.sums" in said


def test_places_and_letters_are_read() -> None:
    assert (span("0:17"), span("2:3-9")) == (OffsetSpan(0, 17, 17), OffsetSpan(2, 3, 9))
    record = Incoming("dlq.shop", 0, 5, 1, None, b"x", [])
    assert letter_of(record) is None
    assert letter_of(record._replace(headers=[(dead_letter.TOPIC, b"orders")])) is None
    told: Any = [(name, value) for name, value in headers("orders", 3, "corrupt") if name != dead_letter.TIMESTAMP]
    letter = letter_of(record._replace(headers=told))
    assert letter is not None
    assert (letter.source, letter.timestamp_ms, letter.version) == ("orders-1@3", None, "v1")
    assert json.loads(json.dumps(dead_letters._as_json(letter, {"orders-1@3"})))["replayed"] is True
