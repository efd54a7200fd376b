"""The five ports through which Duramen touches the world: Disk, Clock, Network, Executor and Entropy.

A node, from `server` down, reaches files, time, sockets, threads and randomness only through these, so that the
simulator can run the production server from one seed. Production implementations: `storage/files/os_disk.py` and
`server/net/os_ports.py`; simulated ones: `sim/world/`. Nothing here imports a module that does I/O.

Threads: unless said otherwise a port's methods are called on the loop thread. `File` and `Disk` methods may also be
called from work handed to the Executor, never for the same file offset range at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """One open file. Offsets and lengths are bytes. Failures are OSError (ENOSPC, EIO, ...)."""

    path: str

    def fileno(self) -> int:
        """The kernel descriptor for sendfile; a simulated file has none and raises OSError."""

    def size(self) -> int: ...

    def pread(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes from `offset`; short only at the end of the file."""

    def pread_nowait(self, buffer: memoryview, offset: int) -> int:
        """Fill `buffer` with bytes that are in memory already; returns how many, -1 when that would block.

        The kernel may begin to read what was missing: ask `resident` first where that matters.
        """

    def resident(self, offset: int, length: int) -> bool:
        """Whether all these bytes are in memory, as far as the system can tell; True where it cannot tell at all."""

    def nonresident(self, offset: int, length: int) -> bool:
        """Whether none of these bytes is in memory, as far as the system can tell; False where it cannot tell."""

    def read_cold(self, buffer: memoryview, offset: int, *, settled: bool = False) -> int:
        """Fill `buffer`, waiting for the disk, and leave in memory only what was there before; less at the end.

        settled: all of this file is on the disk, and hardly anybody writes to it: who does may wait for the read. Best
        where the buffer and the offset are multiples of DIRECT_BYTES.
        """

    def read_back(self, buffer: memoryview, offset: int, *, ahead: int = 0) -> int:
        """Fill `buffer`, waiting for the disk, with what is wanted in memory: it stays there; less at the end.

        Nothing else comes with it but `ahead` bytes behind, for which nobody waits.
        """

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write all buffers one after the other at `offset` and return the byte count; all or OSError."""

    def sync(self) -> None:
        """Return once data and length are on stable storage (fdatasync; F_FULLFSYNC on macOS)."""

    def truncate(self, size: int) -> None: ...

    def drop_cache(self, offset: int, length: int) -> None:
        """Tell the kernel these pages are not needed again; a hint, which never fails."""

    def backdate(self, modified_ms: int) -> None:
        """Have `Disk.modified_ms` say this until the next write; a hint, which never fails, and which a power cut may
        take back.
        """

    def close(self) -> None: ...


class Space(NamedTuple):
    """Bytes of a volume, whatever uses them, and of these the ones that this process may still take."""

    total: int
    free: int


class DirectoryLock(Protocol):
    """An exclusive lock on a data directory, held until released or the process ends."""

    def release(self) -> None: ...


class Disk(Protocol):
    """The file system below the data directories. Paths are strings; names are synced by `sync_directory`."""

    def open(self, path: str, *, create: bool = False, write: bool = False) -> File:
        """Open for reading, or for reading and writing; FileNotFoundError unless it exists or `create`."""

    def exists(self, path: str) -> bool: ...

    def list_directory(self, path: str) -> list[str]:
        """Names in the directory, sorted."""

    def make_directories(self, path: str) -> None:
        """Create the directory and its parents; no error when it exists. Not durable before `sync_directory`."""

    def rename(self, source: str, target: str) -> None:
        """Atomically give `source` the name `target`, replacing a file there."""

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with everything in it."""

    def sync_directory(self, path: str) -> None:
        """Make the names in this directory durable. OSError, and from then on always.

        The kernel tells of what it could not write once: who asks next would take for durable what is on no disk.
        """

    def preallocate(self, file: File, size: int) -> None:
        """Fill the file with zeros up to `size` and sync it, so that later writes need no new blocks."""

    def lock(self, path: str) -> DirectoryLock:
        """Take the exclusive lock file `path`; errors.DirectoryLockedError when another process has it."""

    def volume_space(self, path: str) -> Space:
        """Of the volume that the path is on."""

    def modified_ms(self, path: str) -> int:
        """When the file's bytes last changed, by the wall clock."""

    def cache_bytes(self) -> int:
        """How much file data is likely to stay in memory: a share of the machine's."""

    def descriptor_limit(self) -> int:
        """How many files and connections the process may have open."""


class FileSpan(NamedTuple):
    """`length` bytes of `file` from `position`: a piece of a reply that need not pass through Python."""

    file: File
    position: int
    length: int


Part = Buffer | FileSpan
"""What a transport can send: bytes-like objects and spans of files."""


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Time, and the loop's agenda."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, for record timestamps and retention; may jump."""

    def monotonic(self) -> float:
        """Seconds that never go backwards, for time-outs."""

    def boottime(self) -> float:
        """The same, and it goes on while the machine is suspended: for what other machines go by, too."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run on the loop after the current event."""

    def call_last(self, callback: Callable[[], None]) -> None:
        """Run when everything else of this turn of the loop is done, what `call_soon` was asked for included."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer: ...


Submit = Callable[[str, Callable[[], Any], Callable[[Any, BaseException | None], None]], None]
"""What `Executor.submit` does; for those whose jobs somebody else counts."""


class Executor(Protocol):
    """Every thread but the loop's."""

    def submit(self, lane: str, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Run `work` off the loop, then `done(result, error)` on the loop.

        Work of one lane runs one after the other, in order; lanes run side by side. Lanes in use: "journal:DIR"
        (group commit), "quorum-state" (votes), "checkpoint" (segment syncs, rolls), "cold-0", "cold-1" (reads that miss
        the cache), "replica", "replica-catch-up" (those of other brokers), "recent" (what the machine took out of
        memory), "housekeeping" (deletion, retention), "producers" (read again behind a truncation), "scrub" (re-reading
        sealed segments), "lookups" (offsets by time), "rewriting" (batches that must be decoded), "large" (decoding of
        large requests, encoding of large replies), "staging-checks", "cleaner-N" (compaction), "names" (hosts that are
        not numbers), "expressions", "assignments" (of consumer groups).
        """

    def together(self, work: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run all of it, side by side where that helps, and return the results in order: for a start, which has no
        loop yet that it could hold up. The first error is raised when nothing runs any more.
        """


class Entropy(Protocol):
    """Randomness for identities and jitter."""

    def random_bytes(self, length: int) -> bytes: ...

    def uniform(self, low: float, high: float) -> float: ...


class Transport(Protocol):
    """One connection's byte transport (plain TCP now, TLS later). Never blocks."""

    peer: str
    """Remote address, `host:port`; an IPv6 host stands in brackets, a name gives way to its address when known."""

    def recv_into(self, view: memoryview) -> int:
        """Bytes received into `view`; 0 when the peer closed; -1 when there is nothing to read now."""

    def send(self, parts: Sequence[Part]) -> int:
        """Send as much as the socket takes of the parts' concatenation; returns bytes taken (0: would block)."""

    def pace(self, bytes_per_second: int) -> bool:
        """Let what `send` takes from now on leave at this rate at most (0: as fast as it can). False: the system cannot
        do that, or the connection is closed, and nothing has changed."""

    def set_reader(self, callback: Callable[[], None] | None) -> None:
        """Call back whenever there is something to read; None stops that (how a connection is muted)."""

    def set_writer(self, callback: Callable[[], None] | None) -> None:
        """Call back whenever the socket takes bytes again; None stops that."""

    def close(self) -> None: ...


class Listener(Protocol):
    """A listening address."""

    host: str
    port: int

    def close(self) -> None: ...


class Network(Protocol):
    """Connections in and out. A failed connection shows as OSError from the Transport."""

    def listen(self, host: str, port: int, on_accept: Callable[[Transport], None]) -> Listener:
        """Listen and hand over each accepted connection; OSError when the port is taken.

        host: empty for every interface, of IPv4 and of IPv6 where there is one. port: 0 picks one.
        """

    def connect(self, host: str, port: int) -> Transport:
        """Start connecting; the transport becomes writable when it is connected. OSError when that fails at once.

        A failed attempt is readable and writable, and either call raises what happened: ConnectionRefusedError where
        the machine answers that nobody listens there, another OSError for all else. A host that does not answer at all
        is no error for minutes: time-outs are the caller's. A name is looked up off the loop.
        """


class World(NamedTuple):
    """The five ports together."""

    disk: Disk
    clock: Clock
    network: Network
    executor: Executor
    entropy: Entropy
