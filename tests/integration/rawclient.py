"""A client for the tests that says what it is told to, byte for byte: whole frames, half frames and nonsense."""

from __future__ import annotations

import socket
import struct
import time
from typing import Any

from duramen.errors import ErrorCode
from duramen.ports import FileSpan
from duramen.wire.batch import build_batch
from duramen.wire.frame import encode_request, parse_response
from duramen.wire.messages import API

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS = 0, 1, 2, 3, 18
CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, DESCRIBE_CONFIGS = 19, 20, 21, 32
WAIT_S = 60.0
SEQUENCE = iter(range(1, 1 << 30))


def frame(key: int, version: int, message: Any, correlation_id: int = 1, client_id: str | None = "raw") -> bytes:
    """A whole request frame."""
    parts = encode_request(API[key], version, correlation_id, client_id, message)
    return b"".join(bytes(part) for part in parts if not isinstance(part, FileSpan))


def header(key: int, version: int, correlation_id: int = 1, client_id: bytes = b"raw") -> bytes:
    """A request header of version 1, without the frame's size."""
    return struct.pack(f">hhih{len(client_id)}s", key, version, correlation_id, len(client_id), client_id)


def sized(payload: bytes) -> bytes:
    """A frame around any payload."""
    return struct.pack(">i", len(payload)) + payload


class Raw:
    """One connection. Every wait is bounded, and running into the bound is an error."""

    def __init__(self, port: int, *, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(WAIT_S)
        self.socket.connect(("127.0.0.1", port))

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise ConnectionError(f"closed after {len(data)} of {count} bytes")
            data += piece
        return bytes(data)

    def frame(self) -> bytes:
        """The next reply without its size."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def reply(self, key: int, version: int) -> tuple[int, Any]:
        """(correlation id, message) of the next reply."""
        return parse_response(API[key], version, memoryview(self.frame()))

    def call(self, key: int, version: int, **fields: Any) -> Any:
        """Ask and wait for the answer."""
        number = next(SEQUENCE)
        self.send(frame(key, version, API[key].request.new(**fields), number))
        correlation_id, message = self.reply(key, version)
        assert correlation_id == number
        return message

    def is_closed(self, within_s: float = WAIT_S) -> bool:
        """Whether the server hangs up; replies that come before are thrown away."""
        deadline = time.monotonic() + within_s
        self.socket.settimeout(within_s)
        try:
            while time.monotonic() < deadline:
                if not self.socket.recv(65536):
                    return True
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        finally:
            self.socket.settimeout(WAIT_S)
        return False

    # ---- frequent requests -----------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> bytes:
        """Create a topic, or take the one that is there; returns its id (zeros for the latter)."""
        request = API[CREATE_TOPICS].request
        topic = request.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[
                request.CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()
            ],
        )
        result = self.call(CREATE_TOPICS, 7, topics=[topic], timeout_ms=5000).topics[0]
        assert result.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS), result
        return bytes(result.topic_id)

    def produce(self, topic: str, records: Any, *, partition: int = 0, acks: int = -1, version: int = 9) -> Any:
        """Produce one record set (bytes, or values to make a batch of); the partition's response."""
        if not isinstance(records, bytes | bytearray | None):
            records = batch(*records)
        data = API[PRODUCE].request
        topic_data = data.TopicProduceData(
            name=topic, partition_data=[data.PartitionProduceData(index=partition, records=records)]
        )
        reply = self.call(PRODUCE, version, acks=acks, timeout_ms=5000, topic_data=[topic_data])
        return reply.responses[0].partition_responses[0]


def batch(
    *values: bytes, key: bytes | None = None, timestamp: int = 1_760_000_000_000, **header_fields: Any
) -> bytearray:
    """A record batch of these values."""
    return build_batch([(key, value, (), timestamp + n) for n, value in enumerate(values)], **header_fields)


def let_in(port: int) -> Raw:
    """A connection that is served, as soon as the server knows that an earlier one is gone."""
    deadline = time.monotonic() + WAIT_S
    while True:
        raw = Raw(port)
        try:
            assert raw.call(API_VERSIONS, 3, client_software_name="a", client_software_version="b").error_code == 0
        except OSError:
            raw.socket.close()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        else:
            return raw
