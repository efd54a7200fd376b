"""What the active controller sees of brokers' processes besides heartbeats: one that is dead is fenced at once.

Two things together say that a process is dead: a connection between it and this controller was ended from there, and an
address of it that answered this controller before refuses two connects, APART_S apart. Silence, a connect that hangs,
and an address that never answered from here prove nothing: of these the session's end has to tell.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from duramen.client.loop.probe import AddressProbe
from duramen.machines.metadata.commands import FenceBroker
from duramen.machines.metadata.image import MetadataImage
from duramen.ports import World
from duramen.server.api.services import EventReport

if TYPE_CHECKING:
    from duramen.server.net.connection import ClientConnection

REFUSALS: Final = 2
"""Connects that have to be refused."""
MOST_LOOKS: Final = 3
"""Looks behind one end: the backlog of a process that ends takes some more connections, and they stand for a while."""
AGAIN_S: Final = 5.0
"""Seconds before an address that did not answer is tried again, when its broker is heard."""
FRESH_S: Final = 2.0
"""How long a death counts that was seen before this node became the active controller: the time of an election."""

Address = tuple[str, int]


class Deciding(Protocol):
    """This node's controller."""

    @property
    def is_active(self) -> bool: ...

    @property
    def image(self) -> MetadataImage: ...

    def decide(self, command: Any, done: Callable[[Any], None]) -> None: ...


class Contact:
    """Of one process: whether its address can be reached from here. answered: where it did."""

    __slots__ = ("answered", "epoch", "probe", "tried")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.answered: Address | None = None
        self.probe: AddressProbe | None = None
        self.tried = float("-inf")


class Look(NamedTuple):
    """Whether a process is still there."""

    epoch: int
    address: Address
    probe: AddressProbe


class BrokerWatch:
    """See the module. Loop thread only. node_id: this node's, which it does not watch."""

    def __init__(self, world: World, controller: Deciding, node_id: int, report: EventReport) -> None:
        self._network = world.network
        self._clock = world.clock
        self._controller = controller
        self._node_id = node_id
        self._report = report
        self._contacts: dict[int, Contact] = {}
        self._connections: dict[ClientConnection, tuple[int, int]] = {}
        """Those of brokers, with id and epoch."""
        self._looks: dict[int, Look] = {}
        self._ended: dict[int, Address] = {}
        """Nodes of the quorum that this one had a connection with, and where they do not listen any more."""
        self._dead: dict[int, tuple[int, float]] = {}
        """Epochs of processes that are gone, and when that was seen."""
        self._closed = False

    # ---- what is heard and seen ------------------------------------------------------------------------------

    def heard(self, node_id: int, broker_epoch: int, connection: ClientConnection) -> None:
        """A registration or a heartbeat came by this connection, and was accepted."""
        if node_id == self._node_id or self._closed:
            return
        if connection.closed:
            if connection.ended_by_peer:
                self._has_ended(node_id, broker_epoch)
            return
        if connection not in self._connections:
            self._is_alive(node_id)
            connection.on_close(partial(self._connection_closed, connection))
        self._connections[connection] = node_id, broker_epoch
        self._meet(node_id)

    def _is_alive(self, node_id: int) -> None:
        self._dead.pop(node_id, None)
        self._ended.pop(node_id, None)
        look = self._looks.pop(node_id, None)
        if look is not None:
            look.probe.cancel()

    def _connection_closed(self, connection: ClientConnection) -> None:
        node_id, broker_epoch = self._connections.pop(connection)
        if connection.ended_by_peer:
            self._has_ended(node_id, broker_epoch)

    def _has_ended(self, node_id: int, broker_epoch: int) -> None:
        contact = self._contacts.get(node_id)
        known = contact is not None and contact.epoch == broker_epoch
        if contact is not None and known and contact.answered is not None and self._controller.is_active:
            self._look(node_id, broker_epoch, contact.answered)

    def peer_died(self, node_id: int, address: Address) -> None:
        """A channel to this node of the quorum was ended from there, and its address, which had answered, refuses."""
        broker = self._controller.image.brokers.get(node_id)
        if broker is not None and node_id != self._node_id:
            self._ended[node_id] = address
            self._look(node_id, broker.epoch, address)

    def became_active(self) -> None:
        """This node decides from now on: about those whom it had a connection with, at once."""
        self._contacts.clear()
        ended, self._ended = self._ended, {}
        dead, self._dead = self._dead, {}
        now = self._clock.monotonic()
        for node_id, broker in self._controller.image.brokers.items():
            if node_id == self._node_id:
                continue
            epoch, seen = dead.get(node_id, (-1, 0.0))
            if epoch == broker.epoch and now - seen < FRESH_S:
                self._died(node_id, epoch)
            elif node_id in ended:
                self._look(node_id, broker.epoch, ended[node_id])
            else:
                self._meet(node_id)

    # ---- addresses -------------------------------------------------------------------------------------------

    def _meet(self, node_id: int) -> None:
        """Find out whether the broker's address answers, unless that is known."""
        broker = self._controller.image.brokers.get(node_id)
        if broker is None or not broker.endpoints:
            return
        contact = self._contacts.get(node_id)
        if contact is None or contact.epoch != broker.epoch:
            if contact is not None and contact.probe is not None:
                contact.probe.cancel()
            contact = self._contacts[node_id] = Contact(broker.epoch)
        now = self._clock.monotonic()
        if contact.answered is not None or now < contact.tried + AGAIN_S:
            return
        contact.tried = now
        endpoint = broker.endpoints[0]
        contact.probe = AddressProbe(
            self._network,
            self._clock,
            endpoint.host,
            endpoint.port,
            lambda: None,
            on_answered=partial(self._met, contact),
        )

    def _met(self, contact: Contact, address: Address) -> None:
        contact.answered = address

    # ---- the end of a process --------------------------------------------------------------------------------

    def _look(self, node_id: int, broker_epoch: int, address: Address, looks: int = 1) -> None:
        """Have it fenced if nobody listens there any more."""
        if self._closed:
            return
        look = self._looks.get(node_id)
        if look is not None:
            if not look.probe.over and look[:2] == (broker_epoch, address):
                return  # several connections end at once
            look.probe.cancel()

        def answered(at: Address) -> None:
            if looks < MOST_LOOKS:
                self._look(node_id, broker_epoch, address, looks + 1)

        died = partial(self._died, node_id, broker_epoch)
        probe = AddressProbe(self._network, self._clock, *address, died, times=REFUSALS, on_answered=answered)
        self._looks[node_id] = Look(broker_epoch, address, probe)

    def _died(self, node_id: int, broker_epoch: int) -> None:
        """A process that begins anew registers anew, so this stays true of this epoch."""
        self._looks.pop(node_id, None)
        controller = self._controller
        if not controller.is_active:
            self._dead[node_id] = broker_epoch, self._clock.monotonic()
            return
        broker = controller.image.brokers.get(node_id)
        if broker is not None and broker.epoch == broker_epoch and not broker.fenced:
            self._report("broker-died", node=node_id, epoch=broker_epoch)
            controller.decide(FenceBroker(node_id, broker_epoch), lambda answer: None)

    def close(self) -> None:
        """Nothing is looked at any more."""
        self._closed = True
        for contact in self._contacts.values():
            if contact.probe is not None:
                contact.probe.cancel()
        for look in self._looks.values():
            look.probe.cancel()
        self._contacts.clear()
        self._looks.clear()
