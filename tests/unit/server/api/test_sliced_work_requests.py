"""Requests that would hold the loop for long: whatever their API is, others have their turns in between."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from tests.worlds.broker_world import InProcess, Line
from tests.worlds.wide_requests import wide_requests

from duramen.errors import ErrorCode
from duramen.server.coordinators.shell import MAX_BATCH_BYTES
from duramen.server.dispatch import MAX_ELEMENTS_OF_ONE_DECISION, TABLE
from duramen.server.handlers import metadata, too_many_elements
from duramen.server.handlers.offset_delete import MAX_AT_ONCE
from duramen.server.net.steps import STEP
from duramen.wire.messages import API

ELEMENTS = 12_000
MOST_LINES = 2 * ELEMENTS + 150 * STEP
"""Of Python in one turn of the loop: what a set or a dict of all elements takes, and one step."""


class LineCount:
    """Counts the lines of Python that a call executes: what it costs, whatever the machine."""

    def __init__(self) -> None:
        self.most = 0
        self.where = ""

    def __call__(self, work: Callable[[], Any]) -> Any:
        count = 0
        seen: dict[str, int] = {}

        def traced(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal count
            if event == "line":
                count += 1
                name = frame.f_code.co_qualname
                seen[name] = seen.get(name, 0) + 1
            return traced

        before = sys.gettrace()
        sys.settrace(traced)
        try:
            return work()
        finally:
            sys.settrace(before)
            if count > self.most:
                self.most = count
                self.where = ", ".join(f"{n} {seen[n]}" for n in sorted(seen, key=lambda n: -seen[n])[:4])


def run(server: InProcess, lines: LineCount) -> None:
    """As InProcess.run, each callback of the loop counted, and no lane."""
    while True:
        while server.clock.ready:
            lines(server.clock.ready.pop(0))
        for line in server.lines:
            while line._arrived and line._reader is not None and not line.closed:
                lines(line._reader)
        if server.clock.ready:
            continue
        if not server.lanes.waiting:
            return
        _, work, done = server.lanes.waiting.pop(0)
        result, error = None, None
        try:
            result = work()
        except Exception as raised:  # noqa: BLE001 as the port has it
            error = raised
        lines(lambda done=done, result=result, error=error: done(result, error))


@pytest.fixture(scope="module")
def server() -> InProcess:
    server = InProcess(offsets_topic_num_partitions="3")
    line = server.connect()
    line.create_topic("t")
    line.call(10, 4, key_type=0, coordinator_keys=["g"])
    return server


@pytest.mark.parametrize("path", [wide.path for wide in wide_requests(1)])
def test_no_turn_of_the_loop_grows_with_a_request(server: InProcess, path: str) -> None:
    line = server.connect()
    lines = LineCount()
    (row,) = [row for row in TABLE.values() if row.api.name == path.partition(".")[0]]
    is_bounded = row.most == MAX_ELEMENTS_OF_ONE_DECISION
    line._arrived += next(wide_requests(row.most + 1 if is_bounded else ELEMENTS, path)).frame
    run(server, lines)
    assert line.closed if is_bounded and row.api.key not in too_many_elements.ANSWERED else line._received
    line.close()
    server.lines.remove(line)
    assert lines.most <= MOST_LINES, lines.where


@pytest.mark.parametrize("key", sorted(too_many_elements.ANSWERED))
@pytest.mark.parametrize("which", ["first", "last"])
def test_a_change_of_too_much_at_once_is_refused_by_name(server: InProcess, key: int, which: str) -> None:
    api = API[key]
    version = api.min_version if which == "first" else api.max_version
    names = [f"t{number}" for number in range(MAX_ELEMENTS_OF_ONE_DECISION + 1)]
    request = api.request
    line = server.connect()
    if key == 19:
        wanted = [request.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
        told = line.call(key, version, topics=wanted, timeout_ms=1000).topics
    elif key == 20 and version >= 6:
        told = line.call(key, version, topics=[request.DeleteTopicState(name=name) for name in names]).responses
    elif key == 20:
        told = line.call(key, version, topic_names=names).responses
    elif key == 37:
        wanted = [request.CreatePartitionsTopic(name=name, count=2, assignments=None) for name in names]
        told = line.call(key, version, topics=wanted, timeout_ms=1000).results
    else:
        resource = request.AlterConfigsResource
        wanted = [resource(resource_type=2, resource_name=name, configs=[]) for name in names]
        told = line.call(key, version, resources=wanted).responses
    assert {each.error_code for each in told} == {ErrorCode.POLICY_VIOLATION}
    assert [each.resource_name if key in (33, 44) else each.name for each in told] == names
    assert not server.broker.image.topic("t0")
    assert line.call(18, 0).error_code == 0, "the connection goes on"


def commit(server: InProcess, line: Line, offsets: list[int], partitions: list[int]) -> None:
    message = API[8].request
    entry = message.OffsetCommitRequestPartition
    topic = message.OffsetCommitRequestTopic(
        name="wide",
        partitions=[
            entry(partition_index=each, committed_offset=offset)
            for each, offset in zip(partitions, offsets, strict=True)
        ],
    )
    line.ask(8, 8, group_id="order", generation_id_or_member_epoch=-1, member_id="", topics=[topic])


def test_what_is_sent_behind_a_large_commit_is_committed_after_it() -> None:
    server = InProcess(offsets_topic_num_partitions="1")
    line = server.connect()
    topic = API[19].request.CreatableTopic(name="wide", num_partitions=3, replication_factor=1)
    assert line.call(19, 7, topics=[topic], timeout_ms=1000).topics[0].error_code == 0
    line.call(10, 4, key_type=0, coordinator_keys=["order"])
    commit(server, line, list(range(5_000)), [number % 4 for number in range(5_000)])
    commit(server, line, [7], [2])
    assert line.answer(8, 8) is None
    server.run()
    codes = [each.error_code for each in line.answer(8, 8).topics[0].partitions]
    assert codes == [0, 0, 0, 3] * 1_250, "each partition has its own answer"
    assert [each.error_code for each in line.answer(8, 8).topics[0].partitions] == [0]
    asked = API[9].request.OffsetFetchRequestTopic(name="wide", partition_indexes=[0, 1, 2])
    told = line.call(9, 7, group_id="order", topics=[asked]).topics[0].partitions
    assert [each.committed_offset for each in told] == [4_996, 4_997, 7]


def test_many_positions_are_deleted_in_steps() -> None:
    """They were one decision: 0.2 s of the loop for 30,000 of them."""
    server = InProcess(offsets_topic_num_partitions="1")
    line = server.connect()
    topic = API[19].request.CreatableTopic(name="wide", num_partitions=4_000, replication_factor=1)
    assert line.call(19, 7, topics=[topic], timeout_ms=1000).topics[0].error_code == 0
    line.call(10, 4, key_type=0, coordinator_keys=["order"])
    message = API[47].request
    entry = message.OffsetDeleteRequestPartition
    wanted = [entry(partition_index=each) for each in range(4_001)]
    request = {"group_id": "order", "topics": [message.OffsetDeleteRequestTopic(name="wide", partitions=wanted)]}
    for committed in (4_000, 1_500):  # in the second case the group is gone before the last ones are looked for
        commit(server, line, [7] * committed, list(range(committed)))
        server.run()
        assert {each.error_code for each in line.answer(8, 8).topics[0].partitions} == {0}
        assert len(list(server.broker.groups.committed_offsets())) == committed
        lines = LineCount()
        line.ask(47, 0, **request)
        run(server, lines)
        answer = line.answer(47, 0)
        assert answer.error_code == 0
        assert [each.error_code for each in answer.topics[0].partitions] == [0] * 4_000 + [3]
        assert not list(server.broker.groups.committed_offsets())
        assert lines.most <= 150 * MAX_AT_ONCE, lines.where
    gone = line.call(47, 0, **request)
    assert (gone.error_code, gone.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


def test_many_topics_that_are_not_there_are_looked_for_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is created of them is bounded by itself."""
    monkeypatch.setattr(metadata, "MOST_CREATED", 3)
    server = InProcess()
    line = server.connect()
    # What compiles codecs on first use is not counted, whichever test comes first.
    line.call(3, 9, topics=[API[3].request.MetadataRequestTopic(name="first")], allow_auto_topic_creation=True)
    lines = LineCount()
    names = [f"absent{number}" for number in range(20_000)]
    topics = [API[3].request.MetadataRequestTopic(name=name) for name in names]
    line.ask(3, 9, topics=topics, allow_auto_topic_creation=True)
    run(server, lines)
    assert [each.name for each in line.answer(3, 9).topics] == names
    assert lines.most <= 5_500, lines.where


def test_a_session_of_many_partitions_is_kept_and_changed_in_steps() -> None:
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    message = API[1].request

    def ask(session: int, epoch: int, indexes: range, wait_ms: int = 0) -> None:
        entry = message.FetchPartition
        wanted = [entry(partition=each, fetch_offset=0, partition_max_bytes=1000) for each in indexes]
        topics = [message.FetchTopic(topic="t", partitions=wanted)] if wanted else []
        line.ask(1, 12, session_id=session, session_epoch=epoch, max_wait_ms=wait_ms, min_bytes=1, topics=topics)
        server.run()

    ask(0, 0, range(3_000))
    told = line.answer(1, 12)
    assert [each.error_code for each in told.responses[0].partitions] == [0] + [3] * 2_999
    line.produce("t", b"x" * 10)
    ask(told.session_id, 1, range(2_000, 5_000))
    again = line.answer(1, 12)
    assert again.session_id == told.session_id
    partitions = again.responses[0].partitions
    assert len(partitions) == 5_000
    assert {each.partition_index: each.error_code for each in partitions if not each.error_code} == {0: 0}
    assert len(partitions[0].records) > 0
    ask(told.session_id, 2, range(0))
    assert len(line.answer(1, 12).responses[0].partitions) == 5_000


def test_a_fetch_of_many_partitions_waits_for_records() -> None:
    server = InProcess()
    line, other = server.connect(), server.connect()
    topic = API[19].request.CreatableTopic(name="many", num_partitions=1_200, replication_factor=1)
    assert line.call(19, 7, topics=[topic], timeout_ms=1000).topics[0].error_code == 0
    message = API[1].request
    wanted = [message.FetchPartition(partition=each, fetch_offset=0, partition_max_bytes=1000) for each in range(1_200)]
    topics = [message.FetchTopic(topic="many", partitions=wanted)]
    for wait_ms, comes in ((500, True), (500, False)):
        line.ask(1, 12, session_epoch=-1, max_wait_ms=wait_ms, min_bytes=1 if comes else 1 << 20, topics=topics)
        server.run()
        assert line.answer(1, 12) is None
        assert other.produce("many", b"x").error_code == 0
        found = line.answer(1, 12)
        assert (found is not None) is comes
        if not comes:
            server.pass_ms(500)
            found = line.answer(1, 12)
        assert sum(len(each.records) > 0 for each in found.responses[0].partitions) == 1
    assert server.broker.parked.partitions == 0


def test_a_member_whose_metadata_no_generation_could_hold_is_refused() -> None:
    server = InProcess(offsets_topic_num_partitions="1")
    line = server.connect()
    line.call(10, 4, key_type=0, coordinator_keys=["g"])

    def joined(size: int) -> int:
        metadata = API[11].request.JoinGroupRequestProtocol(name="range", metadata=bytes(size))
        fields = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000, "protocol_type": "consumer"}
        return int(line.call(11, 9, group_id="g", member_id="", protocols=[metadata], **fields).error_code)

    assert joined(MAX_BATCH_BYTES) == ErrorCode.MEMBER_ID_REQUIRED
    assert joined(MAX_BATCH_BYTES + 1) == ErrorCode.UNKNOWN_SERVER_ERROR
