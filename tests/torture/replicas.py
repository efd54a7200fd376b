"""Three disks held against each other after a clean stop: what replicas of a partition have is the same on all.

Read here with a parser of its own: batch headers and checksums, and nothing of the code that wrote them.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, two timestamps, producer's id, epoch,
sequence, count."""
CRC_FROM = 21


class StoredBatch(NamedTuple):
    """A batch as it lies in a file."""

    base: int
    last: int
    epoch: int
    crc: int
    whole: int
    """Checksum of all its bytes: its own does not cover the leader epoch."""


def batches(folder: Path) -> Iterator[StoredBatch]:
    """Every batch of a partition's files, by offset; ValueError with the place of one that is damaged."""
    for path in sorted(folder.glob("*.log")):
        data = memoryview(path.read_bytes())
        at = 0
        while len(data) - at >= HEADER.size:
            base, length, epoch, magic, crc, _, delta, *_ = HEADER.unpack_from(data, at)
            end = at + 12 + length
            if magic != 2 or length < HEADER.size - 12 or end > len(data):
                if not any(data[at:]):
                    break  # room that was set aside
                raise ValueError(f"{path} at {at}: no batch")
            if crc32c.crc32c(data[at + CRC_FROM : end]) != crc:
                raise ValueError(f"{path} at {at}: the batch of {base} is damaged")
            yield StoredBatch(base, base + delta, epoch, crc, zlib.crc32(data[at:end]))
            at = end


def partitions(data: Path, prefix: str) -> dict[str, Path]:
    """The folders of these topics' partitions in a data directory."""
    return {
        path.name: path
        for path in data.iterdir()
        if path.is_dir() and path.name.startswith(prefix) and not path.name.endswith(("-delete", "-stray"))
    }


def differences(directories: Sequence[Path], prefix: str, compacted: Sequence[str] = ()) -> tuple[list[str], int]:
    """What is not the same everywhere, one line each; and how many batches were compared.

    Logs begin where each replica's retention put their start, and end at the same offset. compacted: topics whose
    replicas need to have only what is of the same offset in common.
    """
    found: list[str] = []
    compared = 0
    everywhere = [partitions(directory, prefix) for directory in directories]
    for name in sorted({name for each in everywhere for name in each}):
        missing = [str(directories[n]) for n, each in enumerate(everywhere) if name not in each]
        if missing:
            found.append(f"{name} is not in {missing}")
            continue
        try:
            copies = [{batch.base: batch for batch in batches(each[name])} for each in everywhere]
        except ValueError as error:
            found.append(str(error))
            continue
        thinned = name.rpartition("-")[0] in compacted
        compared += sum(map(len, copies))
        found += _compare(name, copies, thinned=thinned)
    return found, compared


def _compare(name: str, copies: list[dict[int, StoredBatch]], *, thinned: bool) -> list[str]:
    found = []
    ends = [max((batch.last for batch in copy.values()), default=-1) for copy in copies]
    # Deleted segments and compaction leave each replica its own beginning, and compaction its own end.
    if not thinned and len(set(ends)) > 1 and all(copies):
        found.append(f"{name} ends at {ends}")
    start = max((min(copy) for copy in copies if copy), default=0)
    first = copies[0]
    for number, copy in enumerate(copies[1:], 1):
        for base in sorted(first.keys() | copy.keys()):
            mine, other = first.get(base), copy.get(base)
            if mine == other or ((mine is None or other is None) and (thinned or base < start)):
                continue
            if thinned and mine is not None and other is not None and mine.epoch == other.epoch:
                continue  # each replica has taken other records out of it
            found.append(f"{name} at {base}: copy 0 has {mine}, copy {number} has {other}")
            break
    return found
