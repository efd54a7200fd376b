"""TTL and expiry: what may be asked for, when a stream is over, and when a renewal is stored."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.streams.stream_expiry import NEVER, StreamExpiry, parse_rfc_3339, requested_expiry, rfc_3339

NOW = 1_800_000_000_000


@given(st.integers(0, 253_402_300_799_999))
def test_times_come_back(at_ms: int) -> None:
    assert parse_rfc_3339(rfc_3339(at_ms)) == at_ms


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2030-01-31T12:00:00Z", datetime(2030, 1, 31, 12, tzinfo=UTC)),
        ("2030-01-31T12:00:00+02:00", datetime(2030, 1, 31, 10, tzinfo=UTC)),
        ("2030-01-31t12:00:00.5z", datetime(2030, 1, 31, 12, microsecond=500_000, tzinfo=UTC)),
        ("2016-12-31T23:59:60Z", datetime(2017, 1, 1, tzinfo=UTC)),
    ],
)
def test_times_of_rfc_3339(text: str, at: datetime) -> None:
    assert parse_rfc_3339(text) == round(at.timestamp() * 1000)


@pytest.mark.parametrize(
    "text", ["soon", "2030-01-31", "2030-02-30T00:00:00Z", "2030-01-31T12:00:00", "1960-01-01T00:00:00Z"]
)
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(ProblemError, match="Stream-Expires-At"):
        requested_expiry(None, text, NOW)


@pytest.mark.parametrize("ttl", ["", "-1", "+1", "01", "1.0", "1e3", " 1", "1 ", "a", "٣"])
def test_other_ttls_are_refused(ttl: str) -> None:
    with pytest.raises(ProblemError, match="Stream-TTL"):
        requested_expiry(ttl, None, NOW)


def test_both_are_refused() -> None:
    with pytest.raises(ProblemError, match="exclude"):
        requested_expiry("1", "2030-01-31T12:00:00Z", NOW)


def test_a_ttl_is_renewed_when_a_part_of_it_has_gone() -> None:
    expiry = requested_expiry("160", None, NOW)
    assert not expiry.expired(NOW + 159_999)
    assert expiry.expired(NOW + 160_000)
    assert expiry.renewed(NOW + 9_999) is None
    assert expiry.renewed(NOW + 10_000) == StreamExpiry(160_000, NOW + 170_000)
    assert expiry.same_as(StreamExpiry(160_000, NOW + 170_000))
    assert not expiry.same_as(NEVER)


def test_an_end_is_never_renewed() -> None:
    expiry = requested_expiry(None, "2030-01-31T12:00:00Z", NOW)
    assert expiry.renewed(NOW) is None
    assert not expiry.same_as(expiry._replace(at_ms=NOW))
    assert NEVER.renewed(NOW) is None
    assert not NEVER.expired(NOW)
