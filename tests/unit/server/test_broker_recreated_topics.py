"""A topic that is deleted and made anew while a job still works on the files of the old one."""

from __future__ import annotations

from tests.worlds.broker_world import InProcess, Line

from duramen.errors import ErrorCode
from duramen.server.handlers.fetch import FetchCall
from duramen.sim.world.disk import DiskCall
from duramen.wire.messages import API

LOG = "/data/t-0/00000000000000000000.log"


def delete_topic(line: Line, name: str) -> None:
    topic = API[20].request.DeleteTopicState(name=name)
    assert line.call(20, 6, topics=[topic], timeout_ms=1000).responses[0].error_code == 0


def test_a_checkpoint_of_the_old_log_leaves_nothing_in_the_new_one() -> None:
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    for _ in range(3):
        assert line.produce("t", b"old" * 100_000).error_code == 0
    admin = server.connect()
    request = API[19].request
    happened = []

    def meanwhile(call: DiskCall) -> None:
        if happened or (call.operation, call.path) != ("pread", LOG):
            return
        happened.append(call)  # the checkpoint reads what it is going to vouch for
        server.lanes.held.add("checkpoint")
        delete_topic(admin, "t")
        topic = request.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        admin.ask(19, 7, topics=[topic], timeout_ms=1000)
        server.run()
        server.lanes.held.clear()

    server.disk.fault = meanwhile  # type: ignore[assignment]
    server.pass_ms(62_000)
    assert happened
    answer = admin.answer(19, 7)
    assert answer.topics[0].error_code == 0
    assert not any(name.endswith(".sealing") for name in server.disk.list_directory("/data/t-0"))
    for _ in range(3):
        assert line.produce("t", b"new" * 100_000).error_code == 0
    server.pass_ms(62_000)
    server.disk.short_reads = lambda length: -1
    (directory,) = server.broker.store.directories
    for log in directory.logs.values():
        directory.hot.forget(log.active, 0, log.active.size)
    assert line.fetch("t", 0).error_code == ErrorCode.NONE
    assert "damage" not in dict(server.events)


def test_a_reader_that_waits_is_answered_also_where_the_new_topic_is_there_before_its_turn() -> None:
    """With many readers to wake, the loop takes them a slice at a time."""
    server = InProcess()
    line, reader = server.connect(), server.connect()
    line.create_topic("t")
    reader.ask_fetch("t", 0, wait=600_000)
    server.run()
    turns: list[FetchCall] = []
    server.broker.parked.wake_soon = turns.append  # type: ignore[method-assign]
    delete_topic(line, "t")
    line.create_topic("t")
    del server.broker.parked.wake_soon
    assert reader.fetched() is None
    for turn in turns:
        turn.retry()
    server.run()
    assert reader.fetched().error_code == ErrorCode.NONE
    reader.ask_fetch("t", 0, wait=600_000)
    server.run()
    assert line.produce("t", b"new").error_code == 0
    assert reader.fetched().high_watermark == 1
