"""Positions as requests ask for them: one, of a kind that is known, within 64 bits."""

from __future__ import annotations

import pytest

from duramen.client.protocol.list_offsets import EARLIEST, LATEST
from duramen.client.protocol.positions import AtOffset, AtTime, Position
from duramen.dlsn import Dlsn
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.streams.position_wish import asked_position, position_before

DLSN = Dlsn(3, 10, 2)


@pytest.mark.parametrize(
    ("kind", "text", "position"),
    [
        ("dlsn", str(DLSN), DLSN),
        ("dlsn", DLSN.base64_text, DLSN),
        ("dlsn", "-1", AtOffset(EARLIEST)),
        ("offset", "12", AtOffset(12)),
        ("offset", "-1", AtOffset(EARLIEST)),
        ("offset", "now", AtOffset(LATEST)),
        ("txid", str(2**63 - 1), AtTime(2**63 - 1)),
        ("time", "1500", AtTime(1500)),
        ("time", "1970-01-01T00:00:01.5Z", AtTime(1500)),
    ],
)
def test_what_is_asked_for(kind: str, text: str, position: Position) -> None:
    assert asked_position([(kind, text)]) == (kind, position)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ([], "dlsn"),
        ([("offset", "1"), ("txid", "1")], "txid"),
        ([("offset", "1"), ("offset", "1")], "offset"),
        ([("ofset", "1")], "ofset"),
        ([("dlsn", "12")], "dlsn"),
        ([("offset", "-2")], "offset"),
        ([("offset", str(2**63))], "offset"),
        ([("txid", "1.5")], "txid"),
        ([("txid", "now")], "txid"),
        ([("time", "yesterday")], "time"),
    ],
)
def test_what_is_refused(given: list[tuple[str, str]], field: str) -> None:
    with pytest.raises(ProblemError, match=f"^{field}: "):
        asked_position(given)


def test_bodies() -> None:
    assert position_before(b'{"before": {"offset": 7}}') == ("offset", AtOffset(7))
    assert position_before(b'{"before": {"dlsn": "%s"}}' % str(DLSN).encode()) == ("dlsn", DLSN)
    assert position_before(b'{"before": {"time": "1970-01-01T00:00:01Z"}}') == ("time", AtTime(1000))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"before": 7}',
        b'{"before": {}}',
        b'{"before": {"offset": 1, "txid": 1}}',
        b'{"before": {"offset": true}}',
        b'{"before": {"offset": 1.5}}',
        b'{"before": {"ofset": 1}}',
        b'{"before": {"offset": ' + b"9" * 5000 + b"}}",
        b'{"before": {"offset": 1}, "x": ' + b"[" * 100_000,
        b"\xff",
    ],
)
def test_bodies_that_are_refused(body: bytes) -> None:
    with pytest.raises(ProblemError) as error:
        position_before(body)
    assert (error.value.status, len(error.value.detail) < 400) == (400, True)
