"""The directed links between hosts: what goes from one to the other is delayed, held up, or lost.

TCP keeps order, so nothing is ever left out of the middle of a connection: what is lost on a cut link ends its
connection in a reset, once the link is whole again and the loss comes to light.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple


class LinkState(Enum):
    """OPEN; STALLED: what is sent arrives when that is over; CUT: it is lost, and so is its connection."""

    OPEN = "open"
    STALLED = "stalled"
    CUT = "cut"


class Held(NamedTuple):
    """Something on its way. deliver: send it once more. lose: what happens instead if the link was cut; None: nothing
    is lost that is not simply sent again, such as the first packet of a connection.
    """

    deliver: Callable[[], None]
    lose: Callable[[], None] | None


class Link:
    """The way from one host to another. delay_s: bounds of its delay; None: the network's.

    blocked: nothing goes through, because of its state or because one of its hosts has no power.
    """

    __slots__ = ("blocked", "delay_s", "held", "source", "state", "target")

    def __init__(self, source: str, target: str) -> None:
        self.source = source
        self.target = target
        self.delay_s: tuple[float, float] | None = None
        self.state = LinkState.OPEN
        self.blocked = False
        self.held: list[Held] = []

    def hold(self, deliver: Callable[[], None], lose: Callable[[], None] | None) -> None:
        """Keep it until the link is open."""
        self.held.append(Held(deliver, lose))


class Links:
    """All links of a network, and which hosts have no power."""

    def __init__(self) -> None:
        self._links: dict[tuple[str, str], Link] = {}
        self.dark: set[str] = set()

    def get(self, source: str, target: str) -> Link:
        """The link from one host to the other."""
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = Link(source, target)
            self._settle(link)
        return link

    def set_state(self, source: str, target: str, state: LinkState) -> None:
        """Stall, cut or mend one direction."""
        link = self.get(source, target)
        before, link.state = link.state, state
        if before is LinkState.CUT and state is not LinkState.CUT:
            held, link.held = link.held, []
            for one in held:
                if one.lose is not None:
                    one.lose()
                else:
                    link.held.append(one)
        self._settle(link)

    def mend(self) -> None:
        """Open all that is stalled or cut; delays stay."""
        for link in list(self._links.values()):
            if link.state is not LinkState.OPEN:
                self.set_state(link.source, link.target, LinkState.OPEN)

    def set_power(self, host: str, *, on: bool) -> None:
        """A host without power neither hears nor answers: not even a refusal comes from it."""
        if on:
            self.dark.discard(host)
        else:
            self.dark.add(host)
        for link in list(self._links.values()):
            if host in (link.source, link.target):
                self._settle(link)

    def _settle(self, link: Link) -> None:
        link.blocked = link.state is not LinkState.OPEN or link.source in self.dark or link.target in self.dark
        if not link.blocked:
            held, link.held = link.held, []
            for one in held:
                one.deliver()
