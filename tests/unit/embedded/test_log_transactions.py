"""An embedded log that holds transactions: its readers get what was committed, unless they ask for all."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.transactional_log import COMMITTED, END, STABLE, UNCOMMITTED, write

import duramen
from duramen.embedded import Topic


def found(records: Any) -> dict[int, bytes]:
    return {record.offset: record.value for record in records}


@pytest.mark.parametrize("again", [False, True], ids=["hot", "opened-again"])
def test_readers_get_what_was_committed_and_nothing_behind_an_open_transaction(tmp_path: Path, again: bool) -> None:
    with duramen.open(tmp_path) as log:
        write(log.topic("events"))
        if not again:
            check(log.topic("events"))
    with duramen.open(tmp_path) as log:
        check(log.topic("events"))


def check(topic: Topic) -> None:
    assert found(topic.read(0)) == COMMITTED
    assert found(topic.read(0, isolation="read_uncommitted")) == UNCOMMITTED
    assert (topic.end_offset(0), topic.end_offset(0, "read_uncommitted")) == (STABLE, END)
    for start in range(END + 1):
        seen = found(topic.read(0, start))
        assert seen == {offset: value for offset, value in COMMITTED.items() if offset >= start}, start
        seen = found(topic.read(0, start, isolation="read_uncommitted"))
        assert seen == {offset: value for offset, value in UNCOMMITTED.items() if offset >= start}, start
    assert found(topic.read(0, 1, end=5)) == {1: COMMITTED[1], 4: COMMITTED[4]}


def test_a_following_reader_goes_on_when_the_transaction_ends(tmp_path: Path) -> None:
    with duramen.open(tmp_path) as log:
        topic = log.topic("events")
        write(topic)
        reader = topic.read(0, start=12, follow=True)
        assert next(reader).offset == 12
        got: list[Any] = []
        waiting = threading.Thread(target=lambda: got.append(next(reader)), daemon=True)
        waiting.start()
        waiting.join(0.2)
        assert not got
        assert waiting.is_alive()
        write(topic, (("abort", 4, []),))
        waiting.join(10)
        assert [(record.offset, record.value) for record in got] == [(14, b"behind-the-open-one")]


def test_a_reader_of_everything_follows_past_an_open_transaction(tmp_path: Path) -> None:
    with duramen.open(tmp_path) as log:
        topic = log.topic("events")
        write(topic)
        reader = topic.read(0, start=14, follow=True, isolation="read_uncommitted")
        assert next(reader).offset == 14
        assert topic.append([duramen.Record(b"more")]) == [15]
        assert next(reader).value == b"more"


def test_looking_for_a_time_ends_at_the_last_stable_offset(tmp_path: Path) -> None:
    with duramen.open(tmp_path) as log:
        topic = log.topic("events")
        write(topic)
        topic.append([duramen.Record(b"late", timestamp_ms=1_770_000_000_000)])
        assert topic.offset_at(0, 1_765_000_000_000) is None
        assert topic.offset_at(0, 1_765_000_000_000, "read_uncommitted") == 15


@pytest.mark.parametrize("wrong", [None, "committed", 1, b"read_committed"])
def test_another_isolation_is_refused_before_anything_is_read(tmp_path: Path, wrong: Any) -> None:
    with duramen.open(tmp_path) as log:
        topic = log.topic("events")
        for use in (
            lambda: next(topic.read(0, isolation=wrong)),
            lambda: topic.end_offset(0, wrong),
            lambda: topic.offset_at(0, 1, wrong),
        ):
            with pytest.raises(TypeError, match="isolation is 'read_committed' or 'read_uncommitted'"):
                use()
