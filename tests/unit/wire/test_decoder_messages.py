"""What the compiled codecs promise their callers: defaults, versions, views instead of copies, clear refusals."""

from __future__ import annotations

import subprocess
import sys

import pytest

from duramen.errors import BugError, ErrorCode
from duramen.ports import FileSpan
from duramen.wire import messages
from duramen.wire.errors import DecodeError, EncodeError, UnsupportedVersionError
from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT32, STRING, UUID, Array, Field, Struct, version_range

ProduceRequest = messages.produce.ProduceRequest
ProduceResponse = messages.produce.ProduceResponse
FetchResponse = messages.fetch.FetchResponse


class Stored:
    """Records as the storage hands them out."""

    def __init__(self, parts: list[object], size: int) -> None:
        self.parts = parts
        self.size = size


def fetched(records: object) -> object:
    partition = FetchResponse.PartitionData(partition_index=1, high_watermark=7, records=records)
    topic = FetchResponse.FetchableTopicResponse(topic="t", partitions=[partition])
    return FetchResponse.new(responses=[topic])


def test_the_registry_imports_an_api_when_it_is_asked_for() -> None:
    code = (
        "import sys; from duramen.wire import messages;"
        "loaded = lambda: [m for m in sys.modules if m.startswith('duramen.wire.messages.')];"
        "assert not loaded(), loaded();"
        "assert messages.API[0].request.name == 'ProduceRequest';"
        "assert loaded() == ['duramen.wire.messages.produce'], loaded()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_registry_and_the_modules_hold_the_same_messages() -> None:
    assert messages.API[0].request is ProduceRequest
    assert list(messages.API) == sorted(messages.API)
    for key, api in messages.API.items():
        assert (api.key, api.request.name, api.response.name) == (key, f"{api.name}Request", f"{api.name}Response")
        for attribute in ("min_version", "max_version", "flexible_from"):
            assert getattr(api.request, attribute) == getattr(api.response, attribute) == getattr(api, attribute)
    with pytest.raises(AttributeError):
        messages.no_such_api  # noqa: B018


def test_constructors_have_every_field_with_its_default() -> None:
    request = messages.fetch.FetchRequest.new(max_wait_ms=3)
    assert (request.max_wait_ms, request.max_bytes, request.session_epoch, request.cluster_id) == (
        3,
        2**31 - 1,
        -1,
        None,
    )
    assert request.topics == []
    assert request.topics is not messages.fetch.FetchRequest.new().topics
    with pytest.raises(TypeError):
        messages.fetch.FetchRequest.new(no_such_field=1)
    with pytest.raises(AttributeError):
        request.no_such_field = 1


def test_objects_compare_by_value_and_show_their_fields() -> None:
    topic = ProduceRequest.TopicProduceData(name="t")
    assert topic == ProduceRequest.TopicProduceData(name="t")
    assert topic != ProduceRequest.TopicProduceData(name="u")
    assert topic != "t"
    assert "name='t'" in repr(topic)
    assert repr(topic).startswith("TopicProduceData(")


def test_a_default_struct_is_shared_and_refuses_assignment() -> None:
    partition = ProduceResponse.PartitionProduceResponse()
    assert partition.current_leader == ProduceResponse.LeaderIdAndEpoch()
    with pytest.raises(BugError, match="assign a new LeaderIdAndEpoch"):
        partition.current_leader.leader_id = 3
    partition.current_leader = ProduceResponse.LeaderIdAndEpoch(leader_id=3, leader_epoch=4)
    assert ProduceResponse.PartitionProduceResponse().current_leader.leader_id == -1


def test_records_are_views_of_the_input() -> None:
    partition = ProduceRequest.PartitionProduceData(index=0, records=b"batch")
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[partition])
    buffer = bytearray(ProduceRequest.encode(ProduceRequest.new(topic_data=[topic]), 9))
    records = ProduceRequest.decode(buffer, 9).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert not records.readonly
    records[0:1] = b"B"
    assert b"Batch" in buffer
    frozen = ProduceRequest.decode(bytes(buffer), 9).topic_data[0].partition_data[0].records
    assert frozen.readonly


def test_bytes_fields_are_copies() -> None:
    request = messages.sync_group.SyncGroupRequest
    assignment = request.SyncGroupRequestAssignment(member_id="m", assignment=b"abc")
    buffer = bytearray(request.encode(request.new(assignments=[assignment]), 3))
    copied = request.decode(buffer, 3).assignments[0].assignment
    buffer.clear()
    assert copied == b"abc"


@pytest.mark.parametrize("version", [4, 11, 12, 18])
def test_records_pass_through_without_a_copy(version: int) -> None:
    batch, span = memoryview(bytearray(b"x" * 10)), FileSpan(None, 5, 20)  # type: ignore[arg-type]
    parts = FetchResponse.encode_parts(fetched(Stored([batch, span], 30)), version)
    assert [type(part) for part in parts] == [bytes, memoryview, FileSpan, *([bytes] if version > 11 else [])]
    assert parts[1] is batch
    assert parts[2] is span
    plain = FetchResponse.encode(fetched(bytes(30)), version)
    head, tail = parts[0], b"".join(parts[3:])
    assert plain == head + bytes(30) + tail


def test_encode_joins_buffers_and_refuses_file_spans() -> None:
    pieces = Stored([b"ab", memoryview(b"cd")], 4)
    assert FetchResponse.encode(fetched(pieces), 12) == FetchResponse.encode(fetched(b"abcd"), 12)
    span = Stored([FileSpan(None, 0, 9)], 9)  # type: ignore[arg-type]
    with pytest.raises(EncodeError, match="file span"):
        FetchResponse.encode(fetched(span), 12)


def test_null_and_empty_records_differ() -> None:
    for records in (None, b""):
        decoded = FetchResponse.decode(FetchResponse.encode(fetched(records), 12), 12)
        assert decoded.responses[0].partitions[0].records == records


def test_a_field_that_is_absent_in_a_version_keeps_its_default() -> None:
    response = messages.offset_fetch.OffsetFetchResponse
    assert response.decode(response.encode(response.new(), 1), 1).throttle_time_ms == 0
    request = messages.list_offsets.ListOffsetsRequest
    partition = request.ListOffsetsPartition(timestamp=-1, current_leader_epoch=5)
    old = request.encode(request.new(topics=[request.ListOffsetsTopic(name="t", partitions=[partition])]), 1)
    assert request.decode(old, 1).topics[0].partitions[0].current_leader_epoch == -1


def test_what_a_version_cannot_say_is_refused_unless_ignorable() -> None:
    request = messages.join_group.JoinGroupRequest
    request.encode(request.new(rebalance_timeout_ms=5), 0)  # ignorable
    with pytest.raises(UnsupportedVersionError, match="group_instance_id") as caught:
        request.encode(request.new(group_instance_id="i"), 4)
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
    fetch = messages.fetch.FetchRequest
    with pytest.raises(UnsupportedVersionError, match="replica_state"):
        fetch.encode(fetch.new(replica_state=fetch.ReplicaState(replica_id=1)), 14)
    with pytest.raises(UnsupportedVersionError, match="forgotten"):
        fetch.encode(fetch.new(forgotten_topics_data=[fetch.ForgottenTopic(topic="t")]), 6)


@pytest.mark.parametrize("version", [-1, 2, 14])
def test_undeclared_versions_are_refused(version: int) -> None:
    with pytest.raises(UnsupportedVersionError, match="3 to 13"):
        ProduceRequest.decode(b"", version)
    with pytest.raises(UnsupportedVersionError, match="3 to 13"):
        ProduceRequest.encode(ProduceRequest.new(), version)


@pytest.mark.parametrize(
    "fields",
    [
        {"acks": 40_000},
        {"acks": None},
        {"acks": "1"},
        {"topic_data": None},
        {"topic_data": [None]},
        {"transactional_id": "\ud800"},
        {"transactional_id": "x" * 32768},
        {"transactional_id": 5},
    ],
)
@pytest.mark.parametrize("version", [8, 9])
def test_values_outside_the_schema_are_refused(fields: dict[str, object], version: int) -> None:
    with pytest.raises(EncodeError):
        ProduceRequest.encode(ProduceRequest.new(**fields), version)


def test_a_uuid_has_sixteen_bytes() -> None:
    for size in (15, 17):
        with pytest.raises(EncodeError, match="16"):
            ProduceRequest.encode(
                ProduceRequest.new(topic_data=[ProduceRequest.TopicProduceData(topic_id=bytes(size))]), 13
            )


def test_messages_nest() -> None:
    request = messages.heartbeat.HeartbeatRequest
    value = request.new(group_id="g", generation_id=1, member_id="m")
    data = b"before" + request.encode(value, 4)
    assert request.decode(data, 4, 6) == value
    assert request.decode_from(data + b"after", 4, 6) == (value, len(data))
    with pytest.raises(DecodeError):
        request.decode(data + b"after", 4, 6)


def test_a_field_may_become_tagged_in_a_later_version_and_a_struct_may_be_null() -> None:
    inner = Struct("Inner", Field("ids", Array(UUID)), Field("on", Array(BOOL), nullable="1+"))
    message = Message(
        "Odd",
        "0-2",
        1,
        Field("name", STRING, nullable="1+", tagged="2+", tag=3, default="x"),
        Field("inner", inner, nullable="1+", default=None),
        Field("count", INT32, "1+", tagged="1+", tag=0, default=7),
    )
    for version in (1, 2):
        for name in (None, "x", "y"):
            for inside in (
                None,
                message.Inner(ids=[bytes(16), b"i" * 16], on=None),
                message.Inner(on=[True, False] * 9),
            ):
                value = message.new(name=name, inner=inside, count=7 if name else 8)
                assert message.decode(message.encode(value, version), version) == value
    assert message.encode(message.new(), 2) == b"\xff\x00"
    with pytest.raises(EncodeError):
        message.encode(message.new(), 0)


def test_a_tagged_struct_that_may_be_null_is_always_said() -> None:
    """For Kafka one that is missing is empty, whatever the default: a member would speak the classic protocol."""
    inner = Struct("Inner", Field("count", INT32))
    message = Message("Odd", "0-0", 0, Field("inner", inner, nullable="0+", tagged="0+", tag=0, default=None))
    assert message.encode(message.new(), 0) == b"\x01\x00\x01\x00"
    assert message.encode(message.new(inner=message.Inner(count=7)), 0) == b"\x01\x00\x06\x01\x00\x00\x00\x07\x00"
    for inside in (None, message.Inner(), message.Inner(count=7)):
        value = message.new(inner=inside)
        assert message.decode(message.encode(value, 0), 0) == value
    assert message.decode(b"\x00", 0) == message.new(), "ours once left it out"


def test_version_ranges() -> None:
    assert version_range("3") == (3, 3)
    assert version_range("3-7") == (3, 7)
    assert 1000 in version_range("3+")
    assert 2 not in version_range("3+")
    with pytest.raises(ValueError):
        version_range("three")
