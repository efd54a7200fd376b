"""Positions and times as people write them."""

import pytest

from duramen.cli.shared.position import StartPosition, iso, parse_duration, parse_position, parse_time

NOW = 1_767_225_600_000


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", StartPosition("earliest")),
        ("beginning", StartPosition("earliest")),
        ("latest", StartPosition("latest")),
        ("end", StartPosition("latest")),
        ("0", StartPosition("offset", 0)),
        ("42", StartPosition("offset", 42)),
        ("-5", StartPosition("from-end", 5)),
        ("10m", StartPosition("time", NOW - 600_000)),
        ("1.5h", StartPosition("time", NOW - 5_400_000)),
        ("-2d", StartPosition("time", NOW - 172_800_000)),
        ("3s ago", StartPosition("time", NOW - 3000)),
        ("@123", StartPosition("time", 123)),
        ("2026-01-01T00:00:00Z", StartPosition("time", NOW)),
        ("2026-01-01T01:00:00+01:00", StartPosition("time", NOW)),
        ("9999999w", StartPosition("time", 0)),
    ],
)
def test_positions(text: str, position: StartPosition) -> None:
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


def test_a_duration_has_a_unit_and_no_sign() -> None:
    assert [parse_duration(text) for text in ("0ms", "30s", "1.5m", "2h")] == [0, 30_000, 90_000, 7_200_000]
    for text in ("", "5", "-5m", "5m ago", "nan", "٣m", "2020-01-01"):
        with pytest.raises(ValueError, match="is no duration"):
            parse_duration(text)
