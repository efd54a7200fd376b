"""What every store of positions does, and what it refuses."""

from __future__ import annotations

from typing import Protocol

from duramen.dlsn import Dlsn, parse_dlsn
from duramen.errors import ConfigError, DuramenError
from duramen.streams.errors import PositionDivergedError


class NamedStream(Protocol):
    """A stream, as far as a store has to know it: `Stream` is one."""

    @property
    def topic(self) -> str:
        """Its Kafka topic, which is the same over each back end."""
        ...

    @property
    def stream_id(self) -> str:
        """The topic's id (hexadecimal), which a later topic of the name does not have; "" where there is none."""
        ...


class PositionStore(Protocol):
    """The position of one reader in one stream: that of the last record whose effect is kept.

    `stream.reader(after=store.load())` goes on after it, and `store.save(record.dlsn)` moves it. For one thread.
    """

    def load(self) -> Dlsn | int | None:
        """The position that is stored; None: none yet, so the reader begins at the start of the stream.

        An offset where a tool put the reader there, which knows no DLSN. PositionDivergedError where it is of a stream
        that was deleted, and another one has its name. (Positions that were stored without the stream's id are taken.)
        """
        ...

    def save(self, position: Dlsn) -> None:
        """Store the position of a record: it, and those in front of it, need not be read again. (The `dlsn` of a reader
        is another one: that of the record to come.)

        What else changes with it, and when it is durable, each store says. PositionTakenError where another reader
        of this name has moved the position meanwhile: that one has the work now, and this one has to stop.
        """
        ...


class PositionTakenError(DuramenError):
    """Another process reads under this name: what this one does from here on would be done twice."""


class NoTransactionError(DuramenError):
    """A position is saved in a transaction of the caller's, and there is none: it would not change with the effects."""


def position_taken(reader: str, topic: str, last: str | None) -> PositionTakenError:
    """The error of a store that does not find the position where it saw it last."""
    return PositionTakenError(
        f"the position of {reader!r} in {topic} is not {last} any more: another process moved it, or a save was rolled "
        "back; roll back, load() and read on from there"
    )


def check_same_stream(where: str, stored_id: str | None, stream: NamedStream, remedy: str) -> None:
    """PositionDivergedError where a position was stored of another stream of the name. remedy: how to begin anew."""
    if stored_id and stream.stream_id and stored_id != stream.stream_id:
        raise PositionDivergedError(
            f"{where} is of a stream {stream.topic} that was deleted and made again since; to begin anew at the start "
            f"of the new one, {remedy}"
        )


def position_text(position: Dlsn) -> str:
    """What is stored of a position. TypeError for what is not the position of a record."""
    if not isinstance(position, Dlsn) or not position.is_record:
        raise TypeError(f"a store saves the dlsn of a record, not {position!r:.80}")
    return str(position)


def stored_position(where: str, text: object) -> Dlsn:
    """The position that was stored. ConfigError where it is none, which somebody else must have written."""
    try:
        found = parse_dlsn(text) if isinstance(text, str) else None
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    if found is None or not found.is_record:
        raise ConfigError(f"{where}: {text!r:.80} is no position of a record")
    return found
