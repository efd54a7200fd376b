"""Markers of page-cache topics that wait for a sync: what they are told where none can come."""

from __future__ import annotations

from tests.worlds.partition_world import Bench

from duramen.errors import ErrorCode, KafkaError


def test_who_waits_for_a_marker_that_is_cut_is_sent_to_another_leader() -> None:
    bench = Bench(duramen_ack_durability="page-cache")
    bench.produce(b"a")
    bench.lanes.held.add("checkpoint")
    answers: list[KafkaError | None] = []
    bench.store.marker_syncs.wait_for(bench.partition, 1, False, answers.append)
    bench.partition.resign(2, 2, (1, 2), (1, 2))
    bench.partition.truncate_to(0)
    bench.lanes.held.clear()
    bench.run()
    (answer,) = answers
    assert answer is not None
    assert answer.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
