"""Which position a request asks for: by DLSN, transaction id, offset or time. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from duramen.client.protocol.list_offsets import EARLIEST, LATEST
from duramen.client.protocol.positions import AtOffset, AtTime, Position
from duramen.gateway.edge.problem import bad_request
from duramen.gateway.edge.request_json import decoded_json
from duramen.gateway.streams.stream_expiry import parse_rfc_3339
from duramen.gateway.streams.stream_position import BEGINNING, NOW, parse_position

KINDS: Final = ("dlsn", "txid", "offset", "time")
_NUMBER: Final = re.compile(r"[0-9]{1,19}", re.ASCII)
_NUMBER_MAX: Final = (1 << 63) - 1


class PositionWish(NamedTuple):
    """The position, and by what it is asked for: one of KINDS."""

    kind: str
    position: Position


class Before(msgspec.Struct, forbid_unknown_fields=True):
    """In front of what is truncated: one of these. time: ms since 1970, or a text as RFC 3339 has it."""

    dlsn: str | None = None
    txid: int | None = None
    offset: int | str | None = None
    time: int | str | None = None


class TruncateBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a truncation."""

    before: Before


_TRUNCATION: Final = msgspec.json.Decoder(TruncateBody)


def asked_position(given: Iterable[tuple[str, str]]) -> PositionWish:
    """The position of (name, text) pairs, of which one has to be of KINDS, and of none another. Problem 400."""
    found = list(given)
    for name, _ in found:
        if name not in KINDS:
            raise bad_request(name, f"it is none of {', '.join(KINDS)}")
    if len(found) != 1:
        raise bad_request(found[1][0] if found else KINDS[0], f"one of {', '.join(KINDS)} has to be given")
    kind, text = found[0]
    return PositionWish(kind, _position(kind, text))


def position_before(body: bytes) -> PositionWish:
    """The position of a truncation's body: {"before": {"offset": 10}}. Problem 400."""
    before = decoded_json(body, _TRUNCATION, "body", '{"before": {"dlsn": …}}').before
    given = [(name, getattr(before, name)) for name in KINDS]
    return asked_position((name, str(value)) for name, value in given if value is not None)


def _position(kind: str, text: str) -> Position:
    if kind in ("dlsn", "offset") and text in (BEGINNING, NOW):
        return AtOffset(EARLIEST if text == BEGINNING else LATEST)
    if kind == "dlsn":
        return parse_position(text, kind)
    if _NUMBER.fullmatch(text) and int(text) <= _NUMBER_MAX:
        return AtOffset(int(text)) if kind == "offset" else AtTime(int(text))
    if kind == "time":
        return AtTime(parse_rfc_3339(text, kind))
    raise bad_request(kind, f"it is no whole number from 0 to {_NUMBER_MAX}")
