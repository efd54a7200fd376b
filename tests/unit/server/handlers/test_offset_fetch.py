"""OffsetFetch behind a commit of which nobody knows whether it will be there: the disk was full when it was written."""

from __future__ import annotations

import errno

import pytest
from tests.worlds.broker_world import InProcess

from duramen.errors import ErrorCode
from duramen.sim.world.disk import CrashDisk
from duramen.wire.messages import API

COMMIT, FETCH, FIND = 8, 9, 10
FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("unknown", ["on a full disk", "after a time-out"])
def test_it_is_refused_at_once_and_retriable_for_every_consumer(unknown: str) -> None:
    """As Kafka has it: consumers before 3.9 give up at any other code than NOT_COORDINATOR."""
    disk = CrashDisk()
    server = InProcess(disk)
    line, other = server.connect(), server.connect()
    line.create_topic("t")
    assert line.call(FIND, 4, key_type=0, coordinator_keys=["g"]).coordinators[0].error_code == 0
    partition = API[COMMIT].request.OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    topics = [API[COMMIT].request.OffsetCommitRequestTopic(name="t", partitions=[partition])]
    if unknown == "on a full disk":
        disk.fault = lambda call: FULL if call.operation == "pwritev" and call.path.endswith(".log") else None
    else:
        server.lanes.held.add("journal")
    other.ask(COMMIT, 5, group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=topics)
    server.run()
    if unknown == "after a time-out":
        server.pass_ms(5000)
    code = other.answer(COMMIT, 5).topics[0].partitions[0].error_code
    assert code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    group = API[FETCH].request.OffsetFetchRequestGroup(group_id="g", topics=None)
    assert line.call(FETCH, 8, groups=[group]).groups[0].error_code == ErrorCode.NOT_COORDINATOR
    disk.fault = None
    server.lanes.held.clear()
    server.pass_ms(3000)
    (found,) = line.call(FETCH, 8, groups=[group]).groups[0].topics
    assert found.partitions[0].committed_offset == 5, "its outcome was that it was stored"
