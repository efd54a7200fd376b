"""The simulated disk: a Disk port in memory that loses what was not synced, tears writes, fills up, fails and lies.

    disk = CrashDisk(Random(7), torn=True)
    disk.cut_at = disk.calls + 12         # power fails in the 12th call from now, which raises PowerCut
    ...                                   # drop every object that used the disk
    disk.power_on()                       # what survived can be opened again

`torn=False` leaves exactly what was synced; `torn=True` also leaves a seeded part of the rest: some unsynced blocks,
half a block, some names, a longer or a shorter file. A kill (`kill_at`, `kill()`) ends the process and keeps the cache.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from duramen.errors import DirectoryLockedError
from duramen.ports import Buffer, File, Space
from duramen.sim.world.directory_tree import Directory, DirectoryTree
from duramen.sim.world.inode import Inode

CACHE_BYTES = 64 << 20
DESCRIPTORS = 1024


class NodeDied(BaseException):
    """The process that made this disk call is no more. A BaseException, so that no `except Exception` survives it."""


class PowerCut(NodeDied):
    """Power failed: only synced bytes and names are left (and, on a torn disk, a seeded part of the others)."""


class Killed(NodeDied):
    """The process was killed (kill -9): the page cache, and so every completed write, is left."""


class ShortWrite(OSError):  # noqa: N818 - named like the system call's outcome
    """A write that fails on its way: this share (0 to 1) of its bytes is in the file."""

    share = 0.5


class DiskCall(NamedTuple):
    """One disk call: its number (from 1), the port's method, the path, and the bytes it moves."""

    number: int
    operation: str
    path: str
    length: int


class CrashDisk:
    """An in-memory Disk whose crashes follow a seed.

    random: source of every decision. torn: see the module. capacity: bytes; ENOSPC beyond.
    fault: called with each Call before its effect; an OSError it returns is raised (a `sync` that fails so loses its
    dirty pages, a ShortWrite leaves a part). latency: seconds a Call takes; they add up in `delay` until `take_delay()`
    fetches them. lying: syncs succeed without an effect; what they promised is owed until `settle`. betrayed: a power
    cut came while something was owed. short_reads: how many of so many bytes a `pread_nowait` brings; -1: none.
    wall_ms: the clock by which files change. on_power_cut: called at each.
    """

    def __init__(self, random: Random | None = None, *, torn: bool = False, capacity: int = 1 << 40) -> None:
        self.random = random or Random(0)
        self.torn = torn
        self.capacity = capacity
        self.names = DirectoryTree()
        self.calls = 0
        self.cut_at: int | None = None
        self.kill_at: int | None = None
        self.fault: Callable[[DiskCall], OSError | None] | None = None
        self.latency: Callable[[DiskCall], float] | None = None
        self.short_reads: Callable[[int], int] | None = None
        self.wall_ms: Callable[[], int] = lambda: 0
        self.on_power_cut: Callable[[], None] = lambda: None
        self.lying = False
        self.betrayed = False
        self.open_files = 0
        self.delay = 0.0
        self.record: list[DiskCall] | None = None
        self.incarnation = 0
        self.used = 0
        self._locks: set[str] = set()
        self._unsynced: set[str] = set()
        self._owed: dict[Inode, None] = {}
        self._owed_names: dict[Directory, None] = {}
        self._dead: type[NodeDied] | None = None
        self._dies_after: type[NodeDied] | None = None

    # -- crashes

    @property
    def powered(self) -> bool:
        """False from a crash until `power_on`."""
        return self._dead is None

    def power_cut(self) -> None:
        """Power fails now (no exception: for a crash between calls)."""
        self._die(PowerCut)

    def kill(self) -> None:
        """The process is killed now; the page cache stays."""
        self._die(Killed)

    def power_on(self) -> None:
        """The next process may use the disk; files opened before the crash stay unusable.

        It does not die in place of one that ended by itself in the call that was to be its last.
        """
        if self._dead is None:
            self.end_process()
        self._dead = self._dies_after = None

    def wipe(self) -> None:
        """Another disk is in its place, an empty one; nobody uses it."""
        self.power_on()
        self.names = DirectoryTree()
        self.used = 0
        self._forgive()

    def end_process(self) -> None:
        """The process ended by itself: its files and locks are gone; a crash that was planned is still to come."""
        self.incarnation += 1
        self.open_files = 0
        self._locks.clear()
        self._unsynced.clear()

    def settle(self) -> None:
        """Everything that lying syncs promised reaches the platter after all."""
        for inode in self._owed:
            inode.sync()
        for directory in self._owed_names:
            self.names.settle(directory)
        self._forgive()

    def _forgive(self) -> None:
        self._owed.clear()
        self._owed_names.clear()

    def sync_inode(self, inode: Inode) -> None:
        """What a successful sync of the file does; nothing, while the disk lies."""
        if not self.lying:
            inode.sync()
            self._owed.pop(inode, None)
        elif not inode.clean:
            self._owed[inode] = None

    def _die(self, how: type[NodeDied]) -> None:
        if how is PowerCut:
            self.on_power_cut()
            if self._owed or self._owed_names:
                present = [inode for _, inode in self.names.walk() if inode in self._owed]
                self.betrayed |= any(not inode.clean for inode in present)
                self.betrayed |= any(self.names.is_pending(directory) for directory in self._owed_names)
                self._forgive()
            random = self.random if self.torn else None
            for inode in self.names.crash(random):
                inode.crash(random)
            self.used = self.names.file_bytes()
        self.end_process()
        self.cut_at = self.kill_at = None
        self._dies_after = None
        self._dead = how

    # -- every call passes here

    def enter(self, operation: str, path: str, length: int = 0) -> None:
        """Count the call, then let it be slow, fail or be the last one."""
        if self._dead is not None:
            raise self._dead(f"{operation} {path} after the node died")
        if self._dies_after is not None:
            self.leave(operation, path)
        self.calls += 1
        call = DiskCall(self.calls, operation, path, length)
        if self.record is not None:
            self.record.append(call)
        if self.latency is not None:
            self.delay += self.latency(call)
        if self.calls == self.cut_at or self.calls == self.kill_at:
            how = PowerCut if self.calls == self.cut_at else Killed
            if not self.torn or self.random.random() < 0.5:
                self._die(how)
                raise how(f"before call {call.number}: {operation} {path}")
            self._dies_after = how
        if self.fault is not None:
            error = self.fault(call)
            if error is not None:
                self.leave(operation, path)
                try:
                    raise error
                finally:
                    del error  # or it keeps this frame, and that it, and files that callers hold stay open

    def leave(self, operation: str, path: str) -> None:
        """The call had its effect; the one in which the node dies ends here."""
        if self._dies_after is not None:
            how = self._dies_after
            self._die(how)
            raise how(f"after {operation} {path}")

    def take_delay(self) -> float:
        """Seconds the calls took since the last question."""
        delay, self.delay = self.delay, 0.0
        return delay

    def grow(self, path: str, length: int) -> int:
        """Reserve `length` more bytes (negative: give back); returns how many of them there is room for."""
        room = min(length, self.capacity - self.used)
        self.used += room
        return room

    # -- the Disk port

    def open(self, path: str, *, create: bool = False, write: bool = False) -> File:
        """See ports.Disk."""
        self.enter("open", path)
        try:
            node = self.names.find(path)
        except FileNotFoundError:
            if not create:
                raise
            node = self.names.create_file(path)
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        self.leave("open", path)
        return CrashFile(self, path, node, write)

    def exists(self, path: str) -> bool:
        """See ports.Disk."""
        self.enter("exists", path)
        found = self.names.has(path)
        self.leave("exists", path)
        return found

    def list_directory(self, path: str) -> list[str]:
        """See ports.Disk."""
        self.enter("list_directory", path)
        names = sorted(self.names.directory(path).names)
        self.leave("list_directory", path)
        return names

    def make_directories(self, path: str) -> None:
        """See ports.Disk."""
        self.enter("make_directories", path)
        if not self.names.has(path):
            self._unsynced.discard(path)
        self.names.make_directories(path)
        self.leave("make_directories", path)

    def rename(self, source: str, target: str) -> None:
        """See ports.Disk."""
        self.enter("rename", f"{source} -> {target}")
        self.names.rename(source, target)
        self.leave("rename", target)

    def remove(self, path: str) -> None:
        """See ports.Disk."""
        self.enter("remove", path)
        self.names.remove(path)
        self.used = self.names.file_bytes()
        self.leave("remove", path)

    def sync_directory(self, path: str) -> None:
        """See ports.Disk."""
        try:
            self.enter("sync_directory", path)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):  # with those it was not opened
                self._unsynced.add(path)
            raise
        directory = self.names.directory(path)
        if path in self._unsynced:
            raise OSError(errno.EIO, "an earlier sync of it failed", path)
        if self.lying:
            self._owed_names[directory] = None
        else:
            self.names.settle(directory)
            self._owed_names.pop(directory, None)
        self.leave("sync_directory", path)

    def preallocate(self, file: File, size: int) -> None:
        """See ports.Disk."""
        if not isinstance(file, CrashFile):
            raise TypeError(f"{file!r} does not belong to this disk")
        file.preallocate(size)

    def lock(self, path: str) -> CrashLock:
        """See ports.Disk."""
        self.enter("lock", path)
        if path in self._locks:
            raise DirectoryLockedError(f"{path}: another process uses this directory")
        try:
            self.names.find(path)
        except FileNotFoundError:
            self.names.create_file(path)
        self._locks.add(path)
        self.leave("lock", path)
        return CrashLock(self, path)

    def unlock(self, path: str, incarnation: int) -> None:
        """Release a lock taken in this incarnation."""
        if incarnation == self.incarnation:
            self._locks.discard(path)

    def volume_space(self, path: str) -> Space:
        """See ports.Disk."""
        self.enter("volume_space", path)
        self.leave("volume_space", path)
        return Space(self.capacity, max(0, self.capacity - self.used))

    def modified_ms(self, path: str) -> int:
        """See ports.Disk; by `wall_ms`."""
        self.enter("modified_ms", path)
        node = self.names.find(path)
        self.leave("modified_ms", path)
        return node.modified_ms if isinstance(node, Inode) else 0

    def cache_bytes(self) -> int:
        """See ports.Disk; the same on every machine, for a seed decides everything."""
        return CACHE_BYTES

    def descriptor_limit(self) -> int:
        """See ports.Disk."""
        return DESCRIPTORS

    # -- looking at it from outside (no calls counted)

    @property
    def synced(self) -> bool:
        """Whether everything that programs see is on stable storage."""
        return not self.names.pending and all(inode.clean for _, inode in self.names.walk())

    def copy(self, random: Random) -> CrashDisk:
        """This disk as it is now, with nobody using it, no faults, and a seed of its own."""
        other = CrashDisk(random, torn=self.torn, capacity=self.capacity)
        other.names = self.names.copy()
        other.used = self.used
        return other

    def contents(self) -> dict[str, bytes]:
        """Every file as programs see it, by path."""
        return {path: bytes(inode.cache) for path, inode in self.names.walk()}

    def damage(self, path: str, offset: int, mask: int = 0xFF) -> None:
        """Flip the bits of `mask` in one byte, in the cache and on the platter, as bit rot does."""
        node = self.names.find(path)
        if isinstance(node, Directory):
            raise IsADirectoryError(path)
        node.cache[offset] ^= mask
        if offset < len(node.stable):
            node.stable[offset] ^= mask


class CrashLock:
    """A held lock file; a crash releases it."""

    def __init__(self, disk: CrashDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._incarnation = disk.incarnation

    def release(self) -> None:
        """See ports.DirectoryLock."""
        self._disk.unlock(self._path, self._incarnation)


class CrashFile:
    """An open file of a CrashDisk; unusable after the crash of the process that opened it."""

    def __init__(self, disk: CrashDisk, path: str, inode: Inode, writable: bool) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._writable = writable
        self._open = True
        self._incarnation = disk.incarnation
        disk.open_files += 1

    def __repr__(self) -> str:
        return f"CrashFile({self.path!r}, {len(self._inode.cache)} bytes)"

    def _enter(self, operation: str, length: int = 0, *, writes: bool = False) -> None:
        if self._incarnation != self._disk.incarnation:
            raise PowerCut(f"{operation} {self.path}: opened before the crash")
        self._disk.enter(operation, self.path, length)
        if not self._open or (writes and not self._writable):
            raise OSError(errno.EBADF, "Bad file descriptor", self.path)

    def fileno(self) -> int:
        """A simulated file has no descriptor."""
        raise OSError(errno.EBADF, "a simulated file has no descriptor", self.path)

    def size(self) -> int:
        """See ports.File."""
        self._enter("size")
        self._disk.leave("size", self.path)
        return len(self._inode.cache)

    def pread(self, length: int, offset: int) -> bytes:
        """See ports.File."""
        self._enter("pread", length)
        data = self._inode.read(length, offset)
        self._disk.leave("pread", self.path)
        return data

    def pread_nowait(self, buffer: memoryview, offset: int) -> int:
        """See ports.File."""
        self._enter("pread_nowait", len(buffer))
        most = -2 if self._disk.short_reads is None else self._disk.short_reads(len(buffer))
        count = -1 if most == -1 else self._inode.read_resident(buffer if most < 0 else buffer[:most], offset)
        self._disk.leave("pread_nowait", self.path)
        return count

    def resident(self, offset: int, length: int) -> bool:
        """See ports.File."""
        return self._inode.is_resident(offset, length)

    def nonresident(self, offset: int, length: int) -> bool:
        """See ports.File."""
        return self._inode.is_nonresident(offset, length)

    def read_cold(self, buffer: memoryview, offset: int, *, settled: bool = False) -> int:
        """See ports.File: what is in memory without waiting, the rest as a read and a drop."""
        length = max(0, min(len(buffer), len(self._inode.cache) - offset))
        if self.pread_nowait(buffer[:length], offset) != length:
            data = self.pread(length, offset)  # less, where the file was cut meanwhile
            length = len(data)
            buffer[:length] = data
            self.drop_cache(offset, length)
        return length

    def read_back(self, buffer: memoryview, offset: int, *, ahead: int = 0) -> int:
        """See ports.File."""
        data = self.pread(len(buffer), offset)
        buffer[: len(data)] = data
        return len(data)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        """See ports.File; on a full disk, and where the fault says so, a prefix is written before the error."""
        length = sum(map(len, buffers))
        try:
            self._enter("pwritev", length, writes=True)
        except ShortWrite as error:
            data = b"".join(buffers)[: int(length * error.share)]
            grows = max(0, offset + len(data) - len(self._inode.cache))
            if data and self._disk.grow(self.path, grows) == grows:
                self._inode.write([data], offset)
            raise
        wanted = max(0, offset + length - len(self._inode.cache))
        room = self._disk.grow(self.path, wanted)
        if room < wanted:
            fits = max(0, length - (wanted - room))
            if fits:
                self._inode.write([b"".join(buffers)[:fits]], offset)
            else:
                self._disk.grow(self.path, -room)
            self._disk.leave("pwritev", self.path)
            raise OSError(errno.ENOSPC, "No space left on device", self.path)
        self._inode.write(buffers, offset)
        self._inode.modified_ms = self._disk.wall_ms()
        self._disk.leave("pwritev", self.path)
        return length

    def sync(self) -> None:
        """See ports.File."""
        try:
            self._enter("sync", writes=False)
        except OSError:
            self._inode.lose_dirty()
            raise
        self._disk.sync_inode(self._inode)
        self._disk.leave("sync", self.path)

    def truncate(self, size: int) -> None:
        """See ports.File."""
        self._enter("truncate", size, writes=True)
        grows = size - len(self._inode.cache)
        room = self._disk.grow(self.path, grows)
        if room < grows:
            self._disk.grow(self.path, -room)
            raise OSError(errno.ENOSPC, "No space left on device", self.path)
        self._inode.truncate(size)
        self._inode.modified_ms = self._disk.wall_ms()
        self._disk.leave("truncate", self.path)

    def preallocate(self, size: int) -> None:
        """Zeros up to `size`, synced: one call."""
        self._enter("preallocate", size, writes=True)
        grows = max(0, size - len(self._inode.cache))
        room = self._disk.grow(self.path, grows)
        if room < grows:
            self._disk.grow(self.path, -room)
            raise OSError(errno.ENOSPC, "No space left on device", self.path)
        if grows:
            self._inode.truncate(size)
        self._disk.sync_inode(self._inode)
        self._disk.leave("preallocate", self.path)

    def drop_cache(self, offset: int, length: int) -> None:
        """See ports.File."""
        self._enter("drop_cache", length)
        self._inode.drop(offset, length)
        self._disk.leave("drop_cache", self.path)

    def backdate(self, modified_ms: int) -> None:
        """See ports.File."""
        self._enter("backdate")
        self._inode.modified_ms = modified_ms
        self._disk.leave("backdate", self.path)

    def close(self) -> None:
        """Close; also of a dead process's file, so that `finally` clauses run through."""
        if self._open and self._incarnation == self._disk.incarnation:
            self._disk.open_files -= 1
        self._open = False

    def __del__(self) -> None:
        # As with a real file: a reply may hold the last reference.
        self.close()
