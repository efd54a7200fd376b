"""`duramen consume --group` where a transaction that is open has the group's offsets."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from duramen.cli.main import main


@pytest.fixture
def name() -> str:
    return f"pending-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def undecided(bootstrap: str, run: Callable[..., Any], name: str) -> Iterator[str]:
    """A group and a topic of this name; a transaction has the group's offset, and has not ended."""
    run("topic", "create", name)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"open")
    producer.flush(30)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": name})
    producer.send_offsets_to_transaction([TopicPartition(name, 0, 1)], consumer.consumer_group_metadata(), 30)
    yield name
    producer.abort_transaction(30)
    consumer.close()


@pytest.mark.parametrize("topics", [1, 2])
def test_it_is_said_what_is_waited_for(run: Callable[..., Any], undecided: str, topics: int) -> None:
    """A page of lines came, after three times --timeout: the library says only that time is up."""
    more = f"{undecided}-more"
    run("topic", "create", more)
    began = time.monotonic()
    told = run("consume", *[undecided, more][:topics], "--group", undecided, "--timeout", "1", code=1)
    assert f"the offsets of group {undecided} are pending in an open transaction" in told
    assert time.monotonic() - began < 8, "--timeout is kept, but for joining and leaving the group"


def test_who_reads_all_waits_for_no_transaction(run: Callable[..., Any], undecided: str) -> None:
    everything = ("--isolation", "read_uncommitted", "--timeout", "5")
    assert run("consume", undecided, "--group", undecided, *everything) == "open\n"


@pytest.mark.parametrize("member", [(), ("--group", "another"), ("--count", "5"), ("--last", "3")])
def test_who_stops_before_an_open_transaction_is_told(
    run: Callable[..., Any], capsys: pytest.CaptureFixture[str], undecided: str, member: tuple[str, ...]
) -> None:
    """Three of five records came, and nothing that said why."""
    where = [f"{word}-{undecided}" if word == "another" else word for word in member]
    assert main(["consume", undecided, *where]) == 0
    assert capsys.readouterr().err == f"{undecided}-0: stopped at 0, 1 offset behind it waits for an open transaction\n"
    assert main(["consume", undecided, "--isolation", "read_uncommitted"]) == 0
    assert capsys.readouterr().err == ""
