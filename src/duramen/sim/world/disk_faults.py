"""What is wrong with a simulated disk for a while: calls that fail, short reads, a slow device, bits that flipped.

Each is an object that a `CrashDisk` asks at its calls. `counts` collects what was really done to the server, by kind:
a window in which nothing happened to be called counts for nothing.
"""

from __future__ import annotations

import errno
from collections import Counter
from contextlib import suppress
from random import Random
from typing import NamedTuple

from duramen.errors import DuramenError, KafkaError
from duramen.sim.world.directory_tree import Directory
from duramen.sim.world.disk import CrashDisk, DiskCall, ShortWrite
from duramen.storage import ENTRY_SIZE, parse_part_name, read_journal
from duramen.wire.batch import batches

OPERATIONS = (
    "open",
    "exists",
    "list_directory",
    "make_directories",
    "rename",
    "remove",
    "sync_directory",
    "lock",
    "volume_space",
    "size",
    "pread",
    "pread_nowait",
    "pwritev",
    "sync",
    "truncate",
    "preallocate",
    "modified_ms",
)
"""Every method of Disk and File that can fail, as a Call names it."""
HINTS = ("drop_cache", "backdate")
"""Those that cannot: what the kernel says to them is heard by nobody."""

CRC_STARTS_AT = 21
"""Bytes of a batch before what its CRC covers."""
KINDS = (errno.EIO, errno.ENOSPC, errno.EACCES)
FLIPPABLE = (".log", ".index", ".timeindex", ".seal", ".producers", ".snapshot")


class Errors:
    """Some calls fail: of one operation or of any, a few of them or as long as it lasts, each kind of error.

    below: only those of paths that begin like this.
    """

    def __init__(self, random: Random, counts: Counter[str], operation: str | None = None) -> None:
        self._random = random
        self._counts = counts
        self.operation = operation if operation is not None else random.choice((None, *OPERATIONS))
        self.below = ""
        self.error = random.choice(KINDS)
        self._chance = random.choice((1.0, 0.3, 0.03))
        self._skip = random.choice((0, 0, random.randint(0, 30)))
        self._left = random.choice((1, 1, 3, 10_000))

    def __call__(self, call: DiskCall) -> OSError | None:
        if call.operation in HINTS or not call.path.startswith(self.below):
            return None
        if self._left <= 0 or self.operation not in (None, call.operation) or self._random.random() > self._chance:
            return None
        if self._skip:
            self._skip -= 1
            return None
        self._left -= 1
        name = errno.errorcode[self.error]
        if call.operation == "pwritev" and self._random.random() < 0.5:
            self._counts[f"short write, {name}"] += 1
            error = ShortWrite(self.error, name, call.path)
            error.share = self._random.random()
            return error
        self._counts[f"{name} in {call.operation}"] += 1
        return OSError(self.error, name, call.path)


class ShortReads:
    """Reads that must not wait bring a part of what was asked for, or nothing."""

    def __init__(self, random: Random, counts: Counter[str]) -> None:
        self._random = random
        self._counts = counts

    def __call__(self, length: int) -> int:
        if self._random.random() < 0.5:
            return length
        self._counts["short read"] += 1
        return self._random.choice((-1, self._random.randint(0, length)))


class Latency:
    """Seconds that disk calls take: quick when they only touch the cache, seeded and sometimes long for a sync.

    slow: seconds added to every sync; dragging: to every other call.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self.slow = 0.0
        self.dragging = 0.0

    def __call__(self, call: DiskCall) -> float:
        if call.operation in ("sync", "sync_directory", "preallocate"):
            wait = self._random.expovariate(1000.0)
            return self.slow + (wait * 50 if self._random.random() < 0.02 else wait)
        return self.dragging + 0.000005 + call.length * 1e-9


AROUND_BYTES = 16


class Flip(NamedTuple):
    """One bit of a file at rest that is not what was written. flipped: the byte's value with it; around: and what
    surrounds it, by which one tells whether the place was written anew since.
    """

    path: str
    position: int
    mask: int
    flipped: int
    around: bytes


def flip_a_bit(disk: CrashDisk, random: Random, directory: str) -> Flip | None:
    """Flip one bit of a file while nothing uses the disk; None when there is nothing that may be flipped.

    In the journal only what a later mark calls durable: in its last group damage cannot be told from a torn tail, which
    is documented (docs/internals/journal.md).
    """
    places: list[tuple[str, int, int]] = []
    for path, inode in disk.names.walk():
        if inode.cache and path.endswith(FLIPPABLE):
            places.append((path, 0, len(inode.cache)))
    journal = _durable_entries(disk, directory)
    if journal and (not places or random.random() < 0.3):
        places = journal
    if not places:
        return None
    path, start, end = random.choice(places)
    position = random.randrange(start, end)
    if path.endswith(".log") and not disk.names.has(path.removesuffix(".log") + ".seal"):
        position = _inside_a_crc(disk, path, position)
    mask = 1 << random.randrange(8)
    disk.damage(path, position, mask)
    cache = disk.contents()[path]
    return Flip(path, position, mask, cache[position], _around(cache, position))


def take_pages(disk: CrashDisk, random: Random) -> None:
    """Clean pages of one segment leave memory, from some place on; they are on the disk still."""
    segments = [inode for path, inode in disk.names.walk() if inode.cache and path.endswith(".log")]
    if segments:
        inode = random.choice(segments)
        inode.drop(random.randrange(len(inode.cache)), random.choice((4096, 20_000, 1 << 20)))


def _around(content: bytes, position: int) -> bytes:
    return content[max(position - AROUND_BYTES, 0) : position + AROUND_BYTES]


def _inside_a_crc(disk: CrashDisk, path: str, position: int) -> int:
    """The position, or the nearest behind it that a batch's CRC covers: nothing else protects an unsealed segment."""
    node = disk.names.find(path)
    cache = b"" if isinstance(node, Directory) else bytes(node.cache)
    with suppress(KafkaError):  # the torn tail of a page-cache topic is no batch
        for start, header in batches(memoryview(cache)):
            if start <= position < start + header.size:
                return max(position, start + CRC_STARTS_AT)
    return position


def _durable_entries(disk: CrashDisk, directory: str) -> list[tuple[str, int, int]]:
    """Byte ranges of journal entries that recovery needs and must miss if they are damaged."""
    if not any(parse_part_name(path.rpartition("/")[2]) for path, _ in disk.names.walk()):
        return []
    try:
        contents = read_journal(disk, directory)
    except (OSError, DuramenError):
        return []
    try:
        return [
            (
                f"{directory}/{contents.names[entry.part]}",
                entry.data_position - ENTRY_SIZE,
                entry.data_position + entry.size,
            )
            for entry in contents.entries
            if entry.lsn <= contents.durable_lsn
        ]
    finally:
        contents.close()


def restore(disk: CrashDisk, flip: Flip) -> bool:
    """Put the bit back, as from a copy, where nobody wrote over it; whether that was so."""
    if not _around(disk.contents().get(flip.path, b""), flip.position).startswith(flip.around):
        return False
    disk.damage(flip.path, flip.position, flip.mask)
    return True
