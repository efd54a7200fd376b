"""A whole broker without sockets, threads or time: what it planned happens in `run`, and the disk is in memory."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any, TypeVar

from tests.worlds.partition_world import Lanes, Numbers, joined

from duramen.config import load_broker_config
from duramen.ports import Part, World
from duramen.server.broker import Broker
from duramen.server.net.send_queue import first_bytes
from duramen.sim.world.disk import CrashDisk
from duramen.wire.batch import CRC_START, HEADER, build_batch
from duramen.wire.checksum import crc32c
from duramen.wire.frame import encode_request, parse_response
from duramen.wire.messages import API

NOW = 1_760_000_000_000
PORT = 9092
CONTROLLER_PORT = 9093
CONTROLLER = {
    "listeners": f"PLAINTEXT://127.0.0.1:{PORT},CONTROLLER://127.0.0.1:{CONTROLLER_PORT}",
    "controller.listener.names": "CONTROLLER",
}
"""Settings of a node that opens a listener for controllers, too."""


class Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Agenda:
    """The Clock port; `pass_ms` moves time on."""

    def __init__(self) -> None:
        self.now_ms = NOW
        self.ready: list[Callable[[], None]] = []
        self.timers: list[tuple[float, int, Timer]] = []
        self.count = 0

    def wall_ms(self) -> int:
        return int(self.now_ms)

    def monotonic(self) -> float:
        return (self.now_ms - NOW) / 1000

    def boottime(self) -> float:
        return self.monotonic()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.ready.append(callback)

    def call_last(self, callback: Callable[[], None]) -> None:
        self.call_soon(lambda: self.call_soon(callback))

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(callback)
        self.count += 1
        heapq.heappush(self.timers, (self.monotonic() + seconds, self.count, timer))
        return timer


class Line:
    """One connection, seen from the client."""

    def __init__(self, server: InProcess, peer: str = "127.0.0.1:5") -> None:
        self.peer = peer
        self._server = server
        self._arrived = bytearray()
        self._received = bytearray()
        self._reader: Callable[[], None] | None = None
        self.closed = False
        self.number = 0
        self.client_id = "c"

    def recv_into(self, view: memoryview) -> int:
        if not self._arrived:
            return -1
        count = min(len(view), len(self._arrived))
        view[:count] = self._arrived[:count]
        del self._arrived[:count]
        return count

    def send(self, parts: Sequence[Part]) -> int:
        data = joined(list(parts))
        self._received += data
        return len(data)

    def pace(self, bytes_per_second: int) -> bool:
        return False

    def set_reader(self, callback: Callable[[], None] | None) -> None:
        self._reader = callback

    def set_writer(self, callback: Callable[[], None] | None) -> None: ...

    def close(self) -> None:
        self.closed = True
        self._reader = None

    # ---- the client's side -----------------------------------------------------------------------------------

    def ask(self, key: int, version: int, **fields: Any) -> None:
        """Send a request; `answer` fetches the reply."""
        self.number += 1
        message = API[key].request.new(**fields)
        self._arrived += b"".join(
            bytes(part) for part in encode_request(API[key], version, self.number, self.client_id, message)
        )  # type: ignore[arg-type]
        self.deliver()

    def deliver(self) -> bool:
        """Let the server read what it wants to; whether there was any."""
        moved = False
        while self._arrived and self._reader is not None and not self.closed:
            self._reader()
            moved = True
        return moved

    def answer(self, key: int, version: int) -> Any:
        """The next reply, None when there is none yet, or not all of it."""
        if len(self._received) < 4:
            return None
        size = int.from_bytes(self._received[:4], "big")
        if len(self._received) < 4 + size:
            return None
        frame = bytes(self._received[4 : 4 + size])
        del self._received[: 4 + size]
        return parse_response(API[key], version, memoryview(frame))[1]

    def call(self, key: int, version: int, **fields: Any) -> Any:
        self.ask(key, version, **fields)
        self._server.run()
        reply = self.answer(key, version)
        assert reply is not None, "no reply, and nothing left to do"
        return reply

    def create_topic(self, name: str, partitions: int = 1, /, **configs: str) -> None:
        request = API[19].request
        topic = request.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[request.CreatableTopicConfig(name=k.replace("_", "."), value=v) for k, v in configs.items()],
        )
        assert self.call(19, 7, topics=[topic], timeout_ms=1000).topics[0].error_code == 0

    def ask_produce(self, topic: str, *values: bytes, acks: int = -1, timeout_ms: int = 1000) -> None:
        records = build_batch([(b"k", value, (), NOW) for value in values])
        self._ask_produce_batch(topic, records, acks, timeout_ms)

    def _ask_produce_batch(self, topic: str, records: bytes | bytearray, acks: int, timeout_ms: int) -> None:
        request = API[0].request
        data = request.TopicProduceData(
            name=topic, partition_data=[request.PartitionProduceData(index=0, records=records)]
        )
        self.ask(0, 9, acks=acks, timeout_ms=timeout_ms, topic_data=[data])

    def produced(self) -> Any:
        reply = self.answer(0, 9)
        return None if reply is None else reply.responses[0].partition_responses[0]

    def produce(self, topic: str, *values: bytes) -> Any:
        self.ask_produce(topic, *values)
        self._server.run()
        return self.produced()

    def produce_batch(self, topic: str, records: bytes | bytearray) -> Any:
        """The answer to a batch as it is."""
        self._ask_produce_batch(topic, records, -1, 1000)
        self._server.run()
        return self.produced()

    def look_up(self, topic: str, timestamp: int) -> Any:
        """What ListOffsets answers."""
        request = API[2].request
        part = request.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=timestamp)
        topics = [request.ListOffsetsTopic(name=topic, partitions=[part])]
        return self.call(2, 7, replica_id=-1, isolation_level=0, topics=topics).topics[0].partitions[0]

    def ask_fetch(self, topic: str, offset: int, *, wait: int = 0, most: int = 1 << 20, **fields: Any) -> None:
        request = API[1].request
        part = request.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=most)
        topics = [request.FetchTopic(topic=topic, partitions=[part])]
        self.ask(1, 12, max_wait_ms=wait, min_bytes=1, topics=topics, **fields)

    def fetched(self) -> Any:
        reply = self.answer(1, 12)
        return None if reply is None else reply.responses[0].partitions[0]

    def fetch(self, topic: str, offset: int, **fields: Any) -> Any:
        self.ask_fetch(topic, offset, **fields)
        self._server.run()
        return self.fetched()


HEADER_FIELDS = {"last_offset_delta": 6, "base_timestamp": 7, "max_timestamp": 8, "count": 12}
"""Where `claiming` finds them among the numbers of a batch's header."""


def claiming(batch: bytearray, **said: int) -> bytearray:
    """The batch with other numbers in its header (see HEADER_FIELDS), and the checksum that belongs to them."""
    fields = list(HEADER.unpack_from(batch))
    for name, number in said.items():
        fields[HEADER_FIELDS[name]] = number
    HEADER.pack_into(batch, 0, *fields)
    batch[17:21] = crc32c(memoryview(batch)[CRC_START:]).to_bytes(4, "big")
    return batch


L = TypeVar("L", bound=Line)


class SlowLine(Line):
    """A client whose socket takes only `room` bytes before he reads."""

    def __init__(self, server: InProcess, room: int) -> None:
        super().__init__(server)
        self.room = room
        self.writer: Callable[[], None] | None = None

    def send(self, parts: Sequence[Part]) -> int:
        sent = super().send(first_bytes(list(parts), self.room)) if self.room else 0
        self.room -= sent
        return sent

    def set_writer(self, callback: Callable[[], None] | None) -> None:
        self.writer = callback

    def read(self, room: int = 1 << 40) -> None:
        """He reads so many bytes."""
        self.room = room
        while self.room and self.writer is not None:
            self.writer()


_STARTS = count()


class InProcess:
    """A running broker on `disk`. entropy: what ids are made of; no two brokers have the same.

    patience_ms: how long its start may wait for a disk that fails.
    """

    def __init__(
        self,
        disk: CrashDisk | None = None,
        *,
        lanes: Lanes | None = None,
        entropy: Numbers | None = None,
        patience_ms: int = 0,
        **settings: str,
    ) -> None:
        self.disk = disk or CrashDisk()
        self.clock = Agenda()
        self.lanes = lanes or Lanes()
        self.lines: list[Line] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._accept: dict[int, Callable[[Any], None]] = {}
        network: Any = self
        world = World(self.disk, self.clock, network, self.lanes, entropy or Numbers(1 + 1000 * next(_STARTS)))
        defaults = {"log.dirs": "/data", "duramen.reserve.bytes": "65536"}  # the disk is in memory
        overrides = {**defaults, **{name.replace("_", "."): value for name, value in settings.items()}}
        self.broker = Broker(world, load_broker_config(None, overrides), self._report)
        self.broker.start(lambda: None)
        self.run()
        if not self.broker.ready and patience_ms:
            self.pass_ms(patience_ms)
        assert self.broker.ready

    def _report(self, level: str, event: str, fields: dict[str, Any]) -> None:
        assert "traceback" not in fields, fields
        self.events.append((event, fields))

    def listen(self, host: str, port: int, on_accept: Callable[[Any], None]) -> Any:
        self._accept[port] = on_accept
        return SimpleNamespace(host=host, port=port, close=lambda: None)

    def connect(self, port: int = PORT, *, peer: str = "127.0.0.1:5") -> Line:
        return self._connected(Line(self, peer), port)

    def connect_slowly(self, room: int) -> SlowLine:
        """A client whose socket takes so many bytes before he reads."""
        return self._connected(SlowLine(self, room))

    def _connected(self, line: L, port: int = PORT) -> L:
        self.lines.append(line)
        self._accept[port](line)
        return line

    def run(self) -> None:
        """Until nothing is left to do now but what the held lanes do."""
        while True:
            while self.clock.ready:
                self.clock.ready.pop(0)()
            moved = sum(line.deliver() for line in self.lines)
            if not moved and not self.lanes.step():
                return

    def forget_cache(self) -> None:
        """What was stored is no longer in memory, nor counted as recent."""
        self.disk.short_reads = lambda length: -1
        for directory in self.broker.store.directories:
            for log in directory.logs.values():
                for segment in log.segments:
                    directory.hot.forget(segment, 0, segment.size)

    def step_journal(self) -> None:
        """Everything up to the journal's next group, which becomes durable; its lane stays held."""
        self.lanes.held.add("journal")
        self.run()
        self.lanes.held.discard("journal")
        self.lanes.step()
        self.lanes.held.add("journal")

    def pass_ms(self, milliseconds: int) -> None:
        """Time goes by, and with it what was planned for later."""
        end = self.clock.now_ms + milliseconds
        self.run()
        while self.clock.timers and NOW + self.clock.timers[0][0] * 1000 <= end:
            due, _, timer = heapq.heappop(self.clock.timers)
            self.clock.now_ms = max(self.clock.now_ms, int(NOW + due * 1000))
            if timer.callback is not None:
                timer.callback()
            self.run()
        self.clock.now_ms = end


def after_power_cut(server: InProcess, seed: int = 0, **settings: str) -> InProcess:
    """A broker on the same directory after a power cut now; the server itself goes on."""
    disk = server.disk.copy(Random(seed))
    disk.power_cut()
    disk.power_on()
    return InProcess(disk, **settings)
