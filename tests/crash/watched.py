"""A taped disk that notes which call site every call came from, and fails one of them when it is told to."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.crash.call_sites import Site, calling_site
from tests.crash.tape import TapeDisk, TapeFile, Tree

from duramen.ports import Buffer, File, Space

CALLER = 3
"""Frames from `calling_site` through `Watch.met` and the port's method up to whoever called that."""
HINTS = frozenset({"backdate", "drop_cache", "resident", "nonresident", "cache_bytes", "descriptor_limit"})
"""Methods that tell or ask something the answer to which changes no result: the port lets no error of theirs out."""


@dataclass(slots=True)
class Fault:
    """The `number`-th call (from 1) of a site fails with this error number. happened: it did."""

    site: Site
    number: int = 1
    error: int = errno.EIO
    happened: bool = False
    then: Site | None = None
    """A site that is only come by after this error, to clear up: its first call fails, too."""

    def copy(self) -> Fault:
        """The same fault, yet to happen."""
        return Fault(self.site, self.number, self.error, then=self.then)


@dataclass(slots=True)
class Watch:
    """Calls by site, and the fault to come."""

    hits: Counter[Site] = field(default_factory=Counter)
    fault: Fault | None = None

    def met(self, method: str, path: str, caller: int = CALLER) -> OSError | None:
        """A call is being made; the error it has to end with."""
        site = calling_site(method, caller)
        if site is None:
            return None
        self.hits[site] += 1
        fault = self.fault
        if fault is None:
            return None
        first = fault.site == site and self.hits[site] == fault.number
        if first or (fault.happened and fault.then == site and self.hits[site] == 1):
            fault.happened = True
            return OSError(fault.error, os.strerror(fault.error), path)
        return None


class WatchedDisk:
    """A Disk port around a TapeDisk. cold: nothing is in memory, every read has to wait."""

    def __init__(self, tree: Tree | None = None, fault: Fault | None = None) -> None:
        self.inner = TapeDisk(tree)
        self.watch = Watch(fault=fault)
        self.cold = False

    def __getattr__(self, name: str) -> Any:
        """What the port does not have is the taped disk's: tape, mark, contents, open_files, end_process."""
        return getattr(self.inner, name)

    def damage(self, path: str, position: int, mask: int = 0xFF) -> None:
        """Flip these bits of one byte; again, and it is as it was."""
        file = self.inner.open(path, write=True)
        file.pwritev([bytes([file.pread(1, position)[0] ^ mask])], position)
        file.sync()
        file.close()

    def _meet(self, method: str, path: str) -> None:
        error = self.watch.met(method, path, CALLER + 1)
        if error is not None:
            raise error

    def open(self, path: str, *, create: bool = False, write: bool = False) -> File:
        """See ports.Disk."""
        self._meet("open", path)
        return WatchedFile(self, self.inner.open(path, create=create, write=write))

    def exists(self, path: str) -> bool:
        """See ports.Disk."""
        self._meet("exists", path)
        return self.inner.exists(path)

    def list_directory(self, path: str) -> list[str]:
        """See ports.Disk."""
        self._meet("list_directory", path)
        return self.inner.list_directory(path)

    def make_directories(self, path: str) -> None:
        """See ports.Disk."""
        self._meet("make_directories", path)
        self.inner.make_directories(path)

    def rename(self, source: str, target: str) -> None:
        """See ports.Disk."""
        self._meet("rename", target)
        self.inner.rename(source, target)

    def remove(self, path: str) -> None:
        """See ports.Disk."""
        self._meet("remove", path)
        self.inner.remove(path)

    def sync_directory(self, path: str) -> None:
        """See ports.Disk."""
        self._meet("sync_directory", path)
        self.inner.sync_directory(path)

    def preallocate(self, file: File, size: int) -> None:
        """See ports.Disk; a full disk leaves it longer than before."""
        error = self.watch.met("preallocate", file.path)
        if error is not None:
            file.truncate((file.size() + size) // 2)
            raise error
        self.inner.preallocate(file, size)

    def lock(self, path: str) -> Any:
        """See ports.Disk."""
        self._meet("lock", path)
        return self.inner.lock(path)

    def volume_space(self, path: str) -> Space:
        """See ports.Disk."""
        self._meet("volume_space", path)
        return self.inner.volume_space(path)

    def modified_ms(self, path: str) -> int:
        """See ports.Disk."""
        self._meet("modified_ms", path)
        return self.inner.modified_ms(path)

    def cache_bytes(self) -> int:
        """See ports.Disk."""
        self.watch.met("cache_bytes", "")
        return self.inner.cache_bytes()

    def descriptor_limit(self) -> int:
        """See ports.Disk."""
        self.watch.met("descriptor_limit", "")
        return self.inner.descriptor_limit()


class WatchedFile:
    """A File port around a taped file."""

    __slots__ = ("_disk", "_inner", "_watch", "path")

    def __init__(self, disk: WatchedDisk, inner: TapeFile) -> None:
        self.path = inner.path
        self._disk = disk
        self._watch = disk.watch
        self._inner = inner

    def _meet(self, method: str) -> None:
        error = self._watch.met(method, self.path, CALLER + 1)
        if error is not None:
            raise error

    def fileno(self) -> int:
        """See ports.File."""
        return self._inner.fileno()

    def size(self) -> int:
        """See ports.File."""
        self._meet("size")
        return self._inner.size()

    def pread(self, length: int, offset: int) -> bytes:
        """See ports.File."""
        self._meet("pread")
        return self._inner.pread(length, offset)

    def pread_nowait(self, buffer: memoryview, offset: int) -> int:
        """See ports.File."""
        self._meet("pread_nowait")
        return -1 if self._disk.cold else self._inner.pread_nowait(buffer, offset)

    def resident(self, offset: int, length: int) -> bool:
        """See ports.File."""
        self._watch.met("resident", self.path)
        return not self._disk.cold and self._inner.resident(offset, length)

    def nonresident(self, offset: int, length: int) -> bool:
        """See ports.File."""
        self._watch.met("nonresident", self.path)
        return self._disk.cold or self._inner.nonresident(offset, length)

    def read_cold(self, buffer: memoryview, offset: int, *, settled: bool = False) -> int:
        """See ports.File."""
        self._meet("read_cold")
        return self._inner.read_cold(buffer, offset, settled=settled)

    def read_back(self, buffer: memoryview, offset: int, *, ahead: int = 0) -> int:
        """See ports.File."""
        self._meet("read_back")
        return self._inner.read_back(buffer, offset, ahead=ahead)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        """See ports.File; a write that fails has written its first half."""
        error = self._watch.met("pwritev", self.path)
        if error is not None:
            data = b"".join(buffers)
            self._inner.pwritev([data[: len(data) // 2]], offset)
            raise error
        return self._inner.pwritev(buffers, offset)

    def sync(self) -> None:
        """See ports.File."""
        error = self._watch.met("sync", self.path)
        if error is not None:
            self._inner.fail_sync()
            raise error
        self._inner.sync()

    def truncate(self, size: int) -> None:
        """See ports.File."""
        self._meet("truncate")
        self._inner.truncate(size)

    def drop_cache(self, offset: int, length: int) -> None:
        """See ports.File."""
        self._watch.met("drop_cache", self.path)

    def backdate(self, modified_ms: int) -> None:
        """See ports.File."""
        self._watch.met("backdate", self.path)

    def close(self) -> None:
        """See ports.File."""
        self._inner.close()
