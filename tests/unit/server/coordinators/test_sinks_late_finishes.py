"""A sink's batch whose records are there, and whose coordinator is long in writing that down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.worlds.broker_world import InProcess, after_power_cut
from tests.worlds.sink_client import RELEASE, Sink, alter, jump, offsets, values

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.sink.commands import FinishCommit
from duramen.model import TopicPartition


def test_a_share_that_retention_took_before_its_batch_was_finished_does_not_come_back() -> None:
    """Retention wrote what is known of the sink behind records that only the page cache had: a power cut takes both."""
    settings = {"duramen.ack.durability": "page-cache", "segment.bytes": "1048576", "file.delete.delay.ms": "0"}
    server = InProcess()
    line = server.connect()
    line.create_topic("late", **settings)
    log = server.broker.store.partitions[TopicPartition("late", 0)].log
    sink = Sink(server)
    handles = [sink.handle(0, "late", f"{number}" + "x" * 300_000) for number in range(6)]
    coordinator = next(each for each in server.broker.sinks.running() if "sink" in each.machine.sinks)
    coordinator.host.submit = _refusing(FinishCommit, coordinator.host.submit)  # type: ignore[method-assign]
    assert sink.commit(0, *handles).state == 2
    for _ in range(12):
        line.ask_produce("late", b"another's" * 35_000)
    server.run()
    jump(server, 70_000)
    jump(server, 70_000)
    assert (log.durable_end, log.end_offset) == (18, 18)
    server.lanes.held.add("checkpoint")
    line.ask_produce("late", b"only in the page cache")
    server.run()
    alter(server, "late", **{"retention.bytes": "1", **settings})
    for _ in range(3):
        jump(server, 400_000)
    assert (log.start_offset, log.end_offset) == (15, 19)
    server.disk.sync_directory(log.path)
    after = after_power_cut(server)
    after.pass_ms(3000)
    assert after.broker.store.partitions[TopicPartition("late", 0)].log.end_offset == 18


def _refusing(kind: type, submit: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """A host whose disk does not take these commands."""

    def refused(command: Any, answer: Any) -> None:
        if isinstance(command, kind):
            answer(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
        else:
            submit(command, answer)

    return refused


def test_a_finish_whose_answer_is_late_means_no_later_sink_of_that_name() -> None:
    """The disk takes half a minute over the record that says that all is done, and the sink is released meanwhile."""
    server = InProcess()
    server.connect().create_topic("t")
    sink = Sink(server)
    handle = sink.handle(0, "t", "of the first")
    machine = next(each.machine for each in server.broker.sinks.running() if "sink" in each.machine.sinks)
    sink.ask_commit(0, handle)
    while 0 not in machine.sinks["sink"].commits or any(machine.unfinished()):
        server.step_journal()
        server.run()
    operator = server.connect()
    operator.ask(RELEASE, 0, sink_id="sink", epoch=sink.epoch)
    server.pass_ms(30_500)
    server.lanes.held.discard("journal")
    server.pass_ms(2000)
    assert sink.committed().state == 2
    assert "sink" not in machine.sinks
    assert server.broker.sinks.materialiser.unfinished == 0
    again = Sink(server, run_id="run-2")
    assert offsets(again.commit(0, again.handle(0, "t", "of the second"))) == [(1, 1)]
    assert values(server, "t") == ["of the first", "of the second"]
