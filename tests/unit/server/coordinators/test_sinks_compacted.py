"""A sink writes to a compacted topic while it is compacted and the power goes: nothing is lost or doubled."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.worlds.broker_world import NOW, InProcess, after_power_cut
from tests.worlds.sink_client import Sink

from duramen.wire.batch import batches, build_batch, records
from duramen.wire.messages import API

TOPIC = "c"
KEYS = [b"a", b"b", b"c", b"d"]
SETTINGS = {"log_cleaner_backoff_ms": "200", "log_flush_offset_checkpoint_interval_ms": "200", "log_roll_ms": "400"}


class Written:
    """What was committed: how many records, and the last of each key."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.count = 0
        self.last: dict[bytes, bytes] = {}

    def stage(self, sink: Sink, batch_id: int) -> list[int]:
        """A batch of several pieces, as if it were committed."""
        handles = []
        for task in range(self.random.randint(1, 3)):
            rows = []
            for number in range(self.random.randint(1, 8)):
                key, value = self.random.choice(KEYS), b"%d/%d/%d" % (batch_id, task, number)
                rows.append((key, value + b"." * self.random.choice((0, 200)), (), NOW))
                self.last[key] = rows[-1][1]
            self.count += len(rows)
            answer = sink.stage(batch_id, (TOPIC, 0, bytes(build_batch(rows))))
            handles.append(answer.topics[0].partitions[0].handle)
        return handles


def read(server: InProcess) -> tuple[list[tuple[bytes, bytes]], int]:
    """Key and value of every record that is left, and the log's end."""
    line, request, offset = server.connect(), API[1].request, 0
    found: list[tuple[bytes, bytes]] = []
    while True:
        part = request.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        topics = [request.FetchTopic(topic=TOPIC, partitions=[part])]
        answer = line.call(1, 12, max_wait_ms=0, min_bytes=1, topics=topics).responses[0].partitions[0]
        assert answer.error_code == 0, answer
        data = memoryview(answer.records or b"")
        for position, header in batches(data):
            for record in records(data[position:], header, max_bytes=1 << 20):
                if record.offset >= offset:
                    found.append((bytes(record.key), bytes(record.value)))
            offset = header.next_offset
        if not data:
            return found, answer.high_watermark


def check(server: InProcess, written: Written) -> int:
    """How many records are left. Offsets count what was ever appended, whatever compaction has taken away."""
    found, end = read(server)
    assert end == written.count
    assert len(set(found)) == len(found)
    assert dict(found) == written.last
    assert [event for event, _ in server.events if event == "sink-records-missing"] == []
    return len(found)


@pytest.mark.parametrize("seed", range(3))
def test_a_compacted_topic_has_every_batch_once_over_compaction_and_power_cuts(seed: int) -> None:
    server, written = InProcess(**SETTINGS), Written(seed)
    configs: dict[str, Any] = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01"}
    server.connect().create_topic(TOPIC, internal_segment_bytes="2000", **configs)
    sink, compacted = Sink(server), 0
    for batch_id in range(40):
        handles = written.stage(sink, batch_id)
        if written.random.random() < 0.5:
            assert sink.commit(batch_id, *handles).state == 2
        else:
            # The power goes somewhere between the commit and the end of its moving.
            sink.ask_commit(batch_id, *handles)
            for _ in range(written.random.randrange(5)):
                server.step_journal()
            server = after_power_cut(server, batch_id, **SETTINGS)
            sink = Sink(server)
            assert sink.commit(batch_id, *handles).state == 2
        assert sink.commit(batch_id, *handles).already_committed
        server.pass_ms(written.random.choice((0, 1000, 3000)))
        compacted += check(server, written) < written.count
    assert compacted > 10, "it was compacted under way"
    server.pass_ms(10_000)
    left = check(server, written)
    assert left < written.count / 4
    assert check(after_power_cut(server, seed, **SETTINGS), written) == left
