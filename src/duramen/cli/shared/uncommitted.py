"""Which records a member of a group has printed, and not surely committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from duramen.cli.shared.outlet import Line, Place

_SHOWN = 4


class Uncommitted:
    """Is told of lines before they are printed, and of commits."""

    def __init__(self) -> None:
        self._first: dict[Place, int] = {}

    def put(self, lines: Sequence[Line]) -> None:
        """These are about to be printed."""
        for line in lines:
            self._first[line.place] = min(line.offset, self._first.get(line.place, line.offset))

    def commit(self, done: Mapping[Place, int]) -> None:
        """What lies before these offsets is committed."""
        self._first.update(done)

    def told(self, done: Mapping[Place, int]) -> str | None:
        """A line about the records that were printed before these offsets; None where all of them are committed."""
        left = [(place, self._first.get(place, end), end) for place, end in sorted(done.items())]
        spans = [
            f"{topic}-{number} offsets {first} to {end - 1}" for (topic, number), first, end in left if first < end
        ]
        if not spans:
            return None
        more = ", …" if len(spans) > _SHOWN else ""
        return f"printed, but perhaps not committed: {', '.join(spans[:_SHOWN])}{more}; the group may read them again"
