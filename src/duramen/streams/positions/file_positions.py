"""A position in a file of its own, with the state that the application made of the records up to there."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from duramen.dlsn import Dlsn
from duramen.errors import ClosedError, ConfigError, StorageError
from duramen.streams.positions.position_store import (
    NamedStream,
    PositionTakenError,
    check_same_stream,
    position_text,
    stored_position,
)

_VERSION: Final = 1
_NOT_GIVEN: Final = object()


class _Stored(NamedTuple):
    """What a file says. state: JSON."""

    position: Dlsn | None
    state: str


class FilePositions:
    """The position of one reader in one stream, in a file; for one thread. Use it as a context manager, or `close` it.

    The file is JSON: version, stream (its topic), stream_id, position (the text of a DLSN) and state, any value that
    JSON has. A save writes a new file, syncs it and puts it in the place of the old one, so position and state are both
    those of before or both those of now, through kill -9 and power cuts: a state that the records alone make is exact.
    An effect elsewhere is not: what lies between it and its save is done again after a crash.
    """

    def __init__(self, path: str | os.PathLike[str], stream: NamedStream) -> None:
        """The file is made by the first save; beside it lies `<path>.lock`, which the process holds until `close`.

        PositionTakenError while another store, here or in another process, has the file; ConfigError where it is about
        another stream or is no such file; PositionDivergedError where it is about one that was deleted, and another
        stream has its name; StorageError.
        """
        self.path = os.path.realpath(path)
        self._stream = stream
        self._process = os.getpid()
        with _storage_errors(self.path):
            self._lock: int | None = _locked(self.path)
            try:
                self._stored = self._read()
                _sync_folder(self.path)  # what is gone on from must not be gone after a power cut
            except BaseException:
                os.close(self._lock)
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let another process have the file. Calling it again does nothing."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def load(self) -> Dlsn | None:
        """The position that was saved last, which is on stable storage; None before the first save."""
        return self._stored.position

    @property
    def state(self) -> Any:
        """What was saved with the position, as JSON gives it back: a copy, yours to change. None before."""
        return json.loads(self._stored.state)

    def save(self, position: Dlsn, state: Any = _NOT_GIVEN) -> None:
        """Replace the file; position and state are on stable storage when this returns. Without a state it stays.

        After a StorageError (a full disk, say) the store takes no more: open it again to see what is there. TypeError
        or ValueError for a state that JSON does not have, before anything is written.
        """
        if self._lock is None or os.getpid() != self._process:
            raise ClosedError(f"{self.path}: this store of a position was closed, or is another process's")
        text = self._stored.state if state is _NOT_GIVEN else json.dumps(state, allow_nan=False)
        about = json.dumps(
            {
                "version": _VERSION,
                "stream": self._stream.topic,
                "stream_id": self._stream.stream_id,
                "position": position_text(position),
            }
        )
        try:
            with _storage_errors(self.path):
                _replace(self.path, f'{about[:-1]}, "state": {text}}}\n')
        except StorageError:
            self.close()
            raise
        self._stored = _Stored(position, text)

    def _read(self) -> _Stored:
        try:
            with open(self.path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return _Stored(None, "null")
        try:
            found = json.loads(content)
            version, stream = found["version"], found["stream"]
            position, state = found["position"], found["state"]
            stream_id = found.get("stream_id", "")  # files of earlier releases have none
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"{self.path} is no file of a position ({error!r:.200}); name another one, or delete it to begin anew"
            ) from None
        if version != _VERSION:
            raise ConfigError(f"{self.path} has version {version!r:.80}; this release reads {_VERSION}")
        if stream != self._stream.topic:
            raise ConfigError(
                f"{self.path} is about the stream {stream!r:.300}, not {self._stream.topic!r}: name another file"
            )
        check_same_stream(self.path, stream_id, self._stream, "name another file, or delete this one")
        return _Stored(stored_position(self.path, position), json.dumps(state))


@contextmanager
def _storage_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error


def _locked(path: str) -> int:
    """A descriptor that holds the lock; the kernel lets it go however the process ends."""
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise PositionTakenError(f"{path}: another reader has this file; give each reader its own") from None
        raise
    return descriptor


def _replace(path: str, text: str) -> None:
    new = f"{path}.new"
    with suppress(FileNotFoundError):
        os.unlink(new)  # of a save that was killed
    with open(new, "x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    _sync_folder(path)


def _sync_folder(path: str) -> None:
    descriptor = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
