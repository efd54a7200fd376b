"""Who may ask: names of the gateway, pages of its own origin, and those that are listed."""

from __future__ import annotations

import pytest

from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.edge.request_guard import RequestGuard

GUARD = RequestGuard({"localhost", "127.0.0.1", "::1"}, {"https://app.example"})


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8082", "127.0.0.1:1", "[::1]:8082", "localhost.:1"])
def test_its_own_names(host: str) -> None:
    GUARD.check("GET", host, None, None)


@pytest.mark.parametrize("host", [None, "", "evil.example", "127.0.0.1.evil.example:8082", "[::2]:1", "localhost@evil"])
def test_another_name_is_refused(host: str | None) -> None:
    with pytest.raises(ProblemError) as refused:
        GUARD.check("GET", host, None, None)
    assert refused.value.status == 421


@pytest.mark.parametrize(
    ("origin", "site"),
    [
        (None, None),
        (None, "none"),
        ("http://localhost:8082", "same-origin"),
        ("https://app.example", "cross-site"),
        ("HTTPS://APP.example", None),
    ],
)
def test_who_may_change(origin: str | None, site: str | None) -> None:
    GUARD.check("POST", "localhost:8082", origin, site)


@pytest.mark.parametrize(
    ("origin", "site"),
    [
        ("https://evil.example", None),
        ("null", None),
        ("http://localhost:3000", "same-site"),
        (None, "cross-site"),
        ("http://localhost:8082", "cross-site"),
    ],
)
def test_who_may_not_change(origin: str | None, site: str | None) -> None:
    for method in ("POST", "PUT", "DELETE"):
        with pytest.raises(ProblemError) as refused:
            GUARD.check(method, "localhost:8082", origin, site)
        assert refused.value.status == 403
    GUARD.check("GET", "localhost:8082", origin, site)  # without CORS headers the browser keeps it from the page


def test_cors_is_for_those_listed() -> None:
    assert GUARD.cors_headers("https://evil.example") == {}
    assert GUARD.preflight_headers(None) == {}
    assert not GUARD.preflight_headers("https://app.example").keys() & GUARD.cors_headers("https://app.example").keys()
    assert GUARD.resource_policy == "cross-origin"
    assert RequestGuard(set(), set()).resource_policy == "same-origin"
