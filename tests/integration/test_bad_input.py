"""What one client does wrong ends at worst that client's connection, with the right Kafka error where there is one."""

from __future__ import annotations

import gzip
import random
import resource
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from rawclient import (
    API_VERSIONS,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    Raw,
    batch,
    frame,
    header,
    let_in,
    sized,
)
from tests.worlds.served_node import Served, only_duramen

from duramen.errors import ErrorCode
from duramen.wire.batch import HEADER_SIZE, replace_payload
from duramen.wire.compression import GZIP
from duramen.wire.messages import API

pytestmark = only_duramen
CRC32C_POSITION = 17


@pytest.fixture(scope="module")
def other(served: Served) -> Iterator[Raw]:
    """A well-behaved client, connected before all the others, whose topic is `calm`."""
    with Raw(served.port) as raw:
        raw.create_topic("calm")
        yield raw


@pytest.fixture(autouse=True)
def undisturbed(served: Served, other: Raw) -> Iterator[None]:
    """After whatever a test did: the process lives, the other client is served, nothing was a bug of ours."""
    yield
    assert served.process is not None
    assert served.process.poll() is None, served.log()
    assert other.produce("calm", [b"still here"]).error_code == 0
    log = (served.folder / "server.log").read_text(errors="replace")
    assert not [word for word in ("Traceback", "internal error", "unexpected") if word in log], log[-3000:]


def resident_bytes(served: Served) -> int:
    assert served.process is not None
    text = Path(f"/proc/{served.process.pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) * 1024


def api_versions(version: int = 3, correlation_id: int = 1) -> bytes:
    message = API[API_VERSIONS].request.new(client_software_name="raw", client_software_version="1")
    return frame(API_VERSIONS, version, message, correlation_id)


# ---- frames ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, -1, -(2**31), 2**31 - 1, 104_857_601])
def test_a_size_that_cannot_be_closes_the_connection(served: Served, size: int) -> None:
    with Raw(served.port) as raw:
        raw.send(struct.pack(">i", size))
        assert raw.is_closed()


def test_the_largest_size_is_believed_but_nothing_is_allocated_for_it(served: Served) -> None:
    before = resident_bytes(served)
    raws = [Raw(served.port) for _ in range(50)]
    for raw in raws:
        raw.send(struct.pack(">i", 104_857_600) + b"\0" * 100)
    time.sleep(0.3)
    assert resident_bytes(served) - before < 16 << 20
    assert not raws[0].is_closed(0.05)
    for raw in raws:
        raw.socket.close()


@pytest.mark.parametrize("length", range(1, 10))
def test_a_frame_too_short_for_a_header(served: Served, length: int) -> None:
    with Raw(served.port) as raw:
        raw.send(sized(header(METADATA, 1)[:length]))
        assert raw.is_closed()


def test_a_request_cut_anywhere_is_refused(served: Served) -> None:
    whole = frame(METADATA, 12, API[METADATA].request.new(topics=None))[4:]
    for length in range(len(whole)):
        with Raw(served.port) as raw:
            raw.send(sized(whole[:length]))
            assert raw.is_closed(), length


@pytest.mark.parametrize("client_id", [b"\xff\xfe", b"\x80abc"])
def test_a_client_id_that_is_no_text(served: Served, client_id: bytes) -> None:
    with Raw(served.port) as raw:
        raw.send(sized(header(METADATA, 1, client_id=client_id) + b"\xff\xff\xff\xff"))
        assert raw.is_closed()


def test_a_client_id_longer_than_its_frame(served: Served) -> None:
    with Raw(served.port) as raw:
        raw.send(sized(struct.pack(">hhih", METADATA, 1, 1, 3000) + b"abc"))
        assert raw.is_closed()


def test_a_frame_byte_by_byte(served: Served) -> None:
    with Raw(served.port) as raw:
        for byte in api_versions(correlation_id=77):
            raw.send(bytes([byte]))
            time.sleep(0.001)
        correlation_id, reply = raw.reply(API_VERSIONS, 3)
        assert (correlation_id, reply.error_code) == (77, 0)


def test_many_frames_in_one_piece_and_frames_cut_at_odd_places(served: Served) -> None:
    count = 3000
    stream = b"".join(
        frame(METADATA, 12, API[METADATA].request.new(topics=[]), number)
        if number % 3
        else api_versions(correlation_id=number)
        for number in range(count)
    )
    dice = random.Random(5)
    with Raw(served.port) as raw:
        position = 0
        answered = 0
        while answered < count:
            step = dice.choice((1, 3, 50, 4000, 60_000))
            if position < len(stream):
                raw.send(stream[position : position + step])
                position += step
                if position < len(stream) and dice.random() < 0.9:
                    continue
            while answered < count and position >= len(stream):
                key, version = (METADATA, 12) if answered % 3 else (API_VERSIONS, 3)
                assert raw.reply(key, version)[0] == answered
                answered += 1


def test_half_a_frame_and_then_the_end(served: Served) -> None:
    for cut in (1, 3, 4, 10, 30):
        with Raw(served.port) as raw:
            raw.send(api_versions()[:cut])
            raw.socket.shutdown(socket.SHUT_WR)
            assert raw.is_closed()


# ---- APIs and versions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [-1, 4, 7, 71, 76, 78, 83, 88, 93, 999, 32767, -32768])
def test_an_api_that_is_not_served_closes_the_connection(served: Served, key: int) -> None:
    with Raw(served.port) as raw:
        raw.send(sized(header(key, 0) + b"\0" * 20))
        assert raw.is_closed()


@pytest.mark.parametrize("key", sorted(set(API) - {API_VERSIONS}))
def test_a_version_above_the_highest_closes_the_connection(served: Served, key: int) -> None:
    for version in (API[key].max_version + 1, -1):
        with Raw(served.port) as raw:
            raw.send(sized(header(key, version) + b"\0" * 20))
            assert raw.is_closed()


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
def test_api_versions_is_answered_in_version_0_whatever_was_asked(served: Served, version: int) -> None:
    with Raw(served.port) as raw:
        raw.send(sized(header(API_VERSIONS, version, 9) + b"\xff nobody can know what this means"))
        reply = raw.frame()
        assert struct.unpack_from(">ih", reply) == (9, ErrorCode.UNSUPPORTED_VERSION)
        message = API[API_VERSIONS].response.decode(memoryview(reply)[4:], 0)
        assert (18, 0, 4) in [(entry.api_key, entry.min_version, entry.max_version) for entry in message.api_keys]
        raw.send(api_versions())
        assert raw.reply(API_VERSIONS, 3)[1].error_code == 0


@pytest.mark.parametrize(("name", "error"), [("", 42), ("-raw", 42), ("raw client", 42), ("raw", 0)])
def test_a_client_software_name_that_is_none(served: Served, name: str, error: int) -> None:
    with Raw(served.port) as raw:
        reply = raw.call(API_VERSIONS, 3, client_software_name=name, client_software_version="1")
        assert reply.error_code == error


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_produce_versions_are_refused_in_their_own_layout(served: Served, version: int) -> None:
    body = struct.pack(">hii", 1, 1000, 1) + struct.pack(">h4si", 4, b"calm", 1) + struct.pack(">ii2s", 0, 2, b"xx")
    with Raw(served.port) as raw:
        raw.send(sized(header(PRODUCE, version, 31) + body))
        expected = struct.pack(">iih4siihq", 31, 1, 4, b"calm", 1, 0, ErrorCode.UNSUPPORTED_VERSION, -1)
        expected += struct.pack(">q", -1) if version >= 2 else b""
        expected += struct.pack(">i", 0) if version >= 1 else b""
        assert raw.frame() == expected


def test_old_produce_without_acks_hangs_up(served: Served) -> None:
    body = struct.pack(">hii", 0, 1000, 0)
    with Raw(served.port) as raw:
        raw.send(sized(header(PRODUCE, 1) + body))
        assert raw.is_closed()


def test_unknown_tags_are_skipped_in_header_and_message(served: Served) -> None:
    tags = b"\x02" + b"\x05\x03abc" + b"\x83\x01\x00"
    head = struct.pack(">hhih3s", METADATA, 12, 8, 3, b"raw") + tags
    body = b"\x01" + b"\x01\x00\x00"[:2] + tags  # no topics, allow_auto_topic_creation, no authorized operations
    with Raw(served.port) as raw:
        raw.send(sized(head + body))
        correlation_id, reply = raw.reply(METADATA, 12)
        assert correlation_id == 8
        assert len(reply.brokers) == 1
        assert reply.topics == []


@pytest.mark.parametrize(
    "tags", [b"\xff\xff\xff\xff\x0f", b"\x01\x00\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\xff\xff"]
)
def test_tags_that_promise_more_than_there_is(served: Served, tags: bytes) -> None:
    with Raw(served.port) as raw:
        raw.send(sized(struct.pack(">hhih", METADATA, 12, 8, -1) + tags))
        assert raw.is_closed()


@pytest.mark.parametrize("count", [b"\xff\xff\xff\xff\x0f", b"\x81\x80\x80\x80\x04"])
def test_array_counts_that_cannot_be(served: Served, count: bytes) -> None:
    before = resident_bytes(served)
    with Raw(served.port) as raw:
        raw.send(sized(header(METADATA, 12) + b"\0" + count))
        assert raw.is_closed()
    for number in (2**31 - 1, 200_000_000, -2):
        with Raw(served.port) as raw:
            raw.send(sized(header(METADATA, 4) + struct.pack(">i", number)))
            assert raw.is_closed()
    assert resident_bytes(served) - before < 8 << 20


def test_random_bodies_for_every_api_and_version(served: Served) -> None:
    """Nothing but a reply or a closed connection, and no bug in the log (the fixture looks)."""
    dice = random.Random(20)
    for key, api in API.items():
        if key == API_VERSIONS:
            continue
        with_header_tags = api.flexible_from is not None
        raw = Raw(served.port)
        for version in range(api.min_version, api.max_version + 1):
            flexible = with_header_tags and version >= (api.flexible_from or 0)
            body = bytearray(api.request.encode(api.request.new(), version))
            for _ in range(dice.randrange(1, 4)):
                if body:
                    body[dice.randrange(len(body))] = dice.randrange(256)
            raw.send(sized(header(key, version) + (b"\0" if flexible else b"") + bytes(body)))
            if raw.is_closed(0.02):
                raw.socket.close()
                raw = Raw(served.port)
        raw.socket.close()


# ---- record batches ----------------------------------------------------------------------------------------------


def set_crc(data: bytearray) -> bytearray:
    """Renew the CRC after the header was tampered with."""
    return replace_payload(data, data[22] & 7, bytes(data[HEADER_SIZE:]))


def tampered(position: int, layout: str, value: int, *, crc: bool = True) -> bytes:
    data = batch(b"one", b"two")
    struct.pack_into(layout, data, position, value)
    return bytes(set_crc(data) if crc else data)


BAD_BATCHES = {
    "crc": (tampered(CRC32C_POSITION, ">I", 1234, crc=False), ErrorCode.CORRUPT_MESSAGE),
    "magic 1": (tampered(16, ">b", 1), ErrorCode.INVALID_RECORD),
    "magic 3": (tampered(16, ">b", 3), ErrorCode.INVALID_RECORD),
    "length too long": (tampered(8, ">i", 5000, crc=False), ErrorCode.INVALID_RECORD),
    "length negative": (tampered(8, ">i", -1, crc=False), ErrorCode.CORRUPT_MESSAGE),
    "length 0": (tampered(8, ">i", 0, crc=False), ErrorCode.CORRUPT_MESSAGE),
    "count 0": (tampered(57, ">i", 0), ErrorCode.INVALID_RECORD),
    "count negative": (tampered(57, ">i", -1), ErrorCode.INVALID_RECORD),
    "count above the delta": (tampered(57, ">i", 3), ErrorCode.INVALID_RECORD),
    "delta": (tampered(23, ">i", 2**31 - 1), ErrorCode.INVALID_RECORD),
    "control": (tampered(21, ">h", 0x20), ErrorCode.INVALID_RECORD),
    "attributes": (tampered(21, ">h", 0x100), ErrorCode.INVALID_RECORD),
    "append time": (tampered(21, ">h", 0x08), ErrorCode.INVALID_TIMESTAMP),
    "codec 5": (tampered(21, ">h", 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "far future": (bytes(batch(b"x", timestamp=2**62)), ErrorCode.INVALID_TIMESTAMP),
    "base offset": (tampered(0, ">q", 7, crc=False), ErrorCode.INVALID_RECORD),
    "two batches": (bytes(batch(b"x") + batch(b"y")), ErrorCode.INVALID_RECORD),
    "nothing": (b"", ErrorCode.INVALID_RECORD),
    "null": (None, ErrorCode.INVALID_RECORD),
    "short": (bytes(batch(b"x"))[:40], ErrorCode.INVALID_RECORD),
    "transactional": (
        bytes(batch(b"x", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)),
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    "negative sequence": (
        bytes(batch(b"x", producer_id=1, producer_epoch=0, base_sequence=-1)),
        ErrorCode.INVALID_RECORD,
    ),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_a_bad_batch_has_its_own_error_and_spoils_no_other(served: Served, other: Raw, name: str) -> None:
    data, code = BAD_BATCHES[name]
    request = API[PRODUCE].request
    end = end_of(other, "calm")
    with Raw(served.port) as raw:
        assert raw.produce("calm", data).error_code == code
        good = request.PartitionProduceData(index=0, records=bytes(batch(b"good")))
        bad = request.PartitionProduceData(index=0, records=data)
        nowhere = request.PartitionProduceData(index=9, records=bytes(batch(b"good")))
        topic = request.TopicProduceData(name="calm", partition_data=[bad, good, nowhere])
        reply = raw.call(PRODUCE, 9, acks=-1, timeout_ms=5000, topic_data=[topic])
        entries = reply.responses[0].partition_responses
        assert [entry.error_code for entry in entries] == [code, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert [entry.base_offset for entry in entries] == [-1, end, -1]
        assert entries[0].error_message
    assert end_of(other, "calm") == end + 1


def end_of(raw: Raw, topic: str) -> int:
    request = API[LIST_OFFSETS].request
    wanted = request.ListOffsetsPartition(partition_index=0, timestamp=-1)
    reply = raw.call(LIST_OFFSETS, 7, topics=[request.ListOffsetsTopic(name=topic, partitions=[wanted])])
    found = reply.topics[0].partitions[0]
    assert found.error_code == 0
    return int(found.offset)


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_acks_that_are_none(served: Served, acks: int) -> None:
    with Raw(served.port) as raw:
        assert raw.produce("calm", [b"x"], acks=acks).error_code == ErrorCode.INVALID_REQUIRED_ACKS


@pytest.mark.parametrize("data", [BAD_BATCHES["crc"][0], b"", BAD_BATCHES["control"][0]])
def test_a_refusal_without_acks_hangs_up(served: Served, data: bytes) -> None:
    request = API[PRODUCE].request
    topic = request.TopicProduceData(name="calm", partition_data=[request.PartitionProduceData(index=0, records=data)])
    with Raw(served.port) as raw:
        raw.send(frame(PRODUCE, 9, request.new(acks=0, timeout_ms=5000, topic_data=[topic])))
        assert raw.is_closed()


def test_a_batch_above_the_limit(served: Served) -> None:
    with Raw(served.port) as raw:
        raw.create_topic("small-batches", max_message_bytes="1000")
        assert raw.produce("small-batches", [b"x" * 1000]).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert raw.produce("small-batches", [b"x" * 800]).error_code == 0


def bomb(size: int) -> bytes:
    """A gzip batch of a few KB that inflates to `size` bytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    pieces = [packer.compress(b"\0" * (1 << 20)) for _ in range(size >> 20)]
    return bytes(replace_payload(batch(b"x"), GZIP, b"".join([*pieces, packer.flush()])))


def test_a_decompression_bomb_is_refused_where_it_would_be_opened(served: Served) -> None:
    with Raw(served.port) as raw:
        raw.create_topic("recompressed", compression_type="zstd")
        raw.create_topic("compacted", cleanup_policy="compact")
        before = resident_bytes(served)
        data = bomb(128 << 20)
        assert len(data) < 1 << 20
        assert raw.produce("recompressed", data).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert raw.produce("compacted", data).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert resident_bytes(served) - before < 200 << 20
        assert end_of(raw, "recompressed") == end_of(raw, "compacted") == 0


def test_a_payload_that_is_no_stream_of_its_codec(served: Served) -> None:
    with Raw(served.port) as raw:
        raw.create_topic("recompressed-2", compression_type="zstd")
        for codec in (1, 2, 3):
            junk = bytes(replace_payload(batch(b"x"), codec, b"no such stream, whatever the codec is"))
            assert raw.produce("recompressed-2", junk).error_code in (
                ErrorCode.INVALID_RECORD,
                ErrorCode.MESSAGE_TOO_LARGE,
                ErrorCode.CORRUPT_MESSAGE,
            )
        packed = bytes(replace_payload(batch(b"x"), GZIP, gzip.compress(b"\x0e\0\0\0\0\0")))
        assert raw.produce("recompressed-2", packed).error_code == ErrorCode.INVALID_RECORD
        assert end_of(raw, "recompressed-2") == 0


def test_a_keyless_record_on_a_compacted_topic_is_named(served: Served) -> None:
    with Raw(served.port) as raw:
        raw.create_topic("compacted-2", cleanup_policy="compact")
        reply = raw.produce("compacted-2", [b"a", b"b"])
        assert reply.error_code == ErrorCode.INVALID_RECORD
        assert [error.batch_index for error in reply.record_errors] == [0, 1]
        assert raw.produce("compacted-2", bytes(batch(b"a", key=b"k"))).error_code == 0


# ---- names that try to leave, and internal topics ----------------------------------------------------------------

BAD_NAMES = ["..", ".", "a/b", "../../etc/passwd", "x" * 250, "nul\0inside", "", "ümlaut", "a b", "a\\b", "/abs"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_are_none(served: Served, name: str) -> None:
    request = API[CREATE_TOPICS].request
    wanted = API[METADATA].request.MetadataRequestTopic
    with Raw(served.port) as raw:
        topic = request.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        result = raw.call(CREATE_TOPICS, 7, topics=[topic], timeout_ms=5000).topics[0]
        assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        reply = raw.call(METADATA, 12, topics=[wanted(name=name)], allow_auto_topic_creation=True)
        assert reply.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert raw.produce(name, [b"x"]).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    names = sorted(path.name for path in served.folder.iterdir())
    assert names == ["data", "server.log"]


def test_the_longest_name_and_names_that_collide(served: Served) -> None:
    request = API[CREATE_TOPICS].request
    with Raw(served.port) as raw:
        raw.create_topic("n" * 249)
        assert raw.produce("n" * 249, [b"x"]).error_code == 0
        raw.create_topic("one.two")
        topic = request.CreatableTopic(name="one_two", num_partitions=1, replication_factor=1)
        result = raw.call(CREATE_TOPICS, 7, topics=[topic], timeout_ms=5000).topics[0]
        assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("partitions", [0, -5, 2**31 - 1, 100_000])
def test_partition_counts_that_cannot_be(served: Served, partitions: int) -> None:
    request = API[CREATE_TOPICS].request
    with Raw(served.port) as raw:
        topic = request.CreatableTopic(name="countless", num_partitions=partitions, replication_factor=1)
        result = raw.call(CREATE_TOPICS, 7, topics=[topic], timeout_ms=5000).topics[0]
        assert result.error_code in (ErrorCode.INVALID_PARTITIONS, ErrorCode.POLICY_VIOLATION)


def test_the_metadata_log_is_out_of_reach(served: Served) -> None:
    """Whoever could write to it, or cut it, could make every topic vanish."""
    name = "__cluster_metadata"
    offsets, records, fetch = API[LIST_OFFSETS].request, API[DELETE_RECORDS].request, API[FETCH].request
    with Raw(served.port) as raw:
        assert raw.produce(name, [b"x"]).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        reply = raw.call(
            DELETE_RECORDS,
            2,
            topics=[
                records.DeleteRecordsTopic(
                    name=name, partitions=[records.DeleteRecordsPartition(partition_index=0, offset=-1)]
                )
            ],
            timeout_ms=5000,
        )
        assert reply.topics[0].partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        wanted = offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
        found = raw.call(LIST_OFFSETS, 7, topics=[offsets.ListOffsetsTopic(name=name, partitions=[wanted])])
        assert found.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        part = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        reply = raw.call(
            FETCH, 12, max_wait_ms=0, min_bytes=1, topics=[fetch.FetchTopic(topic=name, partitions=[part])]
        )
        assert reply.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        by_id = fetch.FetchTopic(topic_id=bytes(15) + b"\x01", partitions=[part])
        reply = raw.call(FETCH, 13, max_wait_ms=0, min_bytes=1, topics=[by_id])
        assert reply.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        topic = API[CREATE_TOPICS].request.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        result = raw.call(CREATE_TOPICS, 7, topics=[topic], timeout_ms=5000).topics[0]
        assert result.error_code == ErrorCode.INVALID_REQUEST
        state = API[DELETE_TOPICS].request.DeleteTopicState(name=name)
        gone = raw.call(DELETE_TOPICS, 6, topics=[state], timeout_ms=5000)
        assert gone.responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_offsets_topic_is_written_by_its_coordinator_only(served: Served) -> None:
    with Raw(served.port) as raw:
        assert raw.produce("__consumer_offsets", [b"x"]).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_metadata_names_a_topic_once_however_often_it_was_asked_for(served: Served) -> None:
    wanted = API[METADATA].request.MetadataRequestTopic
    with Raw(served.port) as raw:
        reply = raw.call(METADATA, 12, topics=[wanted(name="calm")] * 20_000)
        assert [topic.name for topic in reply.topics] == ["calm"]


# ---- many, slow and rude clients ---------------------------------------------------------------------------------


def test_thousands_of_idle_and_of_slow_connections(served: Served, other: Raw) -> None:
    count = 5000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + 500
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"only {hard} file descriptors are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    before = resident_bytes(served)
    crowd: list[socket.socket] = []
    try:
        for number in range(count):
            crowd.append(socket.create_connection(("127.0.0.1", served.port), 10))
            if number % 500 == 0:
                assert other.produce("calm", [b"meanwhile"]).error_code == 0
        began = time.monotonic()
        for _ in range(50):
            assert other.produce("calm", [b"x" * 100]).error_code == 0
        assert time.monotonic() - began < 60
        assert resident_bytes(served) - before < 60 << 20
        # The same crowd begins frames and never ends them.
        half = struct.pack(">i", 1_000_000) + header(PRODUCE, 9) + b"\0" * 10
        for member in crowd:
            member.sendall(half)
        assert other.produce("calm", [b"after"]).error_code == 0
        assert resident_bytes(served) - before < 120 << 20
        crowd[0].sendall(b"\0" * 100)
    finally:
        for member in crowd:
            member.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_client_that_never_reads_is_not_read_either(served: Served) -> None:
    """Its requests stay in the kernel's buffers once a few megabytes of replies wait for it."""
    request = API[DESCRIBE_CONFIGS].request
    resource_ = request.DescribeConfigsResource(resource_type=2, resource_name="calm", configuration_keys=None)
    body = request.new(resources=[resource_], include_documentation=True, include_synonyms=True)
    before = resident_bytes(served)
    count = 4000
    questions = [frame(DESCRIBE_CONFIGS, 4, body, number) for number in range(count)]
    with Raw(served.port, receive_buffer=4096) as raw:
        raw.socket.settimeout(1)
        with pytest.raises(TimeoutError):
            raw.send(b"".join(questions) * 200)
        assert resident_bytes(served) - before < 64 << 20
    with Raw(served.port, receive_buffer=4096) as raw:
        # Read late, and every reply is there, in order.
        raw.send(b"".join(questions[:1500]))
        time.sleep(0.2)
        assert [raw.reply(DESCRIBE_CONFIGS, 4)[0] for _ in range(1500)] == list(range(1500))


def test_a_connection_that_ends_while_its_fetch_is_parked(served: Served, other: Raw) -> None:
    fetch = API[FETCH].request
    part = fetch.FetchPartition(partition=0, fetch_offset=end_of(other, "calm"), partition_max_bytes=1 << 20)
    for _ in range(50):
        with Raw(served.port) as raw:
            raw.send(
                frame(
                    FETCH,
                    12,
                    fetch.new(
                        max_wait_ms=60_000, min_bytes=1, topics=[fetch.FetchTopic(topic="calm", partitions=[part])]
                    ),
                )
            )
    for _ in range(5):
        assert other.produce("calm", [b"wakes nobody"]).error_code == 0


@pytest.mark.parametrize("limit", ["max.connections", "max.connections.per.ip"])
def test_limits_of_connections(tmp_path: Path, limit: str) -> None:
    server = Served(tmp_path, {limit: "3"})
    server.start()
    try:
        raws = [let_in(server.port) for _ in range(3)]
        with pytest.raises(OSError), Raw(server.port) as fourth:
            fourth.call(API_VERSIONS, 3, client_software_name="a", client_software_version="b")
        raws[0].socket.close()
        raws[0] = let_in(server.port)
        for raw in raws:
            raw.socket.close()
    finally:
        server.stop()


def test_an_idle_connection_is_closed(tmp_path: Path) -> None:
    server = Served(tmp_path, {"connections.max.idle.ms": "500"})
    server.start()
    try:
        with let_in(server.port) as idle:
            assert idle.is_closed()
    finally:
        server.stop()
