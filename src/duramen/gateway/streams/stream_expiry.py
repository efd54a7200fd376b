"""How long a stream lives: what a request asks for, and whether the time has come. Times are ms since 1970."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import NamedTuple

from duramen.gateway.edge.problem import bad_request

_SECONDS = re.compile(r"0|[1-9][0-9]{0,14}", re.ASCII)
_RFC_3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII
)

RENEWALS_PER_TTL = 16
"""A TTL is renewed when so much of it (1/16) has gone: reads and writes in between cost nothing."""


class StreamExpiry(NamedTuple):
    """ttl_ms: from the last read or write, None without such a limit. at_ms: the end, as it stands; None: never."""

    ttl_ms: int | None = None
    at_ms: int | None = None

    def expired(self, now_ms: int) -> bool:
        """Whether it is over."""
        return self.at_ms is not None and now_ms >= self.at_ms

    def renewed(self, now_ms: int) -> StreamExpiry | None:
        """After a read or write at `now_ms`; None where that moves the end by too little to be stored."""
        if self.ttl_ms is None or self.at_ms is None:
            return None
        end = now_ms + self.ttl_ms
        return StreamExpiry(self.ttl_ms, end) if (end - self.at_ms) * RENEWALS_PER_TTL >= self.ttl_ms else None

    def same_as(self, other: StreamExpiry) -> bool:
        """Whether both were asked for in the same words: of a TTL the end moves."""
        return self.ttl_ms == other.ttl_ms and (self.ttl_ms is not None or self.at_ms == other.at_ms)


NEVER = StreamExpiry()


def requested_expiry(ttl: str | None, expires_at: str | None, now_ms: int) -> StreamExpiry:
    """What Stream-TTL (seconds) or Stream-Expires-At (RFC 3339) of a new stream ask for. Problem 400."""
    if ttl is not None and expires_at is not None:
        raise bad_request("Stream-TTL", "it and Stream-Expires-At exclude each other")
    if ttl is not None:
        if not _SECONDS.fullmatch(ttl):
            raise bad_request("Stream-TTL", "it is not a whole number of seconds, in digits without leading zeros")
        return StreamExpiry(int(ttl) * 1000, now_ms + int(ttl) * 1000)
    if expires_at is not None:
        return StreamExpiry(None, parse_rfc_3339(expires_at))
    return NEVER


def parse_rfc_3339(text: str, field: str = "Stream-Expires-At") -> int:
    """A time as RFC 3339 has it, in ms. Problem 400, which names the field."""
    found = _RFC_3339.fullmatch(text)
    if found is None:
        raise bad_request(field, "it is not a time as RFC 3339 has it, like 2030-01-31T12:00:00Z")
    year, month, day, hour, minute, second, fraction, sign, hours, minutes = found.groups()
    offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    try:
        zone = timezone(-offset if sign == "-" else offset) if sign else UTC
        leap = second == "60"
        whole = datetime(
            int(year), int(month), int(day), int(hour), int(minute), 59 if leap else int(second), tzinfo=zone
        )
        seconds = (whole - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1) + leap
    except (ValueError, OverflowError):
        raise bad_request(field, "there is no such time") from None
    at_ms = seconds * 1000 + int((fraction or "0").ljust(3, "0")[:3])
    if at_ms < 0:
        raise bad_request(field, "it is before 1970")
    return at_ms


def rfc_3339(at_ms: int) -> str:
    """The time as RFC 3339 has it, in UTC."""
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)
    return at.isoformat(timespec="milliseconds" if at_ms % 1000 else "seconds").replace("+00:00", "Z")
