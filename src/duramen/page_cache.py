"""What the kernel is asked about its page cache: which bytes are in memory, how much there is, and reads past it.

Each question is one function that says None where this system does not answer it, so that a test can force that.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from collections.abc import Callable
from contextlib import suppress

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
UNKNOWN_SHARE_BYTES = 256 << 20
RESIDENCE_BYTES = 128 * 1024
"""Piece by which a cold read finds out what was in memory before it came, where it cannot read past the cache."""
DIRECT_BYTES = 4096
"""Direct reads begin at multiples of this, in the file and in memory, and end at them or with the file."""
PIECE_BYTES = 256 * 1024
"""What a reader whom none should feel asks for at once: many kernels give the processor to nobody else meanwhile."""
MOST_BYTES = 1 << 30
"""The same of any other reader: the kernel's own bound is twice that."""
HUGE_PAGE_BYTES = 2 << 20
"""Of most machines; where it is another, rooms lie in ordinary pages."""
Counter = Callable[[int, int, int], int]
"""(descriptor, offset, length) -> how many pages of that range are in memory; OSError. Brings none in."""

_CACHESTAT = 451
_MAP_FAILED = ctypes.c_void_p(-1).value
_RWF_DONTCACHE = 0x80
_DESCRIPTORS = "/proc/self/fd"


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently"))


def count_call() -> Counter | None:
    """How cached pages are counted: by cachestat, else by mincore; None where neither is there."""
    return cachestat_call() or mincore_call()


def cachestat_call() -> Counter | None:
    """cachestat(2), Linux 6.5 and newer."""
    if not sys.platform.startswith("linux"):
        return None
    # PyDLL keeps the interpreter's lock: the call takes about as long as handing that over would.
    system = ctypes.PyDLL(None, use_errno=True).syscall
    system.restype = ctypes.c_long
    system.argtypes = (ctypes.c_long, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)

    def count(descriptor: int, offset: int, length: int) -> int:
        asked = _Range(offset, length)
        counts = _Counts()
        if system(_CACHESTAT, descriptor, ctypes.byref(asked), ctypes.byref(counts), 0) != 0:
            raise _failed()
        return int(counts.cached)

    probe = os.memfd_create("duramen-probe")
    try:
        count(probe, 0, PAGE_BYTES)
    except OSError:
        return None  # an older kernel, or a sandbox that does not let it through
    finally:
        os.close(probe)
    return count


def mincore_call() -> Counter | None:
    """mincore(2) on a mapping made for the question; its bytes are never touched."""
    library = ctypes.PyDLL(None, use_errno=True)
    if not all(hasattr(library, name) for name in ("mmap", "mincore", "munmap")):
        return None
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
    )  # fmt: skip
    library.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)

    def count(descriptor: int, offset: int, length: int) -> int:
        start = offset - offset % PAGE_BYTES
        size = offset + length - start
        address = library.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, start)
        if address == _MAP_FAILED:
            raise _failed()
        try:
            states = ctypes.create_string_buffer(-(-size // PAGE_BYTES))
            if library.mincore(address, size, states) != 0:
                raise _failed()
            return sum(state & 1 for state in states.raw)
        finally:
            library.munmap(address, size)

    return count


def _failed() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


def uncached_flag() -> int | None:
    """The preadv2 flag that leaves no pages behind (Linux 6.14); file systems refuse it one by one."""
    return _RWF_DONTCACHE if sys.platform.startswith("linux") and hasattr(os, "preadv") else None


def direct_flag() -> int | None:
    """The flag that opens a file past the page cache; file systems may refuse it. None where none can be reopened."""
    return getattr(os, "O_DIRECT", None) if os.path.isdir(_DESCRIPTORS) else None


def aligned(buffer: bytearray) -> memoryview:
    """A buffer from its first multiple of DIRECT_BYTES in memory on."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    return memoryview(buffer)[-address % DIRECT_BYTES :]


def room_for(length: int) -> memoryview:
    """A new buffer of at least `length` bytes that is fit for direct reads: up to its end, or the file's."""
    whole = length + -length % DIRECT_BYTES
    return aligned(bytearray(whole + DIRECT_BYTES))[:whole]


def rooms_for(count: int, length: int) -> list[memoryview]:
    """So many areas side by side, each as `room_for` makes it, in huge pages where the system has them.

    A direct read then has one or two pages to pin and to name to the disk instead of hundreds. Nothing of it is memory
    before it is used.
    """
    whole = length + -length % DIRECT_BYTES
    area = mmap.mmap(-1, count * whole + HUGE_PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            area.madvise(mmap.MADV_HUGEPAGE)
    first = -ctypes.addressof(ctypes.c_char.from_buffer(area)) % HUGE_PAGE_BYTES
    return [memoryview(area)[start : start + whole] for start in range(first, first + count * whole, whole)]


def memory_share() -> int:
    """A quarter of the machine's memory in bytes: file data which is likely to stay in memory for a while."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES // 4
    except (OSError, ValueError):
        return UNKNOWN_SHARE_BYTES


def pages(offset: int, length: int) -> int:
    """How many pages a range touches."""
    return (offset + length - 1) // PAGE_BYTES - offset // PAGE_BYTES + 1


def refused(error: OSError) -> bool:
    """Whether an error means "never here" rather than "not now"."""
    return error.errno in (errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


def advise_call(advice: str) -> Callable[[int, int, int], None] | None:
    """How to tell the kernel "POSIX_FADV_" + `advice` of (descriptor, offset, length); None where it cannot be told.

    A length of 0 means up to the end of the file.
    """
    advise: Callable[[int, int, int, int], None] | None = getattr(os, "posix_fadvise", None)
    if advise is None:
        return None
    call, number = advise, getattr(os, f"POSIX_FADV_{advice}")
    return lambda descriptor, offset, length: call(descriptor, offset, length, number)


class PastCache:
    """Reads that leave in memory what was there before, and nothing else. None stands for what cannot be done here.

    piece_bytes: most bytes that one of its system calls asks for.
    """

    def __init__(self, piece_bytes: int = MOST_BYTES) -> None:
        self.piece_bytes = piece_bytes
        self.drop = advise_call("DONTNEED")
        self.scatter = advise_call("RANDOM")
        self.prefetch = advise_call("WILLNEED")
        self.count = count_call()
        self.uncached = uncached_flag()
        self.direct = direct_flag()

    def resident(self, descriptor: int, offset: int, length: int) -> bool:
        """Whether all these bytes are in memory, as far as the system can tell; True where it cannot tell at all."""
        count = self.count
        return count is None or count(descriptor, offset, length) >= pages(offset, length)

    def nonresident(self, descriptor: int, offset: int, length: int) -> bool:
        """Whether none of these bytes is in memory, as far as the system can tell; False where it cannot tell."""
        count = self.count
        return count is not None and count(descriptor, offset, length) == 0

    def drop_pages(self, descriptor: int, offset: int, length: int) -> None:
        """Tell the kernel that these pages are not needed again; a hint."""
        if self.drop is not None:
            with suppress(OSError):
                self.drop(descriptor, offset, length)

    def stop_read_ahead(self, descriptor: int) -> None:
        """From now on reads of this open file bring what they ask for and no more (megabytes, on some machines).

        The next reader would take the rest for what somebody keeps in memory, and take it from there: by more of it.
        """
        if self.scatter is not None:
            with suppress(OSError):
                self.scatter(descriptor, 0, 0)

    def read_back(self, descriptor: int, buffer: memoryview, offset: int, ahead: int) -> int:
        """Fill `buffer` through the page cache; bytes read, less at the end of the file. OSError.

        ahead: so many bytes behind it are on their way when this returns, where the system can be told.
        """
        self.stop_read_ahead(descriptor)
        if ahead and self.prefetch is not None:
            with suppress(OSError):
                self.prefetch(descriptor, offset + len(buffer), ahead)
        return _fill(descriptor, buffer, offset)

    def read_settled(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        """`read_past` of a file that is on the disk and hardly written: without the page cache, where that can be.

        Direct reads cost a fifth of the processor time. What is in memory for the greater part is copied from there.
        On a file that is written all the time they would wait for its writers, and these for them.
        """
        count = self.count
        if self.direct is None or (count and 2 * count(descriptor, offset, len(buffer)) > pages(offset, len(buffer))):
            return self.read_past(descriptor, buffer, offset)
        try:
            return self._read_directly(descriptor, buffer, offset, self.direct)
        except OSError:  # refused by the file system, or for what is not aligned; a disk that fails does so again
            return self.read_past(descriptor, buffer, offset)

    def _read_directly(self, descriptor: int, buffer: memoryview, offset: int, flag: int) -> int:
        direct = os.open(f"{_DESCRIPTORS}/{descriptor}", os.O_RDONLY | os.O_CLOEXEC | flag)
        try:
            done = 0
            while done < len(buffer):
                count = os.preadv(direct, [buffer[done : done + self.piece_bytes]], offset + done)
                done += count
                if count == 0 or done % DIRECT_BYTES:
                    break  # the end of the file
            return done
        finally:
            os.close(direct)

    def read_past(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        """Fill `buffer` from the file, waiting for the disk; bytes read, less at the end of the file. OSError."""
        self.stop_read_ahead(descriptor)
        flag = self.uncached
        if flag is None:
            return self._read_and_drop(descriptor, buffer, offset)
        try:
            return _fill(descriptor, buffer, offset, flag, self.piece_bytes)
        except OSError as error:
            if not refused(error):
                raise
            self.uncached = None
            return self._read_and_drop(descriptor, buffer, offset)

    def _read_and_drop(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        """Where no flag keeps a read out of the cache: drop what was not there before."""
        end = min(offset + len(buffer), os.fstat(descriptor).st_size)
        pieces = [(start, min(RESIDENCE_BYTES, end - start)) for start in range(offset, end, RESIDENCE_BYTES)]
        absent = [piece for piece in pieces if self.count is None or not self.resident(descriptor, *piece)]
        done = _fill(descriptor, buffer, offset, piece=self.piece_bytes)
        for start, length in absent:
            self.drop_pages(descriptor, start, length)
        return done


def _fill(descriptor: int, buffer: memoryview, offset: int, flags: int = 0, piece: int = MOST_BYTES) -> int:
    """Read until `buffer` is full or the file ends; bytes read."""
    done = 0
    while done < len(buffer):
        count = os.preadv(descriptor, [buffer[done : done + piece]], offset + done, flags)
        if count == 0:
            break
        done += count
    return done
