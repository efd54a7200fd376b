"""The operating system's file system as the Disk port.

Every choice between platforms sits in one function of its own at the top, so that a test can force the fallback: how
to sync, how to read only what is in memory, how to write many buffers, how to drop cached pages.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from collections.abc import Callable, Sequence
from contextlib import suppress
from weakref import WeakSet

from duramen.errors import DirectoryLockedError
from duramen.page_cache import PIECE_BYTES, PastCache, memory_share, refused
from duramen.ports import Buffer, DirectoryLock, File, Space

IOV_MAX = 1024
"""Buffers per call that Linux and macOS take."""
_ZEROS = bytes(1024 * 1024)


def sync_call() -> Callable[[int], None]:
    """How data reach the platter: F_FULLFSYNC where fsync stops at the drive (macOS), else fdatasync or fsync."""
    full: int | None = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        command = full

        def sync_fully(descriptor: int) -> None:
            try:
                fcntl.fcntl(descriptor, command)
            except OSError as error:
                if not refused(error):
                    raise
                os.fsync(descriptor)  # a network or foreign file system

        return sync_fully
    return getattr(os, "fdatasync", os.fsync)


def nowait_flag() -> int | None:
    """The flag that makes preadv return at once unless the bytes are in memory; None where there is none."""
    if hasattr(os, "preadv"):
        return getattr(os, "RWF_NOWAIT", None)
    return None


def write_call() -> Callable[[int, Sequence[Buffer], int], int]:
    """How several buffers are written at a position: pwritev, or one pwrite of the first (the caller loops)."""
    vectored: Callable[[int, Sequence[Buffer], int], int] | None = getattr(os, "pwritev", None)
    if vectored is not None:
        return vectored
    return lambda descriptor, buffers, offset: os.pwrite(descriptor, buffers[0], offset)


class RealFile:
    """One open file. Closed by `close`, or when the last reference goes: a reply may still be sending from it."""

    __slots__ = ("_descriptor", "_disk", "path")

    def __init__(self, disk: RealDisk, path: str, descriptor: int) -> None:
        self.path = path
        self._disk = disk
        self._descriptor = descriptor

    def fileno(self) -> int:
        if self._descriptor < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)
        return self._descriptor

    def size(self) -> int:
        return os.fstat(self.fileno()).st_size

    def _named(self, error: OSError) -> OSError:
        """What the kernel says of a descriptor names no file, and somebody has to know which."""
        error.filename = self.path
        return error

    def pread(self, length: int, offset: int) -> bytes:
        descriptor = self.fileno()
        pieces: list[bytes] = []
        missing = length
        try:
            while missing:
                data = os.pread(descriptor, missing, offset + length - missing)
                if not data:
                    break
                pieces.append(data)
                missing -= len(data)
        except OSError as error:
            raise self._named(error)  # noqa: B904 it is the same
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def pread_nowait(self, buffer: memoryview, offset: int) -> int:
        flag = self._disk.nowait
        if flag is None:
            return -1
        try:
            return os.preadv(self.fileno(), [buffer], offset, flag)
        except BlockingIOError:
            return -1
        except OSError as error:
            if refused(error):
                self._disk.nowait = None
                return -1
            raise

    def resident(self, offset: int, length: int) -> bool:
        return self._disk.resident(self.fileno(), offset, length)

    def nonresident(self, offset: int, length: int) -> bool:
        return self._disk.nonresident(self.fileno(), offset, length)

    def read_cold(self, buffer: memoryview, offset: int, *, settled: bool = False) -> int:
        read = self._disk.read_settled if settled else self._disk.read_past
        return read(self.fileno(), buffer, offset)

    def read_back(self, buffer: memoryview, offset: int, *, ahead: int = 0) -> int:
        return self._disk.read_back(self.fileno(), buffer, offset, ahead)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        if len(buffers) > IOV_MAX:
            first = self.pwritev(buffers[:IOV_MAX], offset)
            return first + self.pwritev(buffers[IOV_MAX:], offset + first)
        descriptor = self.fileno()
        length = sum(map(len, buffers))
        try:
            written = self._disk.write(descriptor, buffers, offset)
        except OSError as error:
            raise self._named(error)  # noqa: B904 it is the same
        if written != length:
            self._write_rest(descriptor, buffers, offset, written)
        return length

    def _write_rest(self, descriptor: int, buffers: Sequence[Buffer], offset: int, written: int) -> None:
        """Go on behind a short write until every byte is in the file."""
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            if written >= len(view):
                written -= len(view)
                offset += len(view)
                continue
            position, written = written, 0
            while position < len(view):
                count = os.pwrite(descriptor, view[position:], offset + position)
                if count <= 0:
                    raise OSError(errno.EIO, "the file took no more bytes", self.path)
                position += count
            offset += len(view)

    def sync(self) -> None:
        descriptor = self.fileno()
        try:
            self._disk.sync(descriptor)
        except OSError as error:
            raise self._named(error)  # noqa: B904 it is the same

    def truncate(self, size: int) -> None:
        os.ftruncate(self.fileno(), size)

    def drop_cache(self, offset: int, length: int) -> None:
        self._disk.drop_pages(self.fileno(), offset, length)

    def backdate(self, modified_ms: int) -> None:
        with suppress(OSError):  # only a file's owner may
            os.utime(self.fileno(), ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            with suppress(OSError):
                os.close(self._descriptor)


class RealLock:
    """An flock on a file, which the kernel lets go when the process ends however it ends.

    A forked child has the descriptor, too, and would keep the lock for as long as it lives: it closes it at once.
    """

    __slots__ = ("__weakref__", "_descriptor")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        _LOCKS.add(self)

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


_LOCKS: WeakSet[RealLock] = WeakSet()


def _leave_locks_to_the_parent() -> None:
    for lock in list(_LOCKS):
        lock.release()


os.register_at_fork(after_in_child=_leave_locks_to_the_parent)


class RealDisk(PastCache):
    """Files of this machine."""

    __slots__ = (
        "count", "direct", "drop", "nowait", "piece_bytes", "prefetch", "scatter", "sync", "uncached", "unsynced",
        "write",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__(PIECE_BYTES)
        self.sync = sync_call()
        self.nowait = nowait_flag()
        self.write = write_call()
        self.unsynced: dict[str, int] = {}
        """Directories whose sync has failed, with the errno."""

    def open(self, path: str, *, create: bool = False, write: bool = False) -> RealFile:
        flags = os.O_RDWR if write or create else os.O_RDONLY
        if create:
            flags |= os.O_CREAT
        return RealFile(self, path, os.open(path, flags | os.O_CLOEXEC, 0o644))

    def exists(self, path: str) -> bool:
        # Not os.path.lexists: to it, a name that could not be read is one that is not there.
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list_directory(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_directories(self, path: str) -> None:
        if path in self.unsynced and not os.path.isdir(path):
            del self.unsynced[path]  # that was another one of this name
        os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        if os.path.isdir(path) and not os.path.islink(path):
            for name in os.listdir(path):
                self.remove(os.path.join(path, name))
            os.rmdir(path)
        else:
            os.remove(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            self.unsynced[path] = error.errno or errno.EIO
            raise
        finally:
            os.close(descriptor)
        if path in self.unsynced:
            raise OSError(self.unsynced[path], "an earlier sync of it failed", path)

    def preallocate(self, file: File, size: int) -> None:
        # Reserved but unwritten blocks would cost a metadata commit when each is first written: so write zeros.
        offset = file.size()
        while offset < size:
            offset += file.pwritev([_ZEROS[: size - offset]], offset)
        file.sync()

    def lock(self, path: str) -> DirectoryLock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise DirectoryLockedError(
                    f"{path} is locked: another process uses this data directory; stop it or name another directory"
                ) from None
            raise
        return RealLock(descriptor)

    def volume_space(self, path: str) -> Space:
        status = os.statvfs(path)
        return Space(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize)

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def cache_bytes(self) -> int:
        return memory_share()

    def descriptor_limit(self) -> int:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return limit if limit != resource.RLIM_INFINITY else 1 << 20
