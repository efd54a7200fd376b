"""`duramen group`: both types of groups, their settings, and what a reset could not take as it was said."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from duramen.cli.commands.group import in_ranges
from duramen.cli.main import main
from duramen.client import ANY, Cluster
from duramen.client.protocol.routes import CoordinatorKey
from duramen.wire.messages import API

HEARTBEAT = 68


def test_a_reset_tells_of_a_time_without_records_and_of_a_new_group(
    run: Callable[..., Any], topic: str, lines: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    run("produce", topic, lines("a"))
    reset = ["group", "reset-offsets", f"g-{topic}", "--topic", topic]
    assert main([*reset, "--to-datetime", "@9000000000000"]) == 0
    said = capsys.readouterr().err
    assert said.startswith("no record is of that time or later; the end is taken\n")
    assert "there was no group" not in said
    assert main([*reset, "--to-datetime", "1h", "--execute"]) == 0
    assert capsys.readouterr().err == f"g-{topic} was moved\nthere was no group g-{topic} before\n"
    assert main([*reset, "--to-earliest", "--execute"]) == 0
    assert capsys.readouterr().err == f"g-{topic} was moved\n"


def test_a_group_s_own_settings(
    run: Callable[..., Any], topic: str, lines: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    group = f"g-{topic}"
    run("produce", topic, lines("a"))
    run("consume", topic, "--group", group)
    assert run("group", "describe", group, "--json")[0]["settings"] == {}
    assert main(["group", "alter", group, "--set", "consumer.session.timeout.ms=50000"]) == 0
    assert capsys.readouterr().err.startswith(f"changed 1 setting of group {group}\n")
    assert run("group", "describe", group, "--json")[0]["settings"] == {"consumer.session.timeout.ms": "50000"}
    assert "    consumer.session.timeout.ms=50000\n" in run("group", "describe", group)
    told = {each["name"]: each for each in run("config", "describe", "--group", group, "--all", "--json")}
    assert told["consumer.session.timeout.ms"]["source"] == "dynamic-group"
    assert told["consumer.heartbeat.interval.ms"] == {
        "name": "consumer.heartbeat.interval.ms",
        "value": "5000",
        "source": "default",
        "read_only": False,
    }
    assert [each["name"] for each in run("config", "describe", "--group", group, "--json")] == [
        "consumer.session.timeout.ms"
    ]
    run("config", "alter", "--group", group, "--set", "consumer.heartbeat.interval.ms=6000")
    run("group", "alter", group, "--delete", "consumer.session.timeout.ms")
    assert run("group", "describe", group, "--json")[0]["settings"] == {"consumer.heartbeat.interval.ms": "6000"}


def test_groups_of_both_protocols(
    run: Callable[..., Any], topic: str, lines: Callable[..., str], bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run("produce", topic, lines("a"))
    run("consume", topic, "--group", f"classic-{topic}")
    group = f"new-{topic}"
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": "consumer"})
    consumer.subscribe([topic])
    deadline = time.monotonic() + 60
    while not consumer.assignment():
        assert time.monotonic() < deadline
        consumer.poll(0.1)
    listed = {row["group"]: (row["type"], row["state"], row["members"]) for row in run("group", "list", "--json")}
    assert listed[f"classic-{topic}"] == ("classic", "Empty", 0)
    assert listed[group] == ("consumer", "Stable", 1)
    (described,) = run("group", "describe", group, "--json")
    (member,) = described["members"]
    assert (described["type"], described["assignor"]) == ("consumer", "uniform")
    assert member["partitions"] == member["target"] == [f"{topic}:0"]
    state = run("group", "describe", group, "--state")
    assert state.startswith(f"{group}: consumer, Stable, members 1, lag -, assignor uniform")
    assert len(state.splitlines()) == 1
    assert f"{topic}:0" in run("group", "describe", group, "--members").splitlines()[-1]
    assert "not both" in run("group", "describe", group, "--members", "--state", code=2)
    lower = ["features", "downgrade", "--feature", "group.version=0"]
    assert main([*lower, "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert "of the consumer protocol with members: " in said
    assert group in said
    assert main(lower) == 2, "nobody is there to be asked"
    assert "add --yes" in capsys.readouterr().err
    levels = {each["feature"]: each["level"] for each in run("features", "describe", "--json")}
    assert levels["group.version"] == 1
    consumer.close()


def test_one_name_that_is_wrong_does_not_hide_the_others(
    run: Callable[..., Any], topic: str, lines: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    group = f"g-{topic}"
    run("produce", topic, lines("a"))
    run("consume", topic, "--group", group)
    assert main(["group", "describe", "nosuch", group, "neither"]) == 1
    said = capsys.readouterr()
    assert said.out.startswith(f"{group}: classic, Empty, members 0, lag 0\n")
    assert said.err.endswith("there is no group nosuch, neither; `duramen group list` shows those there are.\n")
    assert main(["group", "describe", "nosuch", group, "--json"]) == 1
    assert [each["group"] for each in json.loads(capsys.readouterr().out)] == [group]


def test_settings_of_a_group_that_is_not_there_or_classic(
    run: Callable[..., Any], topic: str, lines: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    run("produce", topic, lines("a"))
    run("consume", topic, "--group", f"g-{topic}")
    for group, words in (
        (f"none-{topic}", f"there is no group none-{topic} yet"),
        (f"g-{topic}", f"g-{topic} is a classic group now"),
    ):
        assert main(["group", "alter", group, "--set", "consumer.session.timeout.ms=50000"]) == 0
        assert words in capsys.readouterr().err


def test_offsets_of_an_open_transaction_are_pending(
    run: Callable[..., Any], topic: str, lines: Callable[..., str], bootstrap: str
) -> None:
    """And where nothing is committed there is no lag."""
    group = f"p-{topic}"
    run("produce", topic, lines("a"))
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": "consumer"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": group})
    producer.init_transactions(30)
    consumer.subscribe([topic])
    deadline = time.monotonic() + 60
    while not consumer.assignment():
        assert time.monotonic() < deadline
        consumer.poll(0.1)
    (told,) = run("group", "describe", group, "--json")
    assert (told["lag"], told["partitions"][0]["lag"], told["pending"]) == (None, None, [])
    assert told["partitions"][0]["member_id"] == told["members"][0]["member_id"]
    producer.begin_transaction()
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, 1)], consumer.consumer_group_metadata(), 30)
    shown = run("group", "describe", group)
    assert ", members 1, lag -" in shown
    assert f"pending in an open transaction: {topic}:0;" in shown
    producer.commit_transaction(30)
    (told,) = run("group", "describe", group, "--json")
    assert (told["lag"], told["pending"]) == (0, [])
    producer.begin_transaction()
    other = f"other-{topic}"
    consumer.close()
    reader = Consumer({**settings, "group.id": other, "group.protocol": "classic"})
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, 1)], reader.consumer_group_metadata(), 30)
    (told,) = run("group", "describe", other, "--json")
    assert (told["partitions"], told["pending"]) == ([], [f"{topic}:0"]), "its first one"
    producer.abort_transaction(30)
    reader.close()


def test_partitions_are_told_in_ranges() -> None:
    assert in_ranges(f"t:{number}" for number in (0, 1, 2, 9, 10, 12)) == ["t:0-2,9-10,12"]
    assert in_ranges(["t:0", "u:1", "u:2"]) == ["t:0", "u:1-2"]
    assert in_ranges([]) == []


def test_group_settings_that_are_refused(run: Callable[..., Any], topic: str) -> None:
    alter = ("group", "alter", f"g-{topic}")
    assert "nothing to change" in run(*alter, code=2)
    said = run(*alter, "--set", "consumer.session.timeout.ms=1", code=1)
    assert "must be greater than or equal to group.consumer.min.session.timeout.ms" in said
    assert "Unknown group config name: no.such" in run(*alter, "--set", "no.such=1", code=1)
    assert f"group g-{topic} has no setting no.such" in run(*alter, "--unset", "no.such", code=1)
    assert "give one of --topic, --node and --group" in run("config", "describe", "-g", "a", "-t", "b", code=2)


def test_a_group_that_assigns_or_reconciles_says_so(run: Callable[..., Any], topic: str, bootstrap: str) -> None:
    """librdkafka knows neither state."""
    group = f"moving-{topic}"
    run("topic", "create", topic, "--partitions", "2")
    with Cluster(bootstrap) as client:

        def beat(member: str) -> Any:
            request = API[HEARTBEAT].request.new(
                group_id=group,
                member_id=member,
                member_epoch=0,
                rebalance_timeout_ms=60_000,
                subscribed_topic_names=[topic],
                topic_partitions=[],
            )
            return client.call(CoordinatorKey(group), HEARTBEAT, request, code_of=lambda answer: answer.error_code)

        assert beat("a" * 22).assignment.topic_partitions
        assert not beat("b" * 22).assignment.topic_partitions  # it waits for the next assignment, or for the first one
        rows = {row["group"]: row for row in run("group", "list", "--json")}
        state = rows[group]["state"]
        assert (state in ("Assigning", "Reconciling"), rows[group]["members"]) == (True, 2), state
        assert run("group", "describe", group, "--json")[0]["state"] == state


def test_groups_that_java_s_programs_leave(
    run: Callable[..., Any], topic: str, lines: Callable[..., str], bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Metadata of any length with their offsets, which confluent-kafka reads on behind; a group without a name."""
    run("produce", topic, lines("a"))
    message = API[8].request
    with Cluster(bootstrap) as client:
        for number in range(60):
            partition = message.OffsetCommitRequestPartition(
                partition_index=0, committed_offset=1, committed_metadata="m" * (number % 40)
            )
            places = [message.OffsetCommitRequestTopic(name=topic, partitions=[partition])]
            group = f"{topic}-{number}" if number else ""
            body = message.new(group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=places)
            told = client.call(ANY, 8, body, highest=9)
            assert told.topics[0].partitions[0].error_code == 0
    for _ in range(3):
        assert main(["group", "list", "--json"]) == 0
        said = capsys.readouterr()
        assert "a group without a name is left out" in said.err
        found = {each["group"]: each["lag"] for each in json.loads(said.out)}
        assert [found[f"{topic}-{number}"] for number in range(1, 60)] == [0] * 59
        assert "" not in found
    assert main(["group", "reset-offsets", f"{topic}-1", "--topic", topic, "--to-earliest", "--execute"]) == 0
