"""The five ports on a real machine: one loop polls the sockets, threads do what blocks.

Connections are raw non-blocking sockets whose bytes are received and sent by the callbacks the loop makes: no copy of
a fetched byte but the kernel's own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from duramen.errors import DuramenError
from duramen.ports import Clock, Entropy, Executor, FileSpan, Listener, Network, Part, Submit, Timer, Transport, World
from duramen.server.net.bound_sockets import bind_tcp, shown_address
from duramen.server.net.loop import EventLoop
from duramen.server.net.named_transport import NamedTransport, SocketAddress, look_up, numeric_address
from duramen.storage import RealDisk, SystemEntropy, run_parallel

SENDFILE_BYTES = 64 * 1024
"""Spans below this are read and sent together with what surrounds them; a sendfile call of its own costs more."""

MAX_VECTORS = 512
MORE_FOLLOWS = getattr(socket, "MSG_MORE", 0)
SEND_TURN_BYTES = 512 * 1024
"""What one connection may send before the loop turns to the next one (about 150 µs): who sends gigabytes would else
hold up everybody who waits for a few bytes."""

ALONE_TURN_BYTES = 1024 * 1024
"""The same while nobody waits for a few bytes: turns cost processor time. More brings no more."""

SHORT_BYTES = 64 * 1024
"""Below this a reply is one that somebody may wait for by the millisecond."""

ALONE_SECONDS = 1.0
"""How long after the last short reply the long ones still make room for the next."""

SO_MAX_PACING_RATE = 47
"""As in Linux's <asm-generic/socket.h>; Python has no name for it."""

BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""macOS has no clock of that name, and its CLOCK_MONOTONIC (which is not `time.monotonic`) goes on in its sleep."""

UNPACED = -1
MOST_PACE = (1 << 31) - 1

SWITCH_SECONDS = 0.0001
"""How long a thread may keep the interpreter to itself once the loop wants it back. CPython's own 5 ms, paid whenever a
call into the kernel returns while another thread computes, would be most of a request's latency."""

STACK_BYTES = 1024 * 1024
"""Of each thread: `ulimit -v` counts the system's own 8 MiB in full, for a node's threads 100 MiB."""

ACCEPTS_PER_TURN = 64
WOULD_BLOCK = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR)


class LoopClock:
    """Clock port on the loop."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        # Asked several times a request: the functions themselves, without a method around them.
        self.call_soon = loop.call_soon
        self.call_last = loop.call_last
        self.monotonic = time.monotonic
        self.boottime = partial(time.clock_gettime, BOOTTIME)

    def wall_ms(self) -> int:
        return int(time.time() * 1000)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return self._loop.call_later(seconds, callback)


Done = Callable[[Any, BaseException | None], None]
Job = tuple[Callable[[], Any], Done]
_Lane = tuple["SimpleQueue[Job | None]", Thread]


class ThreadExecutor:
    """Executor port: one thread per lane, so that a lane's work keeps its order."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._lanes: dict[str, _Lane] = {}
        self._spare: list[_Lane] = []

    def reserve(self, lanes: int) -> None:
        """Begin the threads of so many lanes: later there may be no room for them. DuramenError when there is none."""
        try:
            while len(self._spare) < lanes:
                self._spare.append(self._begin())
        except (RuntimeError, MemoryError) as error:
            raise DuramenError(
                f"a node needs at least {lanes} threads, and only {len(self._spare)} can begin ({error}). "
                "Raise what bounds them: `ulimit -v` (at least 360000), `ulimit -u`, a container's limit of processes"
            ) from error

    def submit(self, lane: str, work: Callable[[], Any], done: Done) -> None:
        (self._lanes.get(lane) or self._start(lane))[0].put((work, done))

    def _start(self, lane: str) -> _Lane:
        if self._spare:
            begun = self._spare.pop()
        else:
            try:
                begun = self._begin()
            except (RuntimeError, MemoryError):
                if not self._lanes:
                    raise
                begun = next(reversed(self._lanes.values()))  # shared: slower, in order all the same
        self._lanes[lane] = begun
        return begun

    def _begin(self) -> _Lane:
        queue: SimpleQueue[Job | None] = SimpleQueue()
        thread = Thread(target=self._serve, args=(queue,), daemon=True)
        thread.start()
        return queue, thread

    def _serve(self, queue: SimpleQueue[Job | None]) -> None:
        while (job := queue.get()) is not None:
            work, done = job
            result: Any = None
            error: BaseException | None = None
            try:
                result = work()
            except BaseException as raised:  # noqa: BLE001 the error travels to the loop, where it is handled
                error = raised
            self._loop.call_from_thread(partial(done, result, error))
            del job, work, done, result, error  # an idle lane keeps nothing alive

    def together(self, work: Sequence[Callable[[], Any]]) -> list[Any]:
        return run_parallel(work)

    def close(self) -> None:
        """Let running work end, drop what has not started."""
        lanes = [*self._lanes.values(), *self._spare]  # a shared one is told twice to end, which harms nobody
        for queue, _ in lanes:
            with contextlib.suppress(Empty):
                while True:
                    queue.get_nowait()
            queue.put(None)
        for _, thread in lanes:
            thread.join()


class SendQuantum:
    """How much one connection may send at a time: little while others are given short replies."""

    __slots__ = ("short_at",)

    def __init__(self) -> None:
        self.short_at = time.monotonic()
        """When a short reply left last."""

    def most(self) -> int:
        """Bytes."""
        return SEND_TURN_BYTES if time.monotonic() - self.short_at < ALONE_SECONDS else ALONE_TURN_BYTES


class SocketTransport:
    """Transport port over a non-blocking TCP socket."""

    __slots__ = ("_fd", "_loop", "_quantum", "_rest", "_socket", "peer")

    def __init__(self, loop: EventLoop, sock: socket.socket, peer: str, quantum: SendQuantum) -> None:
        self._loop = loop
        self._quantum = quantum
        self._rest = False
        self._socket = sock
        self._fd = sock.fileno()
        self.peer = peer

    def recv_into(self, view: memoryview) -> int:
        try:
            return self._socket.recv_into(view)
        except (BlockingIOError, InterruptedError):
            return -1

    def send(self, parts: Sequence[Part]) -> int:
        if len(parts) == 1 and type(only := parts[0]) is bytes and len(only) < SHORT_BYTES:
            # A small reply, as most are.
            if not self._rest:
                self._quantum.short_at = time.monotonic()
            try:
                sent = self._socket.send(only)
            except (BlockingIOError, InterruptedError):
                sent = 0
            self._rest = sent < len(only)
            return sent
        size = 0
        for part in parts:
            size += part.length if type(part) is FileSpan else len(part)
        if size < SHORT_BYTES:
            most = size
            if not self._rest:
                self._quantum.short_at = time.monotonic()
        else:
            most = self._quantum.most()
        sent = self._send(parts, most)
        self._rest = sent < size
        return sent

    def _send(self, parts: Sequence[Part], most: int) -> int:
        """Send the parts, or their first `most` bytes."""
        if len(parts) == 1 and not isinstance(parts[0], FileSpan):
            only = parts[0]
            try:
                return self._socket.send(only if len(only) <= most else memoryview(only)[:most])
            except (BlockingIOError, InterruptedError):
                return 0
        total = 0
        index = 0
        count = len(parts)
        try:
            while index < count and total < most:
                vectors: list[bytes | bytearray | memoryview] = []
                wanted = 0
                span: FileSpan | None = None
                while index < count and len(vectors) < MAX_VECTORS and total + wanted < most:
                    part = parts[index]
                    if isinstance(part, FileSpan):
                        if part.length >= SENDFILE_BYTES:
                            span = part
                            index += 1
                            break
                        span_bytes = part.file.pread(part.length, part.position)
                        if len(span_bytes) < part.length:
                            raise _ended(part)
                        part = span_bytes
                    if len(part) > most - total - wanted:
                        part = memoryview(part)[: most - total - wanted]
                    vectors.append(part)
                    wanted += len(part)
                    index += 1
                if vectors:
                    sent = self._socket.sendmsg(vectors, (), 0 if span is None else MORE_FOLLOWS)
                    total += sent
                    if sent < wanted:
                        return total
                if span is not None:
                    sent = self._send_file(span, most - total)
                    total += sent
                    if sent < span.length:
                        return total
        except OSError as error:
            if error.errno not in WOULD_BLOCK:
                raise
        return total

    def _send_file(self, span: FileSpan, most: int) -> int:
        """Send the span, or its first `most` bytes."""
        done = 0
        length = min(span.length, most)
        while done < length:
            try:
                sent = os.sendfile(self._fd, span.file.fileno(), span.position + done, length - done)
            except OSError as error:
                if error.errno in WOULD_BLOCK:
                    break
                raise
            if sent == 0:
                raise _ended(span)
            done += sent
        return done

    def pace(self, bytes_per_second: int) -> bool:
        if sys.platform != "linux":
            return False
        rate = min(bytes_per_second, MOST_PACE) if bytes_per_second > 0 else UNPACED
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate)
        except OSError:
            return False
        return True

    def set_reader(self, callback: Callable[[], None] | None) -> None:
        self._loop.set_reader(self._fd, callback)

    def set_writer(self, callback: Callable[[], None] | None) -> None:
        self._loop.set_writer(self._fd, callback)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self.set_reader(None)
            self.set_writer(None)
            self._socket.close()


def _ended(span: FileSpan) -> OSError:
    """The file is shorter than the span: what the header promised cannot be sent any more."""
    return OSError(errno.EIO, f"{span.file.path} ended before {span.position + span.length}")


class SocketListener:
    """Listener port over a listening TCP socket."""

    def __init__(
        self, loop: EventLoop, sock: socket.socket, on_accept: Callable[[Transport], None], quantum: SendQuantum
    ) -> None:
        self._loop = loop
        self._quantum = quantum
        self._socket = sock
        self._on_accept = on_accept
        self.host, self.port = sock.getsockname()[:2]
        loop.set_reader(sock.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Out of descriptors: leave the rest in the backlog and come back when some are free again.
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._loop.set_reader(self._socket.fileno(), None)
                    self._loop.call_later(0.5, self._resume)
                    return
                raise
            sock.setblocking(False)
            with contextlib.suppress(OSError):  # macOS: the peer may be gone already, which the first read will tell
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._on_accept(SocketTransport(self._loop, sock, shown_address(*address[:2]), self._quantum))

    def _resume(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.set_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.set_reader(self._socket.fileno(), None)
            self._socket.close()


class SocketNetwork:
    """Network port over TCP. submit: of the executor that looks names up; without one it is done on the loop."""

    def __init__(
        self,
        loop: EventLoop,
        send_buffer_bytes: int = -1,
        receive_buffer_bytes: int = -1,
        submit: Submit | None = None,
    ) -> None:
        self._loop = loop
        self._submit = submit
        self._quantum = SendQuantum()
        self._send_buffer_bytes = send_buffer_bytes
        self._receive_buffer_bytes = receive_buffer_bytes

    def listen(self, host: str, port: int, on_accept: Callable[[Transport], None]) -> Listener:
        sock = bind_tcp(host, port)
        try:
            # Accepted connections inherit it, as Kafka's have it: a peer that is gone without a word is found.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setblocking(False)
            if self._send_buffer_bytes > 0:
                # Accepted connections inherit it. With less than it hands over at once sendfile stands still.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, max(self._send_buffer_bytes, SENDFILE_BYTES))
            if self._receive_buffer_bytes > 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer_bytes)
            sock.listen(1024)
        except OSError:
            sock.close()
            raise
        return SocketListener(self._loop, sock, on_accept, self._quantum)

    def connect(self, host: str, port: int) -> Transport:
        address = numeric_address(host, port)
        if address is not None:
            return self._connect(address)
        if self._submit is None:
            return self._connect(look_up(host, port))
        return NamedTransport(host, port, self._submit, self._loop.call_soon, self._connect)

    def _connect(self, address: SocketAddress) -> Transport:
        family, where = address
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            with contextlib.suppress(BlockingIOError):
                sock.connect(where)
        except OSError:
            sock.close()
            raise
        return SocketTransport(self._loop, sock, shown_address(*where[:2]), self._quantum)


def real_world(send_buffer_bytes: int = -1, receive_buffer_bytes: int = -1) -> tuple[EventLoop, World, ThreadExecutor]:
    """A loop and the five ports of this machine on it; close the executor, then the loop.

    send_buffer_bytes, receive_buffer_bytes: of each accepted connection; the system decides unless it is positive.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    loop = EventLoop()
    executor = ThreadExecutor(loop)
    clock: Clock = LoopClock(loop)
    network: Network = SocketNetwork(loop, send_buffer_bytes, receive_buffer_bytes, executor.submit)
    entropy: Entropy = SystemEntropy()
    lanes: Executor = executor
    return loop, World(RealDisk(), clock, network, lanes, entropy), executor
