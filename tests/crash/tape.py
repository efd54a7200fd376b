"""A disk in memory that keeps a tape: every change of bytes and names with its data, every sync, and marks in between.

    disk = TapeDisk()
    ...                                # run a workload on it, calling disk.mark(anything) after each acknowledgement
    for state in crash_states(disk):   # states.py
        ...

A tape holds less than the calls of a run (reading leaves no trace on a disk) and more than their names: enough to
rebuild what the platter may hold if power fails behind any of them.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from duramen.errors import DirectoryLockedError
from duramen.ports import Buffer, File, Space

Tree = Mapping[str, "bytes | Tree"]
"""Names and what they name: the bytes of a file, or another directory."""


class Written(NamedTuple):
    """Bytes went to a file's cache."""

    inode: int
    offset: int
    data: bytes


class Resized(NamedTuple):
    """A file got another length: it was cut, or gained zeros."""

    inode: int
    size: int
    cut: bool


class Synced(NamedTuple):
    """A file's bytes and length were made durable."""

    inode: int


class Forgotten(NamedTuple):
    """A sync of the file failed: what waited for it is in the cache, is no longer dirty, and never gets to the disk."""

    inode: int


class Renamed(NamedTuple):
    """A name came, went or moved; nodes are numbers."""

    node: int
    is_directory: bool
    source: int
    source_name: str
    target: int
    target_name: str


class NamesSynced(NamedTuple):
    """A directory's names were made durable."""

    directory: int


Step = Written | Resized | Synced | Forgotten | Renamed | NamesSynced

NOWHERE = -1
ROOT = 0


class Tape:
    """Steps in their order. marks: (number of steps before it, what was promised by then), ascending."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.calls: list[tuple[int, str]] = []
        """(number of steps before it, the disk call it belongs to), to say where a state comes from."""
        self.marks: list[tuple[int, object]] = []
        self.files: dict[int, bytes] = {}
        """What was in the files when the tape began."""
        self.tree: dict[int, dict[str, tuple[int, bool]]] = {ROOT: {}}
        """What was in the directories: name → (node, whether it is a directory)."""

    def call_of(self, step: int) -> str:
        """The disk call that step `step` (from 0) belongs to."""
        place = bisect_right(self.calls, step, key=lambda call: call[0])
        return self.calls[place - 1][1] if place else "nothing yet"

    def without(self, dropped: Callable[[str], bool]) -> Tape:
        """The same run of a program that forgot the syncs whose call (`sync /data/x`) `dropped` says yes to."""
        kept = Tape()
        kept.files, kept.tree = self.files, self.tree
        marks, calls = iter([*self.marks, (len(self.steps) + 1, None)]), iter([*self.calls, (len(self.steps) + 1, "")])
        mark, call = next(marks), next(calls)
        for number in range(len(self.steps) + 1):
            while mark[0] == number:
                kept.marks.append((len(kept.steps), mark[1]))
                mark = next(marks)
            while call[0] == number:
                kept.calls.append((len(kept.steps), call[1]))
                call = next(calls)
            if number < len(self.steps):
                step = self.steps[number]
                if not (isinstance(step, Synced | NamesSynced) and dropped(self.call_of(number))):
                    kept.steps.append(step)
        return kept


class Content:
    """A file, whatever its name."""

    __slots__ = ("data", "number")

    def __init__(self, number: int, data: bytes) -> None:
        self.number = number
        self.data = bytearray(data)


class Folder:
    """A directory."""

    __slots__ = ("entries", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.entries: dict[str, Content | Folder] = {}


class TapeDisk:
    """A Disk port in memory; see the module. tree: what is there, durably, when the tape begins.

    open_files: how many files are open now.
    """

    def __init__(self, tree: Tree | None = None) -> None:
        self.tape = Tape()
        self.open_files = 0
        self.processes = 0
        self._root = Folder(ROOT)
        self._numbers = ROOT
        self._locks: set[str] = set()
        self._build(self._root, tree or {})

    def _build(self, folder: Folder, tree: Tree) -> None:
        listed = self.tape.tree[folder.number] = {}
        for name, content in tree.items():
            node: Content | Folder
            if isinstance(content, bytes):
                node = Content(self._fresh(), content)
                self.tape.files[node.number] = content
            else:
                node = Folder(self._fresh())
                self._build(node, content)
            folder.entries[name] = node
            listed[name] = (node.number, isinstance(node, Folder))

    def _fresh(self) -> int:
        self._numbers += 1
        return self._numbers

    def mark(self, promised: object) -> None:
        """From here on a crash must leave what `promised` says."""
        self.tape.marks.append((len(self.tape.steps), promised))

    def enter(self, operation: str, path: str) -> None:
        """A call begins."""
        self.tape.calls.append((len(self.tape.steps), f"{operation} {path}"))

    def end_process(self) -> None:
        """Its locks are free; its files are forgotten."""
        self._locks.clear()
        self.open_files = 0
        self.processes += 1

    def contents(self) -> dict[str, bytes]:
        """Every file by its path, as programs see it."""
        found: dict[str, bytes] = {}

        def walk(folder: Folder, prefix: str) -> None:
            for name, node in sorted(folder.entries.items()):
                if isinstance(node, Folder):
                    walk(node, f"{prefix}/{name}")
                else:
                    found[f"{prefix}/{name}"] = bytes(node.data)

        walk(self._root, "")
        return found

    # ---- names

    def _parent(self, path: str) -> tuple[Folder, str]:
        above, name = _split(path)
        folder = self._root
        for part in above:
            node = folder.entries.get(part)
            if node is None:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            if not isinstance(node, Folder):
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
            folder = node
        return folder, name

    def _find(self, path: str) -> Content | Folder:
        if not path.strip("/"):
            return self._root
        folder, name = self._parent(path)
        node = folder.entries.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return node

    def _folder(self, path: str) -> Folder:
        node = self._find(path)
        if not isinstance(node, Folder):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        return node

    def _moved(self, node: Content | Folder, source: Folder | None, old: str, target: Folder | None, new: str) -> None:
        """Do one change of names, and tape it."""
        if source is not None:
            del source.entries[old]
        if target is not None:
            target.entries[new] = node
        step = Renamed(
            node.number,
            isinstance(node, Folder),
            NOWHERE if source is None else source.number,
            old,
            NOWHERE if target is None else target.number,
            new,
        )
        self.tape.steps.append(step)

    def open(self, path: str, *, create: bool = False, write: bool = False) -> File:
        """See ports.Disk."""
        self.enter("open", path)
        folder, name = self._parent(path)
        node = folder.entries.get(name)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            node = Content(self._fresh(), b"")
            self._moved(node, None, "", folder, name)
        if isinstance(node, Folder):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        return TapeFile(self, path, node)

    def exists(self, path: str) -> bool:
        """See ports.Disk."""
        self.enter("exists", path)
        try:
            self._find(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list_directory(self, path: str) -> list[str]:
        """See ports.Disk."""
        self.enter("list_directory", path)
        return sorted(self._folder(path).entries)

    def make_directories(self, path: str) -> None:
        """See ports.Disk."""
        self.enter("make_directories", path)
        folder = self._root
        for part in path.split("/"):
            if part:
                node = folder.entries.get(part)
                if node is None:
                    node = Folder(self._fresh())
                    self._moved(node, None, "", folder, part)
                if not isinstance(node, Folder):
                    raise FileExistsError(errno.EEXIST, "File exists", path)
                folder = node

    def rename(self, source: str, target: str) -> None:
        """See ports.Disk."""
        self.enter("rename", f"{source} -> {target}")
        node = self._find(source)
        from_folder, old = self._parent(source)
        to_folder, new = self._parent(target)
        there = to_folder.entries.get(new)
        if there is node:
            return
        if isinstance(there, Folder) and there.entries:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", target)
        self._moved(node, from_folder, old, to_folder, new)

    def remove(self, path: str) -> None:
        """See ports.Disk."""
        self.enter("remove", path)
        self._remove(path)

    def _remove(self, path: str) -> None:
        node = self._find(path)
        if isinstance(node, Folder):
            for name in sorted(node.entries):
                self._remove(f"{path}/{name}")
        folder, name = self._parent(path)
        self._moved(node, folder, name, None, "")

    def sync_directory(self, path: str) -> None:
        """See ports.Disk."""
        self.enter("sync_directory", path)
        self.tape.steps.append(NamesSynced(self._folder(path).number))

    def preallocate(self, file: File, size: int) -> None:
        """See ports.Disk."""
        self.enter("preallocate", file.path)
        if file.size() < size:
            file.truncate(size)
        file.sync()

    def lock(self, path: str) -> TapeLock:
        """See ports.Disk."""
        self.enter("lock", path)
        if path in self._locks:
            raise DirectoryLockedError(f"{path}: another process uses this directory")
        folder, name = self._parent(path)
        if name not in folder.entries:
            self._moved(Content(self._fresh(), b""), None, "", folder, name)
        self._locks.add(path)
        return TapeLock(self._locks, path)

    def volume_space(self, path: str) -> Space:
        """See ports.Disk."""
        return Space(1 << 41, 1 << 40)

    def modified_ms(self, path: str) -> int:
        """See ports.Disk; as if it were so for ever."""
        return 0

    def cache_bytes(self) -> int:
        """See ports.Disk."""
        return 1 << 30

    def descriptor_limit(self) -> int:
        """See ports.Disk."""
        return 1024


@lru_cache(maxsize=4096)
def _split(path: str) -> tuple[list[str], str]:
    """The directories of a path, and its last name; kept, for thousands of states have the same paths."""
    *above, name = [part for part in path.split("/") if part]
    return above, name


class TapeLock:
    """A held lock."""

    def __init__(self, locks: set[str], path: str) -> None:
        self._locks = locks
        self._path = path

    def release(self) -> None:
        """See ports.DirectoryLock."""
        self._locks.discard(self._path)


class TapeFile:
    """An open file."""

    __slots__ = ("_content", "_disk", "_open", "_process", "path")

    def __init__(self, disk: TapeDisk, path: str, content: Content) -> None:
        self.path = path
        self._disk = disk
        self._content = content
        self._open = True
        self._process = disk.processes
        disk.open_files += 1

    def fileno(self) -> int:
        """A file in memory has no descriptor."""
        raise OSError(errno.EBADF, "a file in memory has no descriptor", self.path)

    def _data(self) -> bytearray:
        if not self._open:
            raise OSError(errno.EBADF, "Bad file descriptor", self.path)
        return self._content.data

    def size(self) -> int:
        """See ports.File."""
        return len(self._data())

    def pread(self, length: int, offset: int) -> bytes:
        """See ports.File."""
        return bytes(memoryview(self._data())[offset : offset + length])

    def pread_nowait(self, buffer: memoryview, offset: int) -> int:
        """See ports.File."""
        data = self.pread(len(buffer), offset)
        buffer[: len(data)] = data
        return len(data)

    def resident(self, offset: int, length: int) -> bool:
        """See ports.File."""
        return True

    def nonresident(self, offset: int, length: int) -> bool:
        """See ports.File."""
        return False

    def read_cold(self, buffer: memoryview, offset: int, *, settled: bool = False) -> int:
        """See ports.File."""
        return self.pread_nowait(buffer, offset)

    def read_back(self, buffer: memoryview, offset: int, *, ahead: int = 0) -> int:
        """See ports.File."""
        return self.pread_nowait(buffer, offset)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        """See ports.File."""
        self._disk.enter("pwritev", self.path)
        data = b"".join(buffers)
        content = self._data()
        self._disk.tape.steps.append(Written(self._content.number, offset, data))
        if offset > len(content):
            content.extend(bytes(offset - len(content)))
        content[offset : offset + len(data)] = data
        return len(data)

    def sync(self) -> None:
        """See ports.File."""
        self._disk.enter("sync", self.path)
        self._data()
        self._disk.tape.steps.append(Synced(self._content.number))

    def fail_sync(self) -> None:
        """A sync that fails, as on Linux: the next one succeeds without these bytes."""
        self._disk.enter("sync", self.path)
        self._disk.tape.steps.append(Forgotten(self._content.number))

    def truncate(self, size: int) -> None:
        """See ports.File."""
        self._disk.enter("truncate", self.path)
        content = self._data()
        if size != len(content):
            self._disk.tape.steps.append(Resized(self._content.number, size, size < len(content)))
        if size < len(content):
            del content[size:]
        else:
            content.extend(bytes(size - len(content)))

    def drop_cache(self, offset: int, length: int) -> None:
        """See ports.File."""

    def backdate(self, modified_ms: int) -> None:
        """See ports.File; the disk says the same of every file."""

    def close(self) -> None:
        """See ports.File."""
        if self._open:
            self._open = False
            if self._process == self._disk.processes:  # a dead process's files are no longer counted
                self._disk.open_files -= 1

    def __del__(self) -> None:
        self.close()
