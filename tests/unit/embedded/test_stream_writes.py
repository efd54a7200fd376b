"""Conditions, writers and closing in an embedded log; a node serves the same directory later."""

from __future__ import annotations

from pathlib import Path

import pytest

import duramen
from duramen.embedded import Writer
from duramen.errors import ErrorCode, KafkaError


def refusal(caught: pytest.ExceptionInfo[KafkaError]) -> ErrorCode:
    return caught.value.code


def test_writers_conditions_and_closing(tmp_path: Path) -> None:
    record = duramen.Record(value=b"v")
    with duramen.open(tmp_path) as log:
        topic = log.topic("t", partitions=1)
        assert topic.append([record, record], expected_offset=0) == [0, 1]
        with pytest.raises(KafkaError) as caught:
            topic.append([record], expected_offset=0)
        assert refusal(caught) is ErrorCode.END_IS_ELSEWHERE
        writer = Writer("w")
        for number in range(7):
            assert topic.append([record, record], writer=writer) == [2 + 2 * number, 3 + 2 * number]
        assert writer.sequence == 7
    with duramen.open(tmp_path) as log:
        topic = log.topic("t")
        assert topic.append([record, record], writer=Writer("w", sequence=6)) == [14, 15]
        assert topic.append([record], writer=Writer("w")) == [-1]
        with pytest.raises(KafkaError) as caught:
            topic.append([record], writer=Writer("w", sequence=9))
        assert refusal(caught) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert topic.close_stream(0, expected_offset=16) == 17
        assert topic.close_stream(0) == 17
        for refused in (lambda: topic.append([record]), lambda: topic.append([record], writer=Writer("w", sequence=7))):
            with pytest.raises(KafkaError) as caught:
                refused()
            assert refusal(caught) is ErrorCode.POLICY_VIOLATION
        assert len(list(topic.read(0, follow=False))) == 16


def test_an_end_names_the_history_in_front_of_it(tmp_path: Path) -> None:
    record = duramen.Record(value=b"v")
    with duramen.open(tmp_path) as log:
        topic = log.topic("t", partitions=1)
        assert topic.log_end(0) == (0, -1)
        assert topic.append([record], expected_offset=topic.log_end(0)) == [0]
        end = topic.log_end(0)
        for act in (lambda of: topic.append([record], expected_offset=of), lambda of: topic.close_stream(0, of)):
            with pytest.raises(KafkaError) as caught:
                act(end._replace(epoch=end.epoch + 1))
            assert refusal(caught) is ErrorCode.OFFSET_OUT_OF_RANGE
        assert topic.append([record], expected_offset=duramen.LogEnd(*end)) == [1]
        assert topic.close_stream(0, topic.log_end(0)) == 3


def test_an_exclusive_writer(tmp_path: Path) -> None:
    record = duramen.Record(value=b"v")
    with duramen.open(tmp_path) as log:
        topic = log.topic("t", partitions=1, configs={"duramen.writer.exclusive": "true"})
        first = topic.open_writer(0, "a")
        assert topic.append([record, record], writer=first) == [1, 2]
        assert first.sequence == 2
        second = topic.open_writer(0, "b")
        for writer in (first, None, Writer("a")):
            with pytest.raises(KafkaError) as caught:
                topic.append([record], 0, writer=writer)
            assert refusal(caught) is ErrorCode.PRODUCER_FENCED
        assert topic.append([record], writer=second) == [4]
        with pytest.raises(KafkaError) as caught:
            topic.release_writer(0, first)
        assert refusal(caught) is ErrorCode.PRODUCER_FENCED
        with pytest.raises(KafkaError) as caught:
            topic.close_stream(0, writer=first)
        assert refusal(caught) is ErrorCode.PRODUCER_FENCED
        topic.release_writer(0, second)
        with pytest.raises(KafkaError):
            topic.append([record], writer=second)
        assert topic.close_stream(0, writer=topic.open_writer(0, "c")) == 8
