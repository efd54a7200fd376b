"""Which segment files a log must have: a file that is gone must not pass for offsets that compaction took.

`duramen-directory` lists the segments of each log that has several, up to its recovery point: their names are
durable by then. Of a log that had one the checkpoint names it. What may rightly be gone since is in the journal: a log
start that moved up, a truncation, a swap of compacted segments.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import NamedTuple

from duramen.errors import CorruptLogError
from duramen.storage.segment import log_name

NO_END = 1 << 62


class Wanted(NamedTuple):
    """Segments that were there, by base offset, ascending. below: those that begin at or above it may be gone.

    merged: (first base, end offset) of compacted groups: of such a group only the first segment stays.
    """

    bases: tuple[int, ...] = ()
    below: int = NO_END
    merged: tuple[tuple[int, int], ...] = ()

    def lasting(self) -> tuple[int, ...]:
        """Those that have to be there whatever the journal says, which does not last."""
        return tuple(
            base
            for base in self.bases
            if base < self.below and not any(first < base < end for first, end in self.merged)
        )

    def missing(self, present: Sequence[int], start_offset: int) -> list[tuple[int, int]]:
        """First and last offset of each missing segment that reaches up to the log start.

        The last one listed ends where the next one that is there begins; else the offsets end with its first one.
        """
        there, lasting = set(present), set(self.lasting())
        found = []
        for number, base in enumerate(self.bases):
            if base in there or base not in lasting:
                continue
            later = self.bases[number + 1 :] or sorted(other for other in present if other > base) or [base + 1]
            following = later[0]
            if following > start_offset:
                found.append((max(base, start_offset), following - 1))
        return found

    def check(self, path: str, present: Sequence[int], start_offset: int) -> None:
        """CorruptLogError for the first segment in the partition directory `path` that is gone."""
        for first, last in self.missing(present, start_offset):
            base = max(base for base in self.bases if base <= first)
            what = f"the file is missing; it held offsets up to {last}"
            raise CorruptLogError(posixpath.join(path, log_name(base)), 0, 0, what, first)


NOTHING_WANTED = Wanted()
"""Where no list is known."""
