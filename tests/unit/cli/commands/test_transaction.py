"""`duramen transaction`: what is open, who has it, and how it is ended; with Apache Kafka as with Duramen."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from duramen.cli.commands import transaction
from duramen.cli.main import main
from duramen.cli.shared.transaction_look import TransactionLook
from duramen.client import Cluster
from duramen.model import TopicPartition

SECONDS = 30.0


@pytest.fixture
def transactional_id() -> str:
    return f"id-{uuid.uuid4()}"


@pytest.fixture
def opened(bootstrap: str, run: Callable[..., Any], topic: str, transactional_id: str) -> Producer:
    """A producer with an open transaction in both partitions of the topic."""
    run("topic", "create", topic, "--partitions", "2")
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0, "log_level": 0}
    )
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    for partition in range(2):
        producer.produce(topic, b"x", partition=partition)
    assert producer.flush(SECONDS) == 0
    return producer


@pytest.mark.usefixtures("opened")
def test_what_is_open_is_listed_and_described(run: Callable[..., Any], topic: str, transactional_id: str) -> None:
    (listed,) = run("transaction", "list", "--pattern", transactional_id, "--json")
    assert (listed["transactional_id"], listed["state"]) == (transactional_id, "Ongoing")
    assert run("transaction", "list", "--state", "Empty", "--pattern", transactional_id, "--json") == []
    assert run("transaction", "list", "--longer-than", "1h", "--pattern", transactional_id, "--json") == []
    (told,) = run("transaction", "describe", transactional_id, "--json")
    assert told["state"] == "Ongoing"
    assert told["producer_id"] == listed["producer_id"]
    assert told["partitions"] == [{"topic": topic, "partition": number} for number in range(2)]
    assert told["coordinator"] == listed["coordinator"]
    assert told["started_ms"] == listed["started_ms"] > 0
    text = run("transaction", "describe", transactional_id)
    assert text.startswith(f"{transactional_id}: Ongoing\n")
    assert "open since" in text
    row = next(line for line in run("transaction", "list").splitlines() if line.startswith(transactional_id))
    assert str(told["producer_id"]) in row.split()
    assert "second" in row


@pytest.mark.usefixtures("opened")
def test_the_producers_of_a_partition(run: Callable[..., Any], topic: str, transactional_id: str) -> None:
    place = ("transaction", "describe-producers", "--topic", topic, "--partition", "0")
    (listed,) = run("transaction", "list", "--pattern", transactional_id, "--json")
    (told,) = run(*place, "--json")
    assert (told["producer_id"], told["last_sequence"], told["start_offset"]) == (listed["producer_id"], 0, 0)
    assert run(*place).splitlines()[1].split()[-1] == "0"
    run("transaction", "abort", transactional_id, "--yes")
    (told,) = run(*place, "--json")
    assert (told["start_offset"], told["coordinator_epoch"]) == (None, 0)
    said = run("transaction", "describe-producers", "--topic", topic, "--partition", "9", code=1)
    assert "no such topic or partition" in said or "no such partition" in said
    nowhere = ("describe-producers", "--partition", "0"), ("find-hanging",)
    for words in nowhere:
        said = run("transaction", *words, "--topic", "nowhere", code=1)
        assert (
            said
            == "duramen: nowhere: there is no such topic or partition; `duramen topic list` shows those there are.\n"
        )


def test_an_expression_that_is_none(run: Callable[..., Any]) -> None:
    said = run("transaction", "list", "--pattern", "(", code=2)
    assert "--pattern (: it is not an expression" in said


@pytest.mark.usefixtures("opened")
def test_one_id_that_is_wrong_does_not_hide_the_others(
    run: Callable[..., Any], transactional_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run("transaction", "list")
    assert main(["transaction", "describe", "nobody", transactional_id]) == 1
    said = capsys.readouterr()
    assert said.out.startswith(f"{transactional_id}: Ongoing\n")
    assert "there is no transactional id nobody" in said.err


def test_an_unknown_id_is_said_to_be_one(run: Callable[..., Any]) -> None:
    assert "there is no transactional id nobody" in run("transaction", "describe", "nobody", code=1)
    assert "there is no transactional id nobody" in run("transaction", "abort", "nobody", code=1)


def test_an_open_transaction_is_aborted_after_asking(
    opened: Producer,
    run: Callable[..., Any],
    transactional_id: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["transaction", "abort", transactional_id]) == 2, "nobody is there to be asked"
    assert "add --yes" in capsys.readouterr().err
    assert run("transaction", "describe", transactional_id, "--json")[0]["state"] == "Ongoing"
    assert main(["transaction", "abort", transactional_id, "--yes"]) == 0
    said = capsys.readouterr().err
    assert "2 partitions" in said
    assert f"aborted {transactional_id}" in said
    assert run("transaction", "describe", transactional_id, "--json")[0]["state"] == "CompleteAbort"
    with pytest.raises(KafkaException):
        opened.commit_transaction(SECONDS)
    assert "nothing is open" in run("transaction", "abort", transactional_id, "--yes", code=1)


@pytest.mark.usefixtures("opened")
def test_what_its_coordinator_knows_does_not_hang(
    bootstrap: str, run: Callable[..., Any], topic: str, transactional_id: str
) -> None:
    time.sleep(0.1)
    assert run("transaction", "find-hanging", "--topic", topic, "--longer-than", "0ms", "--json") == []
    with Cluster(bootstrap) as client:
        (first, _) = TransactionLook(client).open_in([TopicPartition(topic, number) for number in range(2)])
    where = ("--partition", f"{topic}:0", "--start-offset", str(first.start_offset))
    said = run("transaction", "abort", *where, "--yes", code=1)
    assert "it does not hang" in said
    assert f"duramen transaction abort {transactional_id}" in said


class Hanging(TransactionLook):
    """One whose coordinators know nothing: how a transaction hangs that this node would not let begin."""

    def listed(self, *args: Any, **filters: Any) -> list[Any]:
        return []


@pytest.mark.usefixtures("opened")
def test_one_that_nobody_will_end_is_found_and_aborted(
    run: Callable[..., Any],
    topic: str,
    transactional_id: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(transaction, "TransactionLook", Hanging)
    time.sleep(0.1)
    found = run("transaction", "find-hanging", "--topic", topic, "--longer-than", "0ms", "--json")
    assert [(each["topic"], each["partition"], each["transactional_id"]) for each in found] == [
        (topic, 0, None),
        (topic, 1, None),
    ]
    where = ("--partition", f"{topic}:0", "--start-offset", str(found[0]["start_offset"]))
    assert main(["transaction", "abort", *where, "--yes"]) == 0
    assert f"in {topic}-0" in capsys.readouterr().err
    left = run("transaction", "find-hanging", "--topic", topic, "--longer-than", "0ms", "--json")
    assert [each["partition"] for each in left] == [1]
    assert "no transaction that begins" in run("transaction", "abort", *where, "--yes", code=1)
    run("transaction", "abort", transactional_id, "--yes")


@pytest.mark.parametrize(
    "words",
    [(), ("id", "--partition", "t:0", "--start-offset", "1"), ("--partition", "t:0"), ("--start-offset", "1")],
)
def test_abort_says_which_of_its_two_forms_are_meant(run: Callable[..., Any], words: tuple[str, ...]) -> None:
    assert "say which" in run("transaction", "abort", *words, "--yes", code=2).splitlines()[-1]


@pytest.mark.usefixtures("opened")
def test_a_topic_tells_how_far_readers_of_committed_records_read(
    run: Callable[..., Any], topic: str, transactional_id: str
) -> None:
    (told,) = run("topic", "describe", topic, "--json")
    assert [(each["last_stable_offset"], each["end_offset"]) for each in told["partitions"]] == [(0, 1), (0, 1)]
    assert "STABLE" in run("topic", "describe", topic)
    run("transaction", "abort", transactional_id, "--yes")
    (told,) = run("topic", "describe", topic, "--json")
    assert [(each["last_stable_offset"], each["end_offset"]) for each in told["partitions"]] == [(2, 2), (2, 2)]
    assert "STABLE" not in run("topic", "describe", topic)


@pytest.mark.parametrize("command", ["list", "find-hanging"])
@pytest.mark.parametrize("given", ["-5m", "5", "2020-01-01T00:00:00Z", "5m ago", "latest", ""])
def test_how_long_is_a_duration(run: Callable[..., Any], command: str, given: str) -> None:
    """A time in the past, and nonsense, gave an empty list and rc 0."""
    assert "is no duration like 30s, 5m or 2h" in run("transaction", command, "--longer-than", given, code=2)
