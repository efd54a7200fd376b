"""The Network port in memory: hosts, and connections with seeded delays, partial reads, full buffers and resets.

A connection is two pipes. Bytes that one end sends arrive at the other after a seeded delay, in order, cut into
pieces at seeded places. A pipe holds a bounded number of bytes, in flight and unread together; `send` takes no more.
What is between two hosts goes over their links (`links.py`), which may be slow, stalled or cut, one way or both.
Reads and writes are level-triggered, as with select: a callback runs again while its condition lasts.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from duramen.ports import FileSpan, Part, Transport
from duramen.sim.world.links import Link, Links
from duramen.sim.world.loop import Process, SimLoop

LEVEL_TRIGGER_S = 0.00001
"""Virtual seconds between two callbacks for the same lasting condition."""


@dataclass(slots=True)
class Conditions:
    """How the network behaves. delay_s: bounds of a one-way delay. pipe_bytes: bounds of a pipe's capacity.

    partial: chance that a read or a send moves fewer bytes than it could. fin: chance that a killed process is told of
    by an end instead of a reset. silent: a host without power does not answer, until it is back; else it refuses.
    """

    delay_s: tuple[float, float] = (0.00005, 0.002)
    pipe_bytes: tuple[int, int] = (4096, 262144)
    partial: float = 0.1
    fin: float = 0.0
    silent: bool = False


EVERY_INTERFACE = ("", "0.0.0.0", "::")


class SimNetwork:
    """All connections of a simulation. Hosts are names; every process gets its own `SimPort` onto it.

    links: what is between the hosts.
    """

    def __init__(self, loop: SimLoop, random: Random, conditions: Conditions | None = None) -> None:
        self.loop = loop
        self.random = random
        self.conditions = conditions or Conditions()
        self.listeners: dict[tuple[str, int], SimListener] = {}
        self.links = Links()
        self.next_port = 20000

    def delay(self) -> float:
        """A seeded one-way delay in seconds."""
        return self.random.uniform(*self.conditions.delay_s)

    def delay_on(self, link: Link) -> float:
        """The same on this link."""
        return self.delay() if link.delay_s is None else self.random.uniform(*link.delay_s)


class SimListener:
    """A listening address of one process."""

    def __init__(self, port: SimPort, host: str, number: int, on_accept: Callable[[Transport], None]) -> None:
        self.host = host
        self.port = number
        self.owner = port
        self.on_accept = on_accept

    def close(self) -> None:
        """See ports.Listener."""
        listeners = self.owner.network.listeners
        address = (self.host, self.port)
        if listeners.get(address) is self:
            del listeners[address]


class SimPort:
    """The Network port of one process. host: where it runs; empty for one whose place does not matter."""

    def __init__(self, network: SimNetwork, process: Process, host: str = "") -> None:
        self.network = network
        self.process = process
        self.host = host
        self.transports: list[SimTransport] = []

    def listen(self, host: str, port: int, on_accept: Callable[[Transport], None]) -> SimListener:
        """See ports.Network. A host listens at its own address only."""
        if self.host:
            if host not in (*EVERY_INTERFACE, self.host):
                raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
            host = self.host
        if port == 0:
            self.network.next_port += 1
            port = self.network.next_port
        if (host, port) in self.network.listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        listener = SimListener(self, host, port, on_accept)
        self.network.listeners[host, port] = listener
        return listener

    def connect(self, host: str, port: int) -> SimTransport:
        """See ports.Network."""
        transport = SimTransport(self, f"{host}:{port}")
        self._call(transport, (host, port))
        return transport

    def _call(self, transport: SimTransport, address: tuple[str, int]) -> None:
        """Send the first packet of a connection."""
        delay = self.network.delay_on(self.network.links.get(self.host, address[0]))
        self.network.loop.at(self.network.loop.now + delay, self.process, lambda: self._arrive(transport, address))

    def _arrive(self, transport: SimTransport, address: tuple[str, int]) -> None:
        if transport.closed:
            return
        there, back = self.network.links.get(self.host, address[0]), self.network.links.get(address[0], self.host)
        if there.blocked or back.blocked:
            # Sent again and again until both get through, or whoever waits gives up.
            (there if there.blocked else back).hold(partial(self._call, transport, address), None)
            return
        listener = self.network.listeners.get(address)
        if listener is None:
            transport.break_off(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))
            return
        self.network.next_port += 1
        other = SimTransport(listener.owner, f"{self.host or '127.0.0.1'}:{self.network.next_port}")
        transport.join(other, there, back)
        loop = self.network.loop
        loop.soon(listener.owner.process, lambda: listener.on_accept(other))

    def die(self, delay_s: float, *, deliver: bool) -> None:
        """The process has ended: its peers see a reset after `delay_s`, before or after what was still in flight."""
        for listener in list(self.network.listeners.values()):
            if listener.owner is self:
                listener.close()
        transports, self.transports = self.transports, []
        for transport in transports:
            transport.vanish(delay_s, deliver=deliver)


class SimTransport:
    """One end of a connection (ports.Transport)."""

    def __init__(self, port: SimPort, peer: str) -> None:
        self.peer = peer
        self.closed = False
        self._port = port
        self._network = port.network
        self._other: SimTransport | None = None
        self._unread = bytearray()
        self._in_flight = 0
        self._unacked = 0
        """Bytes that were read here, of which the other end does not know yet."""
        self._inbound: Link
        """The link from the other end to this one, once the connection stands."""
        self._capacity = self._network.random.randint(*self._network.conditions.pipe_bytes)
        self._last_arrival = 0.0
        self._pace = 0
        self._ended = False
        self._error: OSError | None = None
        self._reader: Callable[[], None] | None = None
        self._writer: Callable[[], None] | None = None
        self._polling_read = False
        self._polling_write = False
        port.transports.append(self)

    # -- life

    def join(self, other: SimTransport, there: Link, back: Link) -> None:
        """The connection stands. there: the link to the other end; back: from it."""
        self._other, other._other = other, self
        self._inbound, other._inbound = back, there
        self._poll_write()
        other._poll_write()

    def break_off(self, error: OSError) -> None:
        """Every later call fails with `error`; whoever waits is told."""
        if not self.closed and self._error is None:
            self._error = error
            self._poll_read()
            self._poll_write()

    def close(self) -> None:
        """See ports.Transport. The peer reads what is in flight and then the end, or a reset if bytes stay unread."""
        if self.closed:
            return
        self.closed = True
        self._reader = self._writer = None
        if self in self._port.transports:
            self._port.transports.remove(self)
        other = self._other
        if other is None:
            return
        if self._unread:
            self._later(other, lambda: other.break_off(_reset()))
        else:
            self._later(other, other._end)
        self._unread.clear()

    def reset(self) -> None:
        """The network cuts this connection: both ends fail."""
        other = self._other
        self.break_off(_reset())
        if other is not None:
            other.break_off(_reset())

    def vanish(self, delay_s: float, *, deliver: bool) -> None:
        """The process of this end is gone."""
        self.closed = True
        self._reader = self._writer = None
        other = self._other
        if other is None or other.closed:
            return
        if not deliver:
            other._in_flight = -1
        fin = self._network.conditions.fin
        ended = fin > 0 and not self._unread and self._network.random.random() < fin
        tell = other._end if ended else lambda: other.break_off(_reset())
        self._tell_end(other, delay_s, tell, deliver=deliver)

    def _tell_end(self, other: SimTransport, delay_s: float, tell: Callable[[], None], *, deliver: bool) -> None:
        if other._inbound.blocked:
            again = partial(self._tell_end, other, delay_s, tell, deliver=deliver)
            other._inbound.hold(again, again)
            return
        time = max(self._network.loop.now + delay_s, other._last_arrival + 1e-9 if deliver else 0.0)
        other._last_arrival = time
        self._network.loop.at(time, other._port.process, tell)

    # -- bytes

    def recv_into(self, view: memoryview) -> int:
        """See ports.Transport."""
        self._check()
        unread = self._unread
        if not unread:
            if self._error is not None:
                raise self._error
            return 0 if self._ended else -1
        count = min(len(view), len(unread))
        random = self._network.random
        if count > 1 and random.random() < self._network.conditions.partial:
            count = random.randint(1, count)
        view[:count] = unread[:count]
        del unread[:count]
        other = self._other
        if other is not None and not other.closed:
            if other._inbound.blocked:
                self._unacked += count
                self._later(other, partial(self._acknowledge, count), in_order=False)
            else:
                self._later(other, other._poll_write, in_order=False)
        return count

    def _acknowledge(self, count: int) -> None:
        """The other end learns that so many bytes were read."""
        self._unacked -= count
        if self._other is not None:
            self._other._poll_write()

    def send(self, parts: Sequence[Part]) -> int:
        """See ports.Transport; a FileSpan's bytes are read from the simulated file at this moment."""
        self._check()
        if self._error is not None:
            raise self._error
        room = self._room()
        if room <= 0:
            return 0
        random = self._network.random
        if random.random() < self._network.conditions.partial:
            room = random.randint(1, room)
        data = bytearray()
        for part in parts:
            if len(data) >= room:
                break
            data += _bytes_of(part, room - len(data))
        if data:
            self._carry(data)
        return len(data)

    def pace(self, bytes_per_second: int) -> bool:
        """See ports.Transport. Every other pipe, by its capacity, is of a system that can."""
        if self.closed or self._capacity % 2:
            return False
        self._pace = bytes_per_second
        return True

    def set_reader(self, callback: Callable[[], None] | None) -> None:
        """See ports.Transport."""
        self._reader = callback
        self._poll_read()

    def set_writer(self, callback: Callable[[], None] | None) -> None:
        """See ports.Transport."""
        self._writer = callback
        self._poll_write()

    def _check(self) -> None:
        if self.closed:
            raise OSError(errno.EBADF, "Bad file descriptor")

    def _room(self) -> int:
        other = self._other
        if other is None:
            return 0
        if other.closed:
            return self._capacity
        return self._capacity - len(other._unread) - max(0, other._in_flight) - other._unacked

    def _carry(self, data: bytearray) -> None:
        other = self._other
        if other is None or other.closed:
            self._later(self, lambda: self.break_off(_reset()), in_order=False)
            return
        random = self._network.random
        cuts = sorted(random.randint(1, len(data)) for _ in range(random.choice((0, 0, 0, 1, 2))))
        start = 0
        for stop in [*cuts, len(data)]:
            if stop > start:
                piece = bytes(data[start:stop])
                other._in_flight += len(piece)
                seconds = len(piece) / self._pace if self._pace else 1e-9
                self._later(other, lambda piece=piece: other._take(piece), behind=seconds)  # type: ignore[misc]
                start = stop

    def _later(
        self, end: SimTransport, callback: Callable[[], None], *, in_order: bool = True, behind: float = 1e-9
    ) -> None:
        """Let something arrive at one end after a delay, so long behind everything sent there before."""
        link = end._inbound
        if link.blocked:
            again = partial(self._later, end, callback, in_order=in_order, behind=behind)
            link.hold(again, self.reset if in_order else None)
            return
        network = self._network
        now = network.loop.now
        time = now + (network.delay() if link.delay_s is None else network.delay_on(link))
        if in_order:
            time = end._last_arrival = max(time, max(now, end._last_arrival) + behind)
        self._network.loop.at(time, end._port.process, callback)

    def _take(self, piece: bytes) -> None:
        if self._in_flight < 0 or self.closed or self._error is not None:
            return
        self._in_flight -= len(piece)
        self._unread += piece
        self._poll_read()

    def _end(self) -> None:
        self._ended = True
        self._poll_read()

    # -- callbacks

    def _poll_read(self) -> None:
        if self._reader is not None and not self._polling_read and self._readable():
            self._polling_read = True
            self._network.loop.at(self._network.loop.now + LEVEL_TRIGGER_S, self._port.process, self._call_reader)

    def _call_reader(self) -> None:
        self._polling_read = False
        if self._reader is not None and self._readable():
            self._reader()
            self._poll_read()

    def _readable(self) -> bool:
        return bool(self._unread) or self._ended or self._error is not None

    def _poll_write(self) -> None:
        if self._writer is not None and not self._polling_write and self._writable():
            self._polling_write = True
            self._network.loop.at(self._network.loop.now + LEVEL_TRIGGER_S, self._port.process, self._call_writer)

    def _call_writer(self) -> None:
        self._polling_write = False
        if self._writer is not None and self._writable():
            self._writer()
            self._poll_write()

    def _writable(self) -> bool:
        return self._error is not None or self._room() > 0


def _bytes_of(part: Part, limit: int) -> bytes:
    """The first bytes of a part, at most `limit`."""
    if isinstance(part, FileSpan):
        length = min(limit, part.length)
        data = part.file.pread(length, part.position)
        if len(data) < length:
            raise OSError(errno.EIO, "a file span reaches past the end of its file", part.file.path)
        return data
    return bytes(memoryview(part)[:limit])


def _reset() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
