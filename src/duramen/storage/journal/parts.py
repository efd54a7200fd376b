"""The journal's part files: how they come to be, which generation counts, and how old generations go.

Parts of a new generation become valid by one rename of their first part, so a recovery that is interrupted finds the
old generation untouched and starts over.
"""

from __future__ import annotations

import posixpath
from typing import NamedTuple

from duramen.ports import Disk, File
from duramen.storage.journal.format import (
    ALIGNMENT,
    HEADER_BLOCK,
    PREFIX,
    TEMPORARY,
    PartHeader,
    encode_part_header,
    parse_part_name,
    part_name,
)

MIN_PART_BYTES = 16 << 10
"""Smallest part: a header block and room for some groups."""


class Place(NamedTuple):
    """Where the next group of a part would go."""

    file: File
    position: int
    lap: int


class Part:
    """One part file while the journal is in use. Positions are bytes from the start of the file.

    limit: where groups with entries end; the two last sectors are for marks, which are always possible that way: up to
    idle_limit of an idle journal, then the one that says that the part behind is in use. before: where that is to be
    written, in the part in front of this one, until it is.
    """

    __slots__ = (
        "before",
        "capacity",
        "file",
        "first_lsn",
        "idle_limit",
        "lap",
        "last_lsn",
        "limit",
        "name",
        "position",
    )

    def __init__(self, name: str, file: File, capacity: int) -> None:
        self.name = name
        self.file = file
        self.capacity = capacity
        sectors = capacity // ALIGNMENT
        self.limit = (sectors - 2) * ALIGNMENT
        self.idle_limit = (sectors - 1) * ALIGNMENT
        self.position = HEADER_BLOCK
        self.lap = 0
        self.first_lsn = 0
        self.last_lsn = -1
        self.before: Place | None = None

    def start_lap(self, lap: int, first_lsn: int, before: Part | None = None) -> None:
        """Use the part from its start; what it holds is no longer needed. before: the one it follows."""
        self.before = None if before is None else Place(before.file, before.position, before.lap)
        self.lap = lap
        self.first_lsn = first_lsn
        self.last_lsn = first_lsn - 1
        self.position = HEADER_BLOCK


class PartMaker:
    """Creates the parts of one generation in one directory. `reserve` on the loop, `make` on any thread.

    Two calls may overlap (the journal grows on the spot while a job makes its next part): each has its own name.
    """

    def __init__(self, disk: Disk, directory: str, generation: int, seed: int) -> None:
        self.disk = disk
        self.directory = directory
        self.generation = generation
        self.seed = seed
        self._made = 0

    def reserve(self) -> int:
        """The number of the next part; never given out again."""
        number = self._made
        self._made += 1
        return number

    def make(self, size: int, number: int | None = None) -> Part:
        """A part of `size` bytes: zeros written and synced, then named durably. OSError leaves nothing behind.

        number: as reserved; None (on the loop only) reserves one.
        """
        if number is None:
            number = self.reserve()
        name = part_name(self.generation, number)
        path = posixpath.join(self.directory, name)
        temporary = path + TEMPORARY
        file = self.disk.open(temporary, create=True, write=True)
        try:
            file.truncate(0)
            header = PartHeader(self.generation, number, self.seed, size)
            file.pwritev([encode_part_header(header)], 0)
            self.disk.preallocate(file, size)
            self.disk.rename(temporary, path)
            self.disk.sync_directory(self.directory)
        except OSError:
            self._drop(temporary, path)
            raise
        finally:
            file.close()
        try:
            return Part(name, self.disk.open(path, write=True), size)
        except OSError:
            self._drop(path)
            raise

    def _drop(self, *paths: str) -> None:
        for path in paths:
            if self.disk.exists(path):
                self.disk.remove(path)


def find_parts(disk: Disk, directory: str) -> tuple[int, list[str]]:
    """The newest generation and the names of its parts; (-1, []) when there is no journal."""
    found: dict[int, list[str]] = {}
    for name in disk.list_directory(directory):
        parsed = parse_part_name(name)
        if parsed is not None:
            found.setdefault(parsed[0], []).append(name)
    if not found:
        return -1, []
    newest = max(found)
    return newest, sorted(found[newest])


def remove_parts(disk: Disk, directory: str, *, keep: int) -> None:
    """Remove unfinished parts and every generation but `keep`; the caller syncs the directory's names."""
    for name in disk.list_directory(directory):
        parsed = parse_part_name(name)
        unfinished = name.startswith(PREFIX) and name.endswith(TEMPORARY)
        if unfinished or (parsed is not None and parsed[0] != keep):
            disk.remove(posixpath.join(directory, name))
