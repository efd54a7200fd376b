"""Whether nobody listens at an address any more: connects that are refused, which only a living machine's system says.

Of a process whose connection has ended this tells that it is gone. Every other outcome proves nothing: a connect that
hangs (a stopped process with a full backlog, a link that is cut, a host without power), one that is answered, a name
that is not found.
"""

from __future__ import annotations

from collections.abc import Callable

from duramen.ports import Clock, Network, Timer, Transport

APART_S = 0.05
"""Seconds between two connects of one probe, and how long one that is answered is watched: the listener of a process
that ends may be closed a moment after its connections, and who got in by then is thrown out again."""

CONNECT_S = 1.0
"""Seconds after which a connect proves nothing."""

MOST_ANSWERED = 3
"""Connects that may be answered and ended again before the probe gives up."""


class AddressProbe:
    """One look at an address: `on_refused` is called when `times` connects, APART_S apart, were refused.

    on_answered: called with the address, as a number, when a connect has stood for APART_S. Else nothing is called.
    `over` once it has come to an end. `cancel` ends it early; then nothing is called any more.
    """

    def __init__(
        self,
        network: Network,
        clock: Clock,
        host: str,
        port: int,
        on_refused: Callable[[], None],
        *,
        times: int = 1,
        on_answered: Callable[[tuple[str, int]], None] | None = None,
    ) -> None:
        self.over = False
        self._network = network
        self._clock = clock
        self._host = host
        self._port = port
        self._on_refused = on_refused
        self._on_answered = on_answered
        self._left = times
        self._answered = 0
        self._is_connected = False
        self._transport: Transport | None = None
        self._timer: Timer | None = clock.call_later(0.0, self._connect)

    def cancel(self) -> None:
        """Nothing is called from here on, and nothing of it is left."""
        self.over = True
        self._let_go()

    def _let_go(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    def _connect(self) -> None:
        self._timer = None
        self._is_connected = False
        try:
            transport = self._network.connect(self._host, self._port)
        except OSError as error:
            self._failed(error)
            return
        self._transport = transport
        self._timer = self._clock.call_later(CONNECT_S, self.cancel)
        transport.set_reader(self._readable)
        transport.set_writer(self._writable)

    def _writable(self) -> None:
        transport = self._transport
        if transport is None:
            return
        transport.set_writer(None)
        try:
            transport.send(())
        except OSError as error:
            self._failed(error)
            return
        self._is_connected = True
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.call_later(APART_S, self._stands)

    def _stands(self) -> None:
        transport = self._transport
        assert transport is not None
        address = address_of(transport)
        self.cancel()
        if self._on_answered is not None:
            self._on_answered(address)

    def _readable(self) -> None:
        if self._transport is None:
            return
        try:
            received = self._transport.recv_into(memoryview(bytearray(1)))
        except OSError as error:
            self._failed(error)
            return
        if received == 0:
            self._failed(ConnectionResetError())
        elif received > 0:
            self.cancel()

    def _failed(self, error: OSError) -> None:
        was_connected = self._is_connected
        self._let_go()
        if isinstance(error, ConnectionRefusedError):
            self._left -= 1
            if not self._left:
                self.over = True
                self._on_refused()
                return
        elif was_connected and is_from_there(error) and self._answered < MOST_ANSWERED:
            self._answered += 1
        else:
            self.over = True
            return
        self._timer = self._clock.call_later(APART_S, self._connect)


def address_of(transport: Transport) -> tuple[str, int]:
    """Host, as a number, and port of a transport's peer: a name may lead elsewhere by now."""
    host, _, port = transport.peer.rpartition(":")
    return host.strip("[]"), int(port)


def is_from_there(error: OSError) -> bool:
    """Whether the other side has ended a connection that stood, as this error of a read or a send tells."""
    return isinstance(error, ConnectionResetError | BrokenPipeError)
