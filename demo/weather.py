"""Two small topics beside the flights: the weather at the airports, hour by hour, and the flights that were cancelled.

Records come in the order of their time, but for some cancellations, which are reported when the year is over.
"""

from __future__ import annotations

import csv
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from demo.flights import MISSING, member

WEATHER, CANCELLATIONS = "weather", "cancellations"
LATE_EVERY = 100
LATE_BEFORE = "2013-12"  # those of December may be no later than the watermark
WIND_BAND = 5  # miles an hour

Grounded = tuple[str, str, float | None, float | None]
"""A cancelled flight's airport and hour (UTC), with the wind in miles an hour and the visibility in miles."""


class Event(NamedTuple):
    """A record: row counts from 1 in the order of writing, key is the airport, value is JSON."""

    row: int
    key: bytes
    value: bytes

    @property
    def checksum(self) -> int:
        return zlib.crc32(self.value)


class Weather(NamedTuple):
    """What the two topics get. late: cancellations that are written at the very end, far older than the watermark."""

    observed: list[Event]
    cancelled: list[Event]
    late: list[Event]

    @property
    def on_time(self) -> int:
        """Records of both topics that come in order."""
        return len(self.observed) + len(self.cancelled)

    def grounded(self) -> dict[int, Grounded]:
        """The joined table by a plain loop: every cancellation that came in time, with the weather of its hour."""
        at = {(seen["origin"], seen["at"]): seen for seen in values(self.observed)}
        found = {}
        for flight in values(self.cancelled):
            place = (flight["origin"], flight["at"])
            if place in at:
                found[flight["flight_row"]] = (*place, at[place]["wind"], at[place]["visibility"])
        return found

    def hours_by_wind(self) -> Counter[int]:
        """How many hours an airport's wind was in each band."""
        return Counter(int(seen["wind"] // WIND_BAND) for seen in values(self.observed) if seen["wind"] is not None)


def values(events: Iterable[Event]) -> Iterator[dict[str, Any]]:
    return (json.loads(event.value) for event in events)


def weather(archive: Path) -> Weather:
    """Both topics' records, from the package's tables."""
    wanted = ("origin", "time_hour", "carrier", "flight", "dep_time")
    cancelled: list[dict[str, Any]] = [
        {"flight_row": row, "origin": origin, "at": at, "carrier": carrier, "flight": int(flight)}
        for row, (origin, at, carrier, flight, left) in enumerate(_lines(archive, "flights.csv", wanted), 1)
        if left == MISSING
    ]
    cancelled.sort(key=lambda flight: flight["at"])
    observed: list[dict[str, Any]] = [
        {"origin": origin, "at": at, "wind": _number(wind), "visibility": _number(visibility)}
        for origin, at, wind, visibility in _lines(
            archive, "weather.csv", ("origin", "time_hour", "wind_speed", "visib")
        )
    ]
    observed.sort(key=lambda seen: seen["at"])
    late = [
        flight for number, flight in enumerate(cancelled) if number % LATE_EVERY == 0 and flight["at"] < LATE_BEFORE
    ]
    in_time = [flight for flight in cancelled if flight not in late]
    return Weather(list(_events(observed, 1)), list(_events(in_time, 1)), list(_events(late, len(in_time) + 1)))


def _lines(archive: Path, name: str, columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """These columns of a table of the package."""
    lines = csv.reader(io.StringIO(member(archive, name).decode("utf-8"), newline=""))
    heading = next(lines)
    pick = itemgetter(*map(heading.index, columns))
    return map(pick, lines)


def _number(cell: str) -> float | None:
    return None if cell == MISSING else round(float(cell), 2)


def _events(found: Iterable[Mapping[str, Any]], first: int) -> Iterator[Event]:
    for row, event in enumerate(found, first):
        yield Event(row, event["origin"].encode(), json.dumps(event, separators=(",", ":")).encode())
