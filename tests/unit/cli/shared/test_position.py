"""Positions and times as people write them."""

import pytest

from duramen.cli.shared.position import Position, iso, parse_position, parse_time

NOW = 1_767_225_600_000


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", Position("earliest")),
        ("beginning", Position("earliest")),
        ("latest", Position("latest")),
        ("end", Position("latest")),
        ("0", Position("offset", 0)),
        ("42", Position("offset", 42)),
        ("-5", Position("from-end", 5)),
        ("10m", Position("time", NOW - 600_000)),
        ("1.5h", Position("time", NOW - 5_400_000)),
        ("-2d", Position("time", NOW - 172_800_000)),
        ("3s ago", Position("time", NOW - 3000)),
        ("@123", Position("time", 123)),
        ("2026-01-01T00:00:00Z", Position("time", NOW)),
        ("2026-01-01T01:00:00+01:00", Position("time", NOW)),
        ("9999999w", Position("time", 0)),
    ],
)
def test_positions(text: str, position: Position) -> None:
    assert parse_position(text, NOW) == position


@pytest.mark.parametrize("text", ["", "yesterday", "99999999999999999999", "٣", "10 parsecs", "@", "2026-13-01", "1e5"])
def test_what_is_no_position(text: str) -> None:
    with pytest.raises(ValueError, match=r"neither an offset nor a time|larger than any offset"):
        parse_position(text, NOW)


def test_a_plain_number_is_no_time() -> None:
    with pytest.raises(ValueError, match="neither"):
        parse_time("12", NOW)


def test_iso() -> None:
    assert iso(NOW + 7) == "2026-01-01T00:00:00.007Z"
    assert iso(2**62) == str(2**62)
