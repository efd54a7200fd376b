"""A disk that writes down every sync beside doing it, and the file system that is left when only the syncs count.

`RecordingDisk` is the production disk with a notebook: whenever data or names of its files are synced, what became
durable is appended to one file outside the node's reach. `apply` rebuilds a directory from any prefix of the notebook:
the strictest thing a power cut may leave at that moment. Nothing that was not synced survives, neither bytes nor names.
"""

from __future__ import annotations

import os
import shutil
import stat
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from duramen.ports import Buffer
from duramen.storage.files.os_disk import RealDisk, RealFile

_DATA, _NAMES, _BEGIN = 1, 2, 3
_ENTRY = struct.Struct(">IdBQ")  # length of what follows the length field, seconds (monotonic), kind, identity
_RANGE = struct.Struct(">QI")
_NAME = struct.Struct(">HQB")
ROOT = 0


class Sync(NamedTuple):
    """One entry of the notebook. at: seconds of the system's monotonic clock, before the node heard of the success."""

    at: float
    kind: int
    identity: int
    body: bytes


@dataclass
class _Tracked:
    """What was done to one file since its last sync."""

    identity: int
    dirty: list[tuple[int, int]] = field(default_factory=list)
    lowest: int = 1 << 62


class Notebook:
    """Identities of files and directories, and the append-only record of what was synced."""

    def __init__(self, path: Path, base: Path) -> None:
        """base: the directory above the data directory; its files as they are now count as synced."""
        self.base = base
        self.guard = threading.RLock()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._identities: dict[int, int] = {os.stat(base).st_ino: ROOT}
        self._next = ROOT + 1
        self._tracked: dict[int, _Tracked] = {}
        for folder, _, names in os.walk(base):
            for name in names:
                path_of = os.path.join(folder, name)
                content = Path(path_of).read_bytes()
                self._append(_DATA, self.identity(path_of), _data(0, len(content), [(0, content)]))
            self.names_synced(folder)
        self._append(_BEGIN, ROOT, b"")

    def identity(self, path: str, *, created: bool = False) -> int:
        """A number that stays with a file or directory through renames and is never given twice."""
        with self.guard:
            number = os.stat(path, follow_symlinks=False).st_ino
            if created or number not in self._identities:
                self._identities[number] = self._next
                self._next += 1
            return self._identities[number]

    def track(self, identity: int) -> _Tracked:
        with self.guard:
            return self._tracked.setdefault(identity, _Tracked(identity))

    def gone(self, path: str) -> None:
        """The path is about to be removed or replaced: its inode number may come back as another file."""
        with self.guard:
            try:
                found = os.stat(path, follow_symlinks=False)
            except FileNotFoundError:
                return
            if stat.S_ISDIR(found.st_mode):
                for name in os.listdir(path):
                    self.gone(os.path.join(path, name))
            self._identities.pop(found.st_ino, None)

    def data_synced(self, tracked: _Tracked, size: int, pieces: list[tuple[int, bytes]], lowest: int) -> None:
        self._append(_DATA, tracked.identity, _data(lowest, size, pieces))

    def names_synced(self, folder: str) -> None:
        with self.guard:
            body = bytearray()
            for name in sorted(os.listdir(folder)):
                path = os.path.join(folder, name)
                encoded = name.encode()
                body += _NAME.pack(len(encoded), self.identity(path), os.path.isdir(path)) + encoded
            self._append(_NAMES, self.identity(folder), bytes(body))

    def _append(self, kind: int, identity: int, body: bytes) -> None:
        # One write call: a process killed in the middle leaves the whole entry or a torn one, which `read` ignores.
        with self.guard:
            head = _ENTRY.pack(_ENTRY.size - 4 + len(body), time.monotonic(), kind, identity)
            rest = memoryview(head + body)
            while rest:
                rest = rest[os.write(self._file, rest) :]


class RecordingFile(RealFile):
    """A file of this machine whose syncs are written down."""

    __slots__ = ("_notebook", "_state")

    def __init__(self, disk: RealDisk, path: str, descriptor: int, notebook: Notebook, state: _Tracked) -> None:
        super().__init__(disk, path, descriptor)
        self._notebook = notebook
        self._state = state

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        length = super().pwritev(buffers, offset)
        with self._notebook.guard:
            self._state.dirty.append((offset, length))
        return length

    def truncate(self, size: int) -> None:
        super().truncate(size)
        with self._notebook.guard:
            self._state.lowest = min(self._state.lowest, size)

    def sync(self) -> None:
        state = self._state
        with self._notebook.guard:
            ranges, state.dirty = state.dirty, []
            lowest, state.lowest = state.lowest, 1 << 62
            size = self.size()
            # Before the sync: bytes written while it runs may or may not be covered by it.
            pieces = [(offset, self.pread(length, offset)) for offset, length in ranges]
        super().sync()
        self._notebook.data_synced(state, size, pieces, lowest)


class RecordingDisk(RealDisk):
    """The production disk, with a notebook of what was synced."""

    __slots__ = ("notebook",)

    def __init__(self, notebook: Notebook) -> None:
        super().__init__()
        self.notebook = notebook

    def open(self, path: str, *, create: bool = False, write: bool = False) -> RecordingFile:
        flags = (os.O_RDWR if write or create else os.O_RDONLY) | (os.O_CREAT if create else 0) | os.O_CLOEXEC
        with self.notebook.guard:
            created = create and not os.path.lexists(path)
            descriptor = os.open(path, flags, 0o644)
            state = self.notebook.track(self.notebook.identity(path, created=created))
        return RecordingFile(self, path, descriptor, self.notebook, state)

    def make_directories(self, path: str) -> None:
        with self.notebook.guard:
            missing = []
            step = path
            while step and not os.path.isdir(step):
                missing.append(step)
                step = os.path.dirname(step)
            super().make_directories(path)
            for created in missing:
                self.notebook.identity(created, created=True)

    def rename(self, source: str, target: str) -> None:
        with self.notebook.guard:
            self.notebook.gone(target)
            super().rename(source, target)

    def remove(self, path: str) -> None:
        with self.notebook.guard:
            self.notebook.gone(path)
            super().remove(path)

    def sync_directory(self, path: str) -> None:
        with self.notebook.guard:
            super().sync_directory(path)
            self.notebook.names_synced(path)


def _data(lowest: int, size: int, pieces: list[tuple[int, bytes]]) -> bytes:
    body = bytearray(struct.pack(">QQ", min(lowest, size), size))
    for offset, piece in pieces:
        body += _RANGE.pack(offset, len(piece)) + piece
    return bytes(body)


def read(path: Path) -> list[Sync]:
    """The whole entries of a notebook, oldest first; one that a kill cut short is left out."""
    content = path.read_bytes()
    found = []
    position = 0
    while position + _ENTRY.size <= len(content):
        length, at, kind, identity = _ENTRY.unpack_from(content, position)
        end = position + 4 + length
        if end > len(content):
            break
        found.append(Sync(at, kind, identity, content[position + _ENTRY.size : end]))
        position = end
    return found


def first_cut(syncs: Sequence[Sync]) -> int:
    """How many entries describe what was there before the node started: no power cut comes before them."""
    return next(number for number, sync in enumerate(syncs, 1) if sync.kind == _BEGIN)


def apply(syncs: Sequence[Sync], target: Path) -> None:
    """Build in the new directory `target` what these syncs made durable."""
    files: dict[int, bytearray] = {}
    folders: dict[int, dict[str, tuple[int, bool]]] = {}
    for sync in syncs:
        if sync.kind == _NAMES:
            folders[sync.identity] = dict(_names(sync.body))
            continue
        if sync.kind == _BEGIN:
            continue
        lowest, size = struct.unpack_from(">QQ", sync.body)
        content = files.setdefault(sync.identity, bytearray())
        del content[lowest:]
        for offset, piece in _pieces(sync.body):
            if len(content) < offset:
                content.extend(bytes(offset - len(content)))
            content[offset : offset + len(piece)] = piece
        del content[size:]
        content.extend(bytes(size - len(content)))
    shutil.rmtree(target, ignore_errors=True)
    _build(ROOT, target, files, folders)


def _build(
    identity: int, target: Path, files: dict[int, bytearray], folders: dict[int, dict[str, tuple[int, bool]]]
) -> None:
    target.mkdir(parents=True)
    for name, (child, is_folder) in folders.get(identity, {}).items():
        if is_folder:
            _build(child, target / name, files, folders)
        else:
            (target / name).write_bytes(files.get(child, b""))


def _names(body: bytes) -> Iterator[tuple[str, tuple[int, bool]]]:
    position = 0
    while position < len(body):
        length, identity, is_folder = _NAME.unpack_from(body, position)
        position += _NAME.size
        yield body[position : position + length].decode(), (identity, bool(is_folder))
        position += length


def _pieces(body: bytes) -> Iterator[tuple[int, bytes]]:
    position = 16
    while position < len(body):
        offset, length = _RANGE.unpack_from(body, position)
        position += _RANGE.size
        yield offset, body[position : position + length]
        position += length
