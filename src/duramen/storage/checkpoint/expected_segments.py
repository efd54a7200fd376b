"""Which segment files a log must have: a file that is gone must not pass for offsets that compaction took.

`duramen-checkpoint` lists the segments of each log that has several, up to its recovery point: their names are
durable by then. Of a log that had one the checkpoint names it. What may rightly be gone since is in the journal: a log
start that moved up, a truncation, a swap of compacted segments. What that swap made must reach as far as they did.

Where the list is lost a seal without its segment says the same: nothing of ours removes a segment above the log start,
that no other one replaces, and leaves its seal over a start.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import NamedTuple

from duramen.errors import CorruptLogError
from duramen.ports import Disk
from duramen.storage.segment.replacement import SWAP
from duramen.storage.segment.scan import scan
from duramen.storage.segment.seal import blocks_hold, sound_seal
from duramen.storage.segment.segment import LOG, SEAL, file_name, log_name, parse_base, parse_name

NO_END = 1 << 62


class ExpectedSegments(NamedTuple):
    """Segments that were there, by base offset, ascending. below: those that begin at or above it may be gone.

    merged: (first base, end offset) of compacted groups: of such a group only the first segment stays.
    """

    bases: tuple[int, ...] = ()
    below: int = NO_END
    merged: tuple[tuple[int, int], ...] = ()

    def and_sealed(self, names: Iterable[str], *, start_known: bool) -> ExpectedSegments:
        """The same and the segments whose seals are among the directory's names, but not they themselves.

        Not behind the last segment, where a truncation was interrupted; nor before the first one, where retention may
        have been, unless it is known up to where; nor any while a swap is half done.
        """
        parsed = [parse_name(name) for name in names]
        there = {each[0] for each in parsed if each is not None and each[1] == LOG}
        sealed = {each[0] for each in parsed if each is not None and each[1] == SEAL}
        if not there or any(each is not None and each[1].endswith(SWAP) for each in parsed):
            return self
        first = -1 if start_known else min(there)
        orphans = {base for base in sealed - there if first < base < max(there)}
        return self._replace(bases=tuple(sorted({*self.bases, *orphans}))) if orphans else self

    def and_unmerged(self, disk: Disk, home: str, *, settled: bool) -> ExpectedSegments:
        """The same, with groups of segments told apart whose compaction did not come to its end, or is lost. OSError.

        A compacted segment reaches the end of its group: its last batch stays, if only as a header. Where the first
        one in the partition directory `home` does not, all of the group has to be there, up to its end. settled: what
        is half done there could not be finished; else it is going to be.
        """
        names = disk.list_directory(home) if self.merged and disk.exists(home) else []
        if any(name.endswith(SWAP) for name in names):
            return self._replace(merged=()) if settled else self
        present = sorted(base for base in map(parse_base, names) if base is not None)
        merged, more = [], set()
        for first, end in self.merged:
            inside = [base for base in present if first <= base < end]
            if end > self.below or not inside or (inside[0] == first and reach(disk, home, first) >= end):
                merged.append((first, end))
                if end <= self.below:
                    more.add(first)
            elif (reached := reach(disk, home, inside[-1])) < end:
                more.add(reached)
        return self._replace(bases=tuple(sorted({*self.bases, *more})), merged=tuple(merged))

    def lasting(self) -> tuple[int, ...]:
        """Those that have to be there whatever the journal says, which does not last."""
        return tuple(
            base
            for base in self.bases
            if base < self.below and not any(first < base < end for first, end in self.merged)
        )

    def overlapped(self, disk: Disk, home: str) -> list[int]:
        """Base offsets of segments in `home` that are none of the log's: copies, or an old one that is back. OSError.

        They are on no list, and a listed segment in front of them, which is all as it was sealed, goes beyond where
        they begin.
        """
        names = disk.list_directory(home) if self.bases and disk.exists(home) else []
        present = {base for base in map(parse_base, names) if base is not None}
        listed, found = set(self.lasting()), []
        for base in sorted(present - listed):
            before = max((each for each in listed & present if each < base), default=None)
            if before is not None and base <= _sealed_to(disk, home, before):
                found.append(base)
        return found

    def missing(self, present: Sequence[int], start_offset: int, end: int = -1) -> list[tuple[int, int]]:
        """First and last offset of each missing segment that reaches up to the log start.

        Each ends where the next one begins that is listed or there, the last one at the log's end; where that is not
        known (-1), with its first offset.
        """
        there, lasting = set(present), set(self.lasting())
        found = []
        for base in self.bases:
            if base in there or base not in lasting:
                continue
            following = min((other for other in (*lasting, *present) if other > base), default=max(end, base + 1))
            if following > start_offset:
                found.append((max(base, start_offset), following - 1))
        return found

    def check(self, path: str, present: Sequence[int], start_offset: int, end: int = -1) -> None:
        """CorruptLogError for the first segment in the partition directory `path` that is gone. end: see `missing`."""
        for first, last in self.missing(present, start_offset, end):
            base = max(base for base in self.bases if base <= first)
            what = f"the file is missing; it held offsets up to {last}"
            raise CorruptLogError(posixpath.join(path, log_name(base)), 0, 0, what, first)


def _sealed_to(disk: Disk, home: str, base: int) -> int:
    """The last offset of a segment that is as its seal says, -1 of any other. OSError."""
    seal = sound_seal(disk, posixpath.join(home, file_name(base, SEAL)))
    if seal is None:
        return -1
    with closing(disk.open(posixpath.join(home, log_name(base)))) as file:
        return seal.last_offset if file.size() == seal.length and all(blocks_hold(file, seal)) else -1


def reach(disk: Disk, home: str, base: int) -> int:
    """The offset behind a segment's last batch, by its seal if that has its length; NO_END where it is damaged."""
    seal = sound_seal(disk, posixpath.join(home, file_name(base, SEAL)))
    with closing(disk.open(posixpath.join(home, log_name(base)))) as file:
        size = file.size()
        if seal is not None and seal.length == size:
            return seal.last_offset + 1
        reached = base
        for _, header, ok in scan(file, 0, size, crc=False):
            if not ok or header is None:
                return NO_END
            reached = header.next_offset
    return reached


NOTHING_EXPECTED = ExpectedSegments()
"""Where no list is known."""
