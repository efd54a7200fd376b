"""Records of namespaces by compare-and-append: races, what is not committed yet, and a topic that is made anew."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest
from tests.worlds.namespace_topic import NamespaceTopic

from duramen.client.protocol.namespace_log import NamespaceLog
from duramen.client.protocol.namespaces import NamespaceRecord, put, removed
from duramen.client.protocol.record_table import AppendTable
from duramen.errors import DeadlineError, KafkaError
from duramen.wire.batch import NewRecord

Records = Mapping[str, NamespaceRecord]


def putting(path: str, **defaults: str) -> Callable[[Records], Sequence[NewRecord]]:
    return lambda records: put(path, defaults, records, 1).rows


def removing(path: str) -> Callable[[Records], Sequence[NewRecord]]:
    return lambda records: removed(path, records, 2)


def read(topic: NamespaceTopic) -> dict[str, NamespaceRecord]:
    log = NamespaceLog()
    topic.run(log.read())
    return log.records


def test_the_last_record_of_a_name_counts() -> None:
    topic = NamespaceTopic()
    log = NamespaceLog()
    for number in range(5):
        topic.run(log.change(putting("a", x=str(number))))
        topic.run(log.change(putting(f"b/{number}")))
    topic.run(log.change(removing("b/3")))
    assert sorted(read(topic)) == ["a", "b/0", "b/1", "b/2", "b/4"]
    assert read(topic)["a"].defaults == {"x": "4"}
    topic.run(log.change(removing("b/3")))
    assert topic.end == 11


def test_a_race_is_decided_anew_from_what_the_other_wrote() -> None:
    topic = NamespaceTopic()
    mine, other = NamespaceLog(), NamespaceLog()
    seen: list[dict[str, str]] = []

    def decide(records: Records) -> Sequence[NewRecord]:
        seen.append({path: record.defaults.get("x", "") for path, record in records.items()})
        return put("a", {"x": "mine"}, records, 1).rows

    others = iter([("a", "theirs"), ("b", "theirs")])

    def race() -> None:
        if given := next(others, None):
            topic.between = lambda: None
            topic.run(other.change(putting(given[0], x=given[1])))
            topic.between = race

    topic.between = race
    topic.run(mine.change(decide))
    assert seen == [{}, {"a": "theirs"}, {"a": "theirs", "b": "theirs"}]
    assert {path: record.defaults["x"] for path, record in read(topic).items()} == {"a": "mine", "b": "theirs"}


@pytest.mark.parametrize("seed", range(20))
def test_writers_that_meet_lose_nothing(seed: int) -> None:
    chance = random.Random(seed)
    topic = NamespaceTopic()
    expected: set[str] = set()

    def writer(name: str) -> Iterator[None]:
        log = NamespaceLog()
        for number in range(6):
            path = f"{name}/{number}"
            is_put = number < 4
            work = log.change(putting(path) if is_put else removing(f"{name}/{number - 4}"))
            try:
                ask = next(work)
                while True:
                    yield
                    ask = work.send(topic.answer(ask))
            except StopIteration:
                (expected.add if is_put else expected.discard)(path if is_put else f"{name}/{number - 4}")

    running = [writer("a"), writer("b"), writer("c")]
    while running:
        each = chance.choice(running)
        try:
            next(each)
        except StopIteration:
            running.remove(each)
    assert set(read(topic)) == expected == {f"{name}/{number}" for name in "abc" for number in (2, 3)}


def test_what_is_appended_but_not_committed_is_waited_for() -> None:
    topic = NamespaceTopic()
    topic.append(put("a", {}, {}, 1).rows)
    topic.append(put("b", {}, {}, 1).rows)
    topic.hidden = 1
    log = NamespaceLog()
    topic.run(log.change(putting("c")))
    assert sorted(read(topic)) == ["a", "b", "c"]
    assert sum(isinstance(ask, AppendTable) for ask in topic.asks) == 2


def test_it_ends_where_what_was_appended_is_never_committed() -> None:
    topic = NamespaceTopic()
    topic.append(put("a", {}, {}, 1).rows)
    topic.hidden, topic.is_stuck = 1, True
    with pytest.raises(DeadlineError, match="try again"):
        topic.run(NamespaceLog().change(putting("c")))


def test_a_topic_that_was_made_anew_is_read_anew() -> None:
    topic = NamespaceTopic()
    log = NamespaceLog()
    topic.run(log.change(putting("a")))
    topic.run(log.change(putting("b")))
    topic.batches, topic.end = [], 0
    topic.run(log.change(putting("c")))
    assert sorted(read(topic)) == ["c"]
    topic.run(log.read())
    assert sorted(log.records) == ["c"]


def test_what_is_in_front_of_the_start_is_gone() -> None:
    topic = NamespaceTopic()
    log = NamespaceLog()
    for name in "abc":
        topic.run(log.change(putting(name)))
    topic.start = 3
    topic.batches = []
    assert read(topic) == {}
    topic.run(NamespaceLog().change(putting("d")))
    assert (sorted(read(topic)), topic.end) == (["d"], 4)


def test_a_gap_that_cannot_be_is_no_end() -> None:
    topic = NamespaceTopic()
    log = NamespaceLog()
    topic.run(log.change(putting("a")))
    topic.run(log.read())
    topic.end += 1
    with pytest.raises(KafkaError, match="nothing came at 1, and the end is 2"):
        topic.run(log.read())
