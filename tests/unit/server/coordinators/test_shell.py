"""What all coordinators share, seen through the sinks' ones; test_groups.py sees it through the groups'."""

from __future__ import annotations

from tests.worlds.broker_world import InProcess
from tests.worlds.sink_client import DESCRIBE, Sink

from duramen.errors import ErrorCode
from duramen.model import SINK_STATE_TOPIC
from duramen.server.coordinators.shell import RELOAD_SECONDS

ONE_LOG = {"duramen_sink_topic_num_partitions": "1"}


def test_a_damaged_state_log_is_not_replayed_at_every_question() -> None:
    """Each question about a sink was one more replay, up to where the log is damaged."""
    server = InProcess(**ONE_LOG)
    server.connect().create_topic("t")
    sink = Sink(server)
    sink.commit(0, sink.handle(0, "t", "a"))
    stopped: list[bool] = []
    server.broker.stop(lambda: stopped.append(True))
    server.pass_ms(3000)
    assert stopped
    path = next(path for path in server.disk.contents() if SINK_STATE_TOPIC in path and path.endswith(".log"))
    server.disk.damage(path, 70)
    after = InProcess(server.disk, **ONE_LOG)
    line = after.connect()
    for _ in range(5):
        after.pass_ms(1000)
        assert line.call(DESCRIBE, 0, sink_id=sink.id).error_code == ErrorCode.CORRUPT_MESSAGE
    assert [event for event, _ in after.events].count("coordinator-load-failed") == 1
    after.disk.damage(path, 70)  # the same bit: it was the reading that went wrong
    after.pass_ms(int(1000 * RELOAD_SECONDS))
    assert line.call(DESCRIBE, 0, sink_id=sink.id).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    after.pass_ms(1000)
    assert line.call(DESCRIBE, 0, sink_id=sink.id).error_code == 0
