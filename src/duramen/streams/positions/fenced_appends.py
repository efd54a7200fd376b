"""Appends to a stream that several may write to, of which nobody else made one like ours in between."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from duramen.dlsn import FIRST, Dlsn
from duramen.errors import ConfigError
from duramen.streams.errors import PositionDivergedError, StreamEndMovedError
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
        self._end = FIRST

    def begin(self, end: Dlsn) -> None:
        """Go on after what was read: everything in front of the position `end`."""
        self._end = end

    def append(self, records: Sequence[NewStreamRecord]) -> None:
        """Store them as one batch.

        PositionTakenError where somebody else wrote as we do, PositionDivergedError where what it follows upon was
        lost in a power cut; nothing is stored then.
        """
        while True:
            try:
                self._end = self._stream.append(records, expected_position=self._end).next
            except StreamEndMovedError as moved:
                if moved.end < self._end.offset:  # a page-cache topic after a power cut
                    lost = f"{self._stream.name} ends at {moved.end}, and what was at {self._end} is lost"
                    raise PositionDivergedError(lost, moved.end) from moved
                self._catch_up(moved.end)
            else:
                return

    def _catch_up(self, end: int) -> None:
        """Read on to `end`, which is that of the log: what lies in front of it may not be committed yet."""
        until = time.monotonic() + _COMMIT_SECONDS
        while (committed := self._stream.end_position()).offset < end:
            if time.monotonic() > until:
                raise StreamEndMovedError(f"{self._stream.name}: nothing after {committed} is committed", end)
            time.sleep(0.01)
        for record in self._stream.reader(self._end):
            if record.offset >= committed.offset:
                committed = record.dlsn.next
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
