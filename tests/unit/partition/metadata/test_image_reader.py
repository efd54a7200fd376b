"""A node's image follows its own copy of the metadata log: what is committed, in slices, and nothing else."""

from __future__ import annotations

import errno
from typing import Any

from tests.worlds.machine_fakes import FakeClock, FakePartition

from duramen.errors import DuramenError, StorageError
from duramen.machines.metadata import CommittedImage, codec
from duramen.machines.metadata.committed_image import Changes
from duramen.partition.metadata import image_reader
from duramen.partition.metadata.image_reader import ImageReader
from duramen.wire.batch import build_batch


class Node:
    """A reader of a log that commits when it is told to."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.log = FakePartition()
        self.committed = CommittedImage()
        self.changes: list[Changes] = []
        self.failed: list[tuple[DuramenError, int]] = []
        self.gaps: list[tuple[int, int]] = []
        self.reader = ImageReader(
            self.log,
            self.committed,
            self.clock,
            lambda changes, size: self.changes.append(changes),
            lambda error, failures: self.failed.append((error, failures)),
            lambda first, last: self.gaps.append((first, last)),
        )

    def append(self, *names: str) -> None:
        """One batch with a topic for each name."""
        rows: list[Any] = []
        for name in names:
            record = codec.topic(name, name.encode().rjust(16, b"\0"))
            rows.append((record.key, record.value, (), 0))
        self.log.append_local(build_batch(rows), 0)

    @property
    def names(self) -> list[str]:
        return self.committed.image.names()


def test_nothing_is_seen_before_it_is_committed() -> None:
    node = Node()
    node.append("a")
    node.reader.load(0)
    node.reader.follow()
    assert node.names == []
    called: list[int] = []
    node.reader.when_applied(1, lambda: called.append(1))
    assert called == []
    node.log.commit()
    assert (node.names, called, node.reader.position) == (["a"], [1], 1)
    node.reader.when_applied(1, lambda: called.append(2))
    assert called == [1, 2]


def test_what_was_there_at_the_start_is_no_change() -> None:
    node = Node()
    node.append("a")
    node.log.commit()
    node.reader.load(0)
    node.reader.follow()
    node.append("b")
    node.log.commit()
    assert node.names == ["a", "b"]
    assert [len(changes.created) for changes in node.changes] == [1]


def test_much_at_once_is_applied_in_slices(monkeypatch: Any) -> None:
    """Others get their turn of the loop in between, and a batch is never cut."""
    monkeypatch.setattr(image_reader, "SLICE_RECORDS", 3)
    node = Node()
    node.reader.follow()
    for number in range(4):
        node.append(f"a{number}", f"b{number}")
    node.log.commit()
    assert len(node.names) == 4
    node.clock.advance(0)
    assert len(node.names) == 8
    assert [len(changes.created) for changes in node.changes] == [4, 4]


def test_a_log_that_cannot_be_read_is_told_once() -> None:
    node = Node()
    node.reader.follow()
    node.append("a")
    node.append("a")  # the same topic twice: no controller of ours writes that
    damaged = bytearray(build_batch([(None, b"x", (), 0)]))
    damaged[-1] ^= 1
    node.log.append_local(damaged, 0)
    node.log.commit()
    node.clock.advance(0)
    assert [(node.reader.failed, 1)] == node.failed
    node.clock.advance(10_000)
    node.append("b")
    node.log.commit()
    assert len(node.failed) == 1
    assert "b" not in node.names


def test_records_that_are_missing_are_told_before_what_follows() -> None:
    node = Node()
    node.append("a", "b")
    node.log.log_end_offset += 3  # a repair took them out
    node.append("c")
    node.log.commit()
    node.reader.load(0)
    assert node.gaps == [(2, 4)]
    assert node.names == ["a", "b", "c"]
    assert node.reader.position == 6


class FailingDisk:
    """While it fails, nothing of the log can be read."""

    def __init__(self, node: Node, monkeypatch: Any) -> None:
        self.fails = True
        self._read = node.log.read
        monkeypatch.setattr(node.log, "read", self.read)

    def read(self, *args: Any, **kwargs: Any) -> Any:
        if self.fails:
            raise OSError(errno.EIO, "lost")
        return self._read(*args, **kwargs)


def test_a_disk_that_fails_is_read_again_until_it_does_not(monkeypatch: Any) -> None:
    node = Node()
    node.reader.follow()
    disk = FailingDisk(node, monkeypatch)
    node.append("a")
    node.log.commit()
    node.append("b")
    node.log.commit()  # is no reason to ask it sooner
    node.clock.advance(2000)
    assert [(type(error), failures) for error, failures in node.failed] == [
        (StorageError, 1),
        (StorageError, 2),
        (StorageError, 3),
    ]
    called: list[int] = []
    node.reader.when_applied(2, lambda: called.append(1))
    disk.fails = False
    node.clock.advance(1000)
    assert (node.names, node.reader.failed, called) == (["a", "b"], None, [1])
    disk.fails = True
    node.append("c")
    node.log.commit()
    assert node.failed[-1][1] == 1  # it begins to count anew


def test_a_closed_reader_asks_no_more(monkeypatch: Any) -> None:
    node = Node()
    node.reader.follow()
    disk = FailingDisk(node, monkeypatch)
    node.append("a")
    node.log.commit()
    node.reader.close()
    disk.fails = False
    node.clock.advance(10_000)
    assert (node.names, len(node.failed)) == ([], 1)
