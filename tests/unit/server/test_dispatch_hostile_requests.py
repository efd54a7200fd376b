"""Requests of every API and version, sensible, absurd and mutilated: an answer or a closed connection, never a bug.

The broker's log is watched: a handler that fails unexpectedly reports a traceback, which `InProcess` does not let pass.
DURAMEN_HOSTILE_REQUESTS sets how many are sent, DURAMEN_HOSTILE_SEED from where.
"""

from __future__ import annotations

import os
import struct
import tracemalloc
from random import Random
from typing import Any

import pytest
from tests.worlds.broker_world import CONTROLLER, CONTROLLER_PORT, NOW, PORT, InProcess, Line

from duramen.server.api.request import ApiRow
from duramen.server.dispatch import MAX_ELEMENTS, TABLES
from duramen.server.net.listener_type import ListenerType
from duramen.wire.batch import build_batch
from duramen.wire.errors import EncodeError
from duramen.wire.frame import encode_request
from duramen.wire.messages import API
from duramen.wire.runtime import uvarint
from duramen.wire.types import BOOL, UUID, Array, Blob, Field, Struct, Text

REQUESTS = int(os.environ.get("DURAMEN_HOSTILE_REQUESTS", "2000"))
SEED = int(os.environ.get("DURAMEN_HOSTILE_SEED", "1"))
TOPICS = ("t", "u", "absent", "__consumer_offsets", "__cluster_metadata", "", "../x", "t" * 250, "é")
WORDS = ("g", "h", "consumer", "range", "retention.ms", "cleanup.policy", "1", "-1", "0", "a" * 300)
NUMBERS = (-1, 0, 1, 2, 3, 5, 32, 100, -2, -3, 1000)
EDGES = {"b": 127, "h": 32767, "i": 2**31 - 1, "q": 2**63 - 1, "H": 65535, "I": 2**32 - 1}


class Fuzzer:
    """Makes requests out of a seed, of the `rows`; `ids` are topic ids that exist."""

    def __init__(self, random: Random, rows: list[ApiRow], ids: list[bytes]) -> None:
        self.random = random
        self.rows = rows
        self.ids = ids

    def frame(self, number: int) -> tuple[ApiRow, int, bytes]:
        """A request in its frame; one in two with bytes changed, added or missing."""
        random = self.random
        row = random.choice(self.rows)
        version = random.randint(row.lowest, row.highest)
        message = row.request
        try:
            body = self.struct(message, message.struct, version)
            data = bytearray(b"".join(map(bytes, encode_request(row.api, version, number, "fuzz", body))))  # type: ignore[arg-type]
        except EncodeError:  # a value that this version cannot say
            return self.frame(number)
        if random.random() < 0.5:
            del data[:4]
            for _ in range(random.choice((1, 1, 2, 8))):
                self.mutilate(data)
            data[:0] = len(data).to_bytes(4, "big")
        return row, version, bytes(data)

    def mutilate(self, data: bytearray) -> None:
        random = self.random
        position = random.randrange(len(data)) if data else 0
        kind = random.randrange(5)
        if kind == 0 and data:
            data[position] ^= 1 << random.randrange(8)
        elif kind == 1 and data:
            data[position] = random.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            del data[position:]
        elif kind == 3:
            data[position : position + 4] = random.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0"))
        else:
            data[position:position] = random.randbytes(random.randint(1, 9))

    def struct(self, message: Any, struct: Struct, version: int) -> Any:
        present = [field for field in struct.fields if version in field.versions]
        return message.classes.constructors[struct.name](**{f.name: self.field(message, f, version) for f in present})

    def field(self, message: Any, field: Field, version: int) -> Any:
        if version in field.nullable and self.random.random() < 0.2:
            return None
        if isinstance(field.type, Array):
            count = self.random.choice((0, 1, 1, 2, 3))
            return [self.value(message, field.name, field.type.element, version) for _ in range(count)]
        return self.value(message, field.name, field.type, version)

    def value(self, message: Any, name: str, kind: Any, version: int) -> Any:
        random = self.random
        if isinstance(kind, Struct):
            return self.struct(message, kind, version)
        if isinstance(kind, Text):
            return random.choice(TOPICS if "topic" in name or name == "name" else WORDS)
        if isinstance(kind, Blob):
            return self.blob()
        if kind is BOOL:
            return random.random() < 0.5
        if kind is UUID:
            return random.choice([*self.ids, bytes(16), random.randbytes(16)])
        top = EDGES[kind.code]
        number = random.choice((*NUMBERS, random.choice(NUMBERS), top, -top - 1, random.randint(-top - 1, top)))
        if kind.code in "HI":
            return number & top
        return max(-top - 1, min(top, number))

    def blob(self) -> bytes:
        random = self.random
        if random.random() < 0.3:
            return random.randbytes(random.choice((0, 3, 70)))
        rows = [(random.choice((None, b"k")), random.choice((None, b"v" * 20)), (), NOW) for _ in range(3)]
        options = {"compression": random.randrange(5), "control": random.random() < 0.1}
        if random.random() < 0.5:
            options |= {"producer_id": random.randrange(3), "producer_epoch": 0, "base_sequence": random.randrange(4)}
        batch = build_batch(rows, transactional=random.random() < 0.1, **options)  # type: ignore[arg-type]
        if random.random() < 0.3:
            batch[random.randrange(len(batch))] ^= 0xFF
        return bytes(batch)


def healthy(server: InProcess) -> None:
    line = server.connect()
    assert line.call(18, 4, client_software_name="s", client_software_version="1").error_code == 0
    assert line.call(3, 12, topics=None).cluster_id == server.broker.cluster_id
    line.close()
    server.lines.remove(line)


@pytest.mark.timeout(0 if REQUESTS > 10_000 else 60)
@pytest.mark.parametrize("listener", ListenerType, ids=lambda listener: listener.name)
def test_no_request_ends_in_a_bug_or_stays(listener: ListenerType) -> None:
    random = Random(SEED)
    server = InProcess(offsets_topic_num_partitions="3", max_request_partition_size_limit="100", **CONTROLLER)
    port, requests = (PORT, REQUESTS) if listener is ListenerType.BROKER else (CONTROLLER_PORT, REQUESTS // 4)
    setup = server.connect()
    setup.create_topic("t")
    setup.create_topic("u", cleanup_policy="compact")
    setup.call(10, 4, key_type=0, coordinator_keys=["g"])
    rows = list(TABLES[listener].values())
    fuzzer = Fuzzer(random, rows, [topic.id for topic in server.broker.image.topics.values()])
    line: Line | None = None
    tracemalloc.start()
    grown = 0
    for number in range(requests):
        if line is None or line.closed or random.random() < 0.02:
            if line is not None:
                if not line.closed:
                    line._arrived.clear()
                server.lines.remove(line)
            line = server.connect(port)
        row, version, frame = fuzzer.frame(number)
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        line._arrived += frame
        try:
            server.run()
            if number % 20 == 0:
                server.pass_ms(random.choice((10, 600)))
        except BaseException:
            print(f"seed {SEED}, request {number}: {row.api.name} v{version} {frame.hex()}")
            raise
        grown = max(grown, tracemalloc.get_traced_memory()[1] - before)
        if number % 500 == 499:
            healthy(server)
    tracemalloc.stop()
    healthy(server)
    assert grown < 32 << 20, "no length in a request decides how much is allocated"


def test_a_request_of_too_many_elements_is_refused_before_they_are_made() -> None:
    server = InProcess()
    setup = server.connect()
    setup.create_topic("t")
    message = API[61].request

    def answered(count: int) -> bool:
        line = server.connect()
        topic = message.TopicRequest(name="t", partition_indexes=[0] * count)
        frame = b"".join(map(bytes, encode_request(API[61], 0, 1, "c", message.new(topics=[topic]))))  # type: ignore[arg-type]
        line._arrived += frame
        server.run()
        return not line.closed

    assert answered(MAX_ELEMENTS - 1), "the topic is one of them"
    assert not answered(MAX_ELEMENTS)
    assert "elements more than" in str(server.events[-1][1]["reason"])


def test_so_is_a_produce_request_of_an_old_version() -> None:
    server = InProcess()
    line = server.connect()
    name = struct.pack(">h1s", 1, b"t")
    topic = name + struct.pack(">i", MAX_ELEMENTS) + struct.pack(">ii", 0, -1) * MAX_ELEMENTS
    body = struct.pack(">hii", -1, 1000, 1) + topic
    payload = struct.pack(">hhih", 0, 2, 1, -1) + body
    line._arrived += struct.pack(">i", len(payload)) + payload
    server.run()
    assert line.closed
    assert "elements more than" in str(server.events[-1][1]["reason"])


@pytest.mark.parametrize(("key", "version"), [(18, 3), (1, 12)])
def test_tagged_fields_count_as_elements(key: int, version: int) -> None:
    """Fifty million of them fit into a request, and everybody waited a minute while they were skipped."""
    server = InProcess()
    body = {"client_software_name": "s", "client_software_version": "1"} if key == 18 else {"session_epoch": -1}
    parts = encode_request(API[key], version, 1, "c", API[key].request.new(**body))
    plain = b"".join(map(bytes, parts))[4:]  # type: ignore[arg-type]
    header_end = 10 + len("c")

    def answered(in_header: int, in_body: int) -> bool:
        line = server.connect()
        header, rest = plain[:header_end], plain[header_end + 1 : -1]
        payload = header + tags(in_header) + rest + tags(in_body)
        line._arrived += struct.pack(">i", len(payload)) + payload
        server.run()
        return not line.closed

    def tags(count: int) -> bytes:
        return uvarint(count) + b"\x63\0" * count

    assert answered(1000, 1000)
    assert answered(0, MAX_ELEMENTS)
    assert not answered(0, MAX_ELEMENTS + 10), "some are known"
    assert not answered(1001, 0)
