"""Transactions laid into a partition's log as batches and markers, without producers or a coordinator."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from duramen.embedded import Topic
from duramen.model import TopicPartition
from duramen.partition.replica.partition import Partition
from duramen.wire.batch import ABORT, COMMIT, NewRecord, build_batch, build_marker

Step = tuple[str, int, Sequence[bytes]]
"""What is written: "write" of a producer in a transaction, its "commit" or "abort", or "plain" records of nobody."""

STORY: tuple[Step, ...] = (
    ("write", 1, [b"committed-1", b"committed-2"]),  # 0, 1
    ("write", 2, [b"aborted-1", b"aborted-2"]),  # 2, 3
    ("plain", -1, [b"plain-1"]),  # 4
    ("abort", 2, []),  # 5
    ("write", 1, [b"committed-3"]),  # 6
    ("commit", 1, []),  # 7
    ("write", 2, [b"committed-4"]),  # 8
    ("commit", 2, []),  # 9
    ("write", 3, [b"aborted-3"]),  # 10
    ("abort", 3, []),  # 11
    ("plain", -1, [b"plain-2"]),  # 12
    ("write", 4, [b"open-1"]),  # 13
    ("plain", -1, [b"behind-the-open-one"]),  # 14
)
"""Every kind of record that a reader can meet; the last stable offset is 13."""
STABLE = 13
END = 15
COMMITTED = {
    0: b"committed-1", 1: b"committed-2", 4: b"plain-1", 6: b"committed-3", 8: b"committed-4", 12: b"plain-2",
}  # fmt: skip
"""What readers of committed records see, by offset."""
UNCOMMITTED = {
    **COMMITTED, 2: b"aborted-1", 3: b"aborted-2", 10: b"aborted-3", 13: b"open-1", 14: b"behind-the-open-one",
}  # fmt: skip


def lay(
    partition: Partition, story: Sequence[Step] = STORY, now_ms: int = 1_760_000_000_000, key: bytes = b"k"
) -> None:
    """Append the steps; what else makes them durable and committed is the caller's."""
    sequences: dict[int, int] = {}
    for what, producer, values in story:
        if what in ("commit", "abort"):
            partition.append_local(build_marker(producer, 0, COMMIT if what == "commit" else ABORT, 0, now_ms), now_ms)
            continue
        rows: list[NewRecord] = [(key, value, [], now_ms) for value in values]
        if what == "plain":
            partition.append_local(build_batch(rows), now_ms)
            continue
        sequence = sequences.get(producer, 0)
        sequences[producer] = sequence + len(rows)
        batch = build_batch(rows, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True)
        partition.append_local(batch, now_ms)


def write(topic: Topic, story: Sequence[Step] = STORY, key: bytes = b"k") -> None:
    """Append the steps to the first partition of an embedded log's topic, durably."""
    synced = threading.Event()

    def append() -> None:
        store = topic._log._store
        found = store.partition_by_id(topic.topic_id, 0)
        assert found is not None
        lay(found, story, key=key)
        store.when_synced(TopicPartition(topic.name, 0), lambda _: synced.set())
        store.commit_soon()

    topic._turn.take(append)
    assert synced.wait(10)
