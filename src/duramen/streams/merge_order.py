"""In which order the records of several streams come, by transaction id. Pure.

A record may be given once no stream can still have one that comes before it. Transaction ids of a stream never step
back, so what a stream can still have is not below its last one.
"""

from __future__ import annotations

from collections.abc import Iterable

from duramen.streams.records import StreamRecord

_NOTHING_KNOWN = -1


class MergeOrder:
    """Records by (transaction id, name of the stream, offset). Each stream has a record that waits for its turn, or a
    least transaction id that its next one may have, or it has ended.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._heads: dict[str, StreamRecord] = {}
        self._least = dict.fromkeys(names, _NOTHING_KNOWN)

    def next(self) -> tuple[str, StreamRecord | None] | None:
        """(stream, record) of the record whose turn it is; without a record: the stream has to bring one, or a greater
        least id, or to end, before any other may be given. None where all have ended.
        """
        if not self._least:
            return None
        name = min(self._least, key=lambda name: (self._least[name], name))
        return name, self._heads.pop(name, None)

    def brought(self, name: str, record: StreamRecord) -> None:
        """The stream's next record."""
        self._heads[name] = record
        self._least[name] = record.txid

    def idle(self, name: str, least_txid: int) -> None:
        """The stream has no record now; the next one will not be below this id."""
        self._least[name] = max(self._least[name], least_txid)

    def is_known(self, name: str) -> bool:
        """Whether there is a least id for the stream."""
        return self._least[name] != _NOTHING_KNOWN

    def ended(self, name: str) -> None:
        """The stream brings no more."""
        del self._least[name]
