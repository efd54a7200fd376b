"""Partitions on real logs on a disk in memory, without a loop: what was planned happens in `run`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from duramen.config import TopicConfig, load_broker_config
from duramen.errors import DuramenError, KafkaError
from duramen.model import TopicPartition
from duramen.partition.replica.parked_appends import Appended
from duramen.partition.store.store import Store
from duramen.ports import FileSpan, Timer, World
from duramen.sim.world.disk import CrashDisk
from duramen.storage.directory.log_directory import DirectorySettings
from duramen.storage.read.read_plan import Pending
from duramen.wire.batch import BatchHeader, batches, build_batch, build_marker, records

NOW = 1_760_000_000_000
TOPIC_ID = b"t" * 16
TP = TopicPartition("t", 0)


class NoTimer:
    def cancel(self) -> None: ...


class Clock:
    """Stands still until told otherwise; delayed calls (maintenance) never come."""

    def __init__(self) -> None:
        self.now_ms = NOW
        self.wall_ahead_ms = 0
        """How far somebody has set the wall clock."""
        self.agenda: list[Callable[[], None]] = []

    def wall_ms(self) -> int:
        return self.now_ms + self.wall_ahead_ms

    def monotonic(self) -> float:
        return self.now_ms / 1000

    def boottime(self) -> float:
        return self.monotonic()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.agenda.append(callback)

    def call_last(self, callback: Callable[[], None]) -> None:
        self.call_soon(lambda: self.call_soon(callback))

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return NoTimer()


class Lanes:
    """Work that waits until it is told to go on; lanes in `held` do not move."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []
        self.held: set[str] = set()

    def submit(self, lane: str, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self.waiting.append((lane, work, done))

    def together(self, work: Sequence[Callable[[], Any]]) -> list[Any]:
        return [each() for each in work]

    def step(self) -> bool:
        for entry in self.waiting:
            if entry[0].partition(":")[0] not in self.held:
                self.waiting.remove(entry)
                try:
                    result, error = entry[1](), None
                except (OSError, DuramenError) as raised:
                    result, error = None, raised
                entry[2](result, error)
                del error  # it keeps this frame, and so the work, whose files would stay open
                return True
        return False


class Numbers:
    """Entropy that is none."""

    def __init__(self, first: int = 1) -> None:
        self.next = first

    def random_bytes(self, length: int) -> bytes:
        self.next += 1
        return self.next.to_bytes(length, "big")

    def uniform(self, low: float, high: float) -> float:
        return low


class Bench:
    """A store of one directory with one partition, `t-0`, led if there is an epoch."""

    def __init__(self, disk: CrashDisk | None = None, *, epoch: int | None = 1, **configs: str) -> None:
        self.disk = disk or CrashDisk()
        self.clock = Clock()
        self.lanes = Lanes()
        network: Any = None
        self.world = World(self.disk, self.clock, network, self.lanes, Numbers())
        self.broker_config = load_broker_config(None, {})
        self.store = Store(self.world, 1)
        self.failures: list[BaseException] = []
        self.store.on_failure = lambda directory, error: self.failures.append(error)
        self.directory = self.store.open_directory("/data", DirectorySettings())
        self.partition = self.store.open_partition(TP, TOPIC_ID, self.config(**configs))
        if epoch is not None:
            self.partition.lead(epoch, (1,), (1,), 0)
        self.run()

    def config(self, **configs: str) -> TopicConfig:
        return TopicConfig(self.broker_config, {name.replace("_", "."): value for name, value in configs.items()})

    def reconfigure(self, **configs: str) -> None:
        self.store.configure(self.partition, self.config(**configs))
        self.run()

    def run(self) -> None:
        """Until nothing is left to do but what the held lanes do."""
        while True:
            while self.clock.agenda:
                self.clock.agenda.pop(0)()
            if not self.lanes.step():
                return

    # ---- producing -------------------------------------------------------------------------------------------

    def send(self, data: bytearray | bytes, acks: int = -1) -> list[Appended | KafkaError]:
        """Append without running anything; the list fills when the answer comes."""
        answers: list[Appended | KafkaError] = []
        self.partition.append(memoryview(bytearray(data)), acks, self.clock.wall_ms(), answers.append)
        return answers

    def produce(self, data: bytearray | bytes, acks: int = -1) -> Appended | KafkaError:
        """Append and run until it is answered."""
        answers = self.send(data, acks)
        self.run()
        (answer,) = answers
        return answer

    def local(self, data: bytearray) -> int:
        """Append one of the broker's own batches and commit it; returns the log end."""
        end = self.partition.append_local(data, self.clock.wall_ms())
        self.run()
        return end

    # ---- reading ---------------------------------------------------------------------------------------------

    def bytes_from(self, offset: int = 0, isolation: int = 0, max_bytes: int = 1 << 20) -> bytes:
        """What a consumer gets, cold pieces included."""
        return joined(self.partition.read(offset, max_bytes, isolation).parts)

    def headers(self, offset: int = 0, isolation: int = 0) -> list[BatchHeader]:
        return [header for _, header in batches(self.bytes_from(offset, isolation))]

    def values(self, offset: int = 0, isolation: int = 0) -> list[bytes | None]:
        data = memoryview(self.bytes_from(offset, isolation))
        return [
            record.value
            for position, header in batches(data)
            if not header.is_control
            for record in records(data[position:], header, max_bytes=1 << 24)
        ]


def joined(parts: list[Any]) -> bytes:
    """The bytes of a read's parts, whatever they are."""
    out = bytearray()
    for part in parts:
        if isinstance(part, FileSpan):
            out += part.file.pread(part.length, part.position)
        else:
            out += part.run().data if isinstance(part, Pending) else part
    return bytes(out)


def plain(*values: bytes, key: bytes | None = b"k", timestamp: int = NOW, **fields: Any) -> bytearray:
    """A produced batch."""
    return build_batch([(key, value, (), timestamp + n) for n, value in enumerate(values)], **fields)


def transactional(producer: int, *values: bytes, sequence: int = 0) -> bytearray:
    """A batch inside a transaction of the producer's epoch 0."""
    return plain(*values, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True)


def marker(producer: int, kind: int) -> bytearray:
    """The end of a producer's transaction, as a log has it."""
    return build_marker(producer, 0, kind, 0, NOW)
