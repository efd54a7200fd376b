"""Which gateway holds a consumer: a record of the topic `_duramen_consumers`, by group and name. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, urlsplit

import msgspec

from duramen.client.protocol.record_table import RecordTable
from duramen.config.listeners import is_loopback
from duramen.wire.batch import NewRecord

CONSUMERS_TOPIC: Final = "_duramen_consumers"
CONSUMERS_SETTINGS: Final = {"cleanup.policy": "compact", "duramen.ack.durability": "stable"}
"""What the topic is made with, by whoever writes first; it has one partition."""

REMOVED_AT_ONCE: Final = 1000
"""Records that one batch removes at most."""


class ConsumerPlace(msgspec.Struct, frozen=True):
    """Where a consumer is. consumer: an id that tells it from others of its name; gateway: of the process that holds
    it; address: where other gateways reach that one; machine: where it runs, which a loopback address is for."""

    consumer: str
    gateway: str
    address: str
    machine: str


class GatewayIdentity(NamedTuple):
    """id: of this process, another one after each start; address, machine: as of ConsumerPlace."""

    id: str
    address: str
    machine: str

    def reaches(self, place: ConsumerPlace) -> bool:
        """Whether the address of a place leads there from here."""
        return place.machine == self.machine or not _is_loopback(place.address)

    def is_at(self, place: ConsumerPlace) -> bool:
        """Whether this process listens where a place is."""
        return place.address == self.address and self.reaches(place)


class ConsumerKey(NamedTuple):
    """The group and the name of a consumer."""

    group: str
    name: str

    def __str__(self) -> str:
        return msgspec.json.encode([self.group, self.name]).decode()


def consumer_path(key: ConsumerKey) -> str:
    """The path of a consumer."""
    group, name = (quote(each, safe="") for each in key)
    return f"/consumers/{group}/instances/{name}"


Places = Mapping[str, ConsumerPlace]
"""By the text of the key."""

_PLACE: Final = msgspec.json.Decoder(ConsumerPlace)


def place_table() -> RecordTable[ConsumerPlace]:
    """What the topic says. What cannot be read is not there."""
    return RecordTable("the places of consumers", _parsed)


def _parsed(key: bytes | None, value: bytes) -> tuple[str, ConsumerPlace] | None:
    try:
        return None if key is None else (key.decode(), _PLACE.decode(value))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def claim(key: ConsumerKey, place: ConsumerPlace, now_ms: int) -> NewRecord:
    """The record that a consumer is there."""
    return str(key).encode(), msgspec.json.encode(place), (), now_ms


def removals(places: Places, gone: Mapping[str, str], now_ms: int) -> list[NewRecord]:
    """Records that these are gone, by their keys and ids, as far as they are still there."""
    found = [key for key, consumer in gone.items() if key in places and places[key].consumer == consumer]
    return [(key.encode(), None, (), now_ms) for key in found[:REMOVED_AT_ONCE]]


def those_of(places: Places, gateway: str) -> dict[str, str]:
    """The keys and ids of the consumers that a process holds."""
    return {key: place.consumer for key, place in places.items() if place.gateway == gateway}


def consumers_of_ended(places: Places, here: GatewayIdentity) -> dict[str, str]:
    """The same of those that another process held where this one listens: it has ended."""
    return {key: place.consumer for key, place in places.items() if here.is_at(place) and place.gateway != here.id}


def neighbours(places: Places, here: GatewayIdentity) -> dict[str, str]:
    """The addresses of the other processes that hold consumers, as far as they lead there from here, by their ids."""
    return {
        place.gateway: place.address
        for place in places.values()
        if place.gateway != here.id and here.reaches(place) and not here.is_at(place)
    }


def _is_loopback(address: str) -> bool:
    return is_loopback(urlsplit(address).hostname or "")
