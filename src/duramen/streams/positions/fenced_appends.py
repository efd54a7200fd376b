"""Appends to a stream that several may write to, of which nobody else made one like ours in between."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from duramen.dlsn import Dlsn
from duramen.errors import ConfigError
from duramen.streams.errors import StreamEndMovedError, TruncatedError
from duramen.streams.positions.position_store import (
    NamedStream,
    PositionTakenError,
    position_text,
    stored_position,
)
from duramen.streams.records import NewStreamRecord, StreamRecord
from duramen.streams.stream import Stream

_VERSION: Final = 1
_COMMIT_SECONDS: Final = 30.0


class PositionDocument(NamedTuple):
    """A position as it lies in a log. stream: the topic that is read; stream_id: its id, "" in old ones."""

    reader: str
    stream: str
    position: Dlsn
    stream_id: str


class FencedAppends:
    """Appends at the end of what was read, so that each of them follows upon everything there is.

    Where others appended meanwhile, what they did is read first, and passed over if it is none of `is_ours`.
    """

    def __init__(self, stream: Stream, is_ours: Callable[[StreamRecord], bool]) -> None:
        self._stream = stream
        self._is_ours = is_ours
        self._end = 0
        self._last: Dlsn | None = None
        """The last record in front of the end, where a power cut may take it."""

    def begin(self, end: int, last: Dlsn | None) -> None:
        """Go on behind what was read: everything in front of the offset `end`, the last record of which is `last`."""
        self._end, self._last = end, last

    def append(self, records: Sequence[NewStreamRecord]) -> None:
        """Store them as one batch.

        PositionTakenError where somebody else wrote as we do, PositionDivergedError where what it follows upon was
        lost in a power cut; nothing is stored then.
        """
        if self._last is not None:
            self._check_kept(self._last)
        while True:
            try:
                receipt = self._stream.append(records, expected_position=self._end)
                last = receipt.dlsn._replace(slot=len(records) - 1)
                self.begin(receipt.end, None if receipt.durability == "stable" else last)
            except StreamEndMovedError as moved:
                if moved.end < self._end:  # a page-cache topic after a power cut
                    raise
                self._catch_up(moved.end)
            else:
                return

    def _check_kept(self, last: Dlsn) -> None:
        """The end alone would not tell: others may have appended as much as was lost."""
        with suppress(TruncatedError):  # deleted, which is not lost
            next(self._stream.reader(last), None)

    def _catch_up(self, end: int) -> None:
        """Read on to `end`, which is that of the log: what lies in front of it may not be committed yet."""
        until = time.monotonic() + _COMMIT_SECONDS
        while (committed := self._stream.end()) < end:
            if time.monotonic() > until:
                raise StreamEndMovedError(f"{self._stream.name}: nothing behind {committed} is committed", end)
            time.sleep(0.01)
        for record in self._stream.reader(self._end):
            committed = max(committed, record.offset + 1)
            if self._is_ours(record):
                raise PositionTakenError(
                    f"{self._stream.name}: another process moved the position at {record.dlsn}; stop, or load() and "
                    "read on from there"
                )
        self._end = committed


def check_keeps_last(table: Stream) -> None:
    """ConfigError unless the last record of each key stays in a stream."""
    settings = table.settings()
    policy = settings["cleanup.policy"]
    if "compact" not in policy:
        raise ConfigError(
            f"{table.name} has cleanup.policy={policy}: a position is kept in a stream that was made with "
            'cleanup_policy="compact", which holds the last record of each key'
        )
    _check_retention(table.name, settings)


def check_keeps_all(output: Stream) -> None:
    """ConfigError where a stream deletes old records by their age or size."""
    _check_retention(output.name, output.settings())


def _check_retention(name: str, settings: Mapping[str, str]) -> None:
    if "delete" not in settings["cleanup.policy"]:
        return
    for setting in ("retention.ms", "retention.bytes"):
        if settings[setting] != "-1":
            raise ConfigError(
                f"{name} has {setting}={settings[setting]}, which would delete the position with the records: a stream "
                f"that keeps one is made with {setting.replace('.', '_')}=-1"
            )


def position_document(reader: str, stream: NamedStream, position: Dlsn) -> bytes:
    """A position as JSON, for a record's value or header."""
    about = {"version": _VERSION, "reader": reader, "stream": stream.topic, "stream_id": stream.stream_id}
    return json.dumps({**about, "position": position_text(position)}).encode()


def parse_document(where: str, document: bytes | None) -> PositionDocument:
    """What one says. ConfigError for anything else, which somebody else must have written."""
    try:
        found: Any = json.loads(document or b"")
        version, reader, stream, text = found["version"], found["reader"], found["stream"], found["position"]
        stream_id = found.get("stream_id", "")
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{where}: no position ({error!r:.200}): {document!r:.200}") from None
    if version != _VERSION:
        raise ConfigError(f"{where} has version {version!r:.80}; this release reads {_VERSION}")
    return PositionDocument(reader, stream, stored_position(where, text), stream_id)
