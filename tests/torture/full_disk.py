"""kill -9 round the deletion of a topic on a disk that is really full: it makes room, and nothing else is lost.

    python -m tests.torture.full_disk --kills 30

Needs a small file system of its own: a tmpfs, which only root may mount.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.torture.ledger import number_of, value_of, verdict
from tests.worlds.served_node import Served

from duramen.storage.files.ballast import BALLAST

VOLUME_BYTES = 32 << 20
SETTINGS = {
    "log.segment.bytes": str(1 << 20),
    "duramen.journal.max.bytes": str(4 << 20),
    "duramen.journal.part.bytes": str(1 << 20),
    "duramen.reserve.bytes": str(4 << 20),
    "log.retention.ms": "-1",
    "log.segment.delete.delay.ms": "200",
}
SECONDS = 90
"""In which a deletion has to be taken, and room to be made."""
KEPT = "kept"
WAITS = (0, 0.01, 0.05, 0.2, 1, 3)
"""Seconds, at most, from the request to the kill."""


@contextmanager
def small_volume(folder: Path, size: int = VOLUME_BYTES) -> Iterator[Path]:
    """An empty file system of `size` bytes below the folder; PermissionError where this user may not mount one."""
    home = folder / "volume"
    home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "duramen-torture", str(home)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        raise PermissionError("only root may mount the small file system that this fills")
    try:
        yield home
    finally:
        subprocess.run(["umount", str(home)], check=True)


class FullDisk:
    """One node on such a volume, the topic that stays, and those that come and go."""

    def __init__(self, folder: Path, volume: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.node = Served(folder, SETTINGS | {"log.dirs": str(volume / "data")})
        self.reserve = volume / "data" / BALLAST
        self.clients = {"bootstrap.servers": self.node.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 200}
        self.admin = AdminClient(self.clients)
        self.acknowledged: dict[int, int] = {}
        self.sent = 0
        self.kills = self.answered = 0
        self.broken: list[str] = []

    def run(self, kills: int) -> None:
        self.node.start()
        try:
            self.admin.create_topics([NewTopic(KEPT, 1)])[KEPT].result()
            if not self._within(self.reserve.exists):
                self.broken.append("there is no reserve")
            while self.kills < kills and not self.broken:
                self._round(f"big-{self.kills}")
        finally:
            self.node.kill()

    def line(self) -> str:
        return (
            f"{self.kills} kills on a full disk, {self.answered} deletions answered before, "
            f"{len(self.acknowledged):,} records acknowledged, {len(self.broken)} promises broken"
        )

    def _round(self, big: str) -> None:
        self.admin.create_topics([NewTopic(big, 2)])[big].result()
        if self._write(100):
            self.broken.append("a write was refused although there was room")
        self._fill(big)
        self._write(5)
        answered = self._delete_and_kill(big)
        while self.random.random() < 0.3:
            self.node.launch()
            time.sleep(self.random.uniform(0.05, 0.6))
            self.node.kill()
        self.node.start()
        if answered and big in self._topics():
            self.broken.append(f"{big} was deleted, and came back")
        if not self._within(lambda: self._is_gone(big)):
            self.broken.append(f"{big} cannot be deleted:\n{self.node.log()}")
        elif not self._within(lambda: not self._write(1)):
            self.broken.append(f"{big} is gone, and there is no room:\n{self.node.log()}")
        self._audit()

    def _delete_and_kill(self, big: str) -> bool:
        """Whether the deletion was answered before the kill."""
        deletion = self.admin.delete_topics([big], operation_timeout=5, request_timeout=5)[big]
        end = time.monotonic() + self.random.choice(WAITS) * self.random.random()
        while time.monotonic() < end and not deletion.done():
            time.sleep(0.002)
        answered = deletion.done() and deletion.exception() is None
        self.node.kill()
        self.kills += 1
        self.answered += answered
        return answered

    def _is_gone(self, big: str) -> bool:
        if big not in self._topics():
            return True
        try:
            self.admin.delete_topics([big], operation_timeout=10)[big].result()
        except KafkaException:
            return False
        return big not in self._topics()

    def _topics(self) -> set[str]:
        return set(self.admin.list_topics(timeout=SECONDS).topics)

    def _within(self, what: Callable[[], bool]) -> bool:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            if what():
                return True
            time.sleep(0.1)
        return False

    def _fill(self, big: str) -> None:
        full = False

        def told(error: KafkaError | None, _: Message) -> None:
            nonlocal full
            full = full or error is not None

        producer = Producer(self.clients | {"message.timeout.ms": 2500, "linger.ms": 2})
        value = os.urandom(20_000)
        while not full:
            for _ in range(200):
                producer.produce(big, value, on_delivery=told)
            producer.flush()

    def _write(self, count: int) -> int:
        """Write records that stay; how many were not acknowledged."""
        refused = 0

        def told(number: int) -> Callable[[KafkaError | None, Message], None]:
            def answer(error: KafkaError | None, message: Message) -> None:
                nonlocal refused
                if error is None:
                    self.acknowledged[number] = message.offset()
                else:
                    refused += 1

            return answer

        producer = Producer(self.clients | {"message.timeout.ms": 3000, "enable.idempotence": True, "linger.ms": 2})
        for _ in range(count):
            producer.produce(KEPT, value_of(self.sent), on_delivery=told(self.sent))
            self.sent += 1
        producer.flush()
        return refused

    def _audit(self) -> None:
        consumer = Consumer(
            self.clients | {"group.id": "audit", "enable.partition.eof": True, "auto.offset.reset": "earliest"}
        )
        found: dict[int, int] = {}
        try:
            consumer.assign([TopicPartition(KEPT, 0, 0)])
            while (message := consumer.poll(SECONDS)) is not None and message.error() is None:
                number = number_of(message.value())
                if number in found:
                    self.broken.append(f"record {number} is at {found[number]} and at {message.offset()}")
                if message.offset() != len(found):
                    self.broken.append(f"offset {message.offset()} comes behind {len(found) - 1}")
                found[number] = message.offset()
        finally:
            consumer.close()
        for number, offset in self.acknowledged.items():
            if found.get(number) != offset:
                self.broken.append(f"record {number} was acknowledged at {offset}, and is at {found.get(number)}")


def on_small_volume(torture: Callable[[Path, Path], list[str]], size: int = VOLUME_BYTES) -> int:
    """Have `torture` tell what broke, given a folder and a small volume below it; the exit status."""
    folder = Path(tempfile.mkdtemp(prefix="duramen-torture-"))
    broken: list[str] = []
    try:
        with small_volume(folder, size) as volume:
            broken = torture(folder, volume)
    except PermissionError as error:
        print(f"left out: {error}")
    return verdict(broken, folder)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.torture.full_disk", description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    def torture(folder: Path, volume: Path) -> list[str]:
        disk = FullDisk(folder, volume, options.seed)
        disk.run(options.kills)
        print(disk.line())
        return disk.broken

    return on_small_volume(torture)


if __name__ == "__main__":
    sys.exit(main())
