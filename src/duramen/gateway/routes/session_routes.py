"""Routes of the session of a page."""

from __future__ import annotations

from duramen.gateway.routes.route import KNOWN, OPEN, RouteAnswer, RouteRow

SESSION_ROUTES: tuple[RouteRow, ...] = (
    RouteRow(
        "POST", "/v1/session", "openSession", "gateway",
        "Keep the token of Authorization in a cookie (HttpOnly, SameSite=Strict), for a page with an EventSource",
        (RouteAnswer(204, "It is kept", ("Set-Cookie",)),), ("foreign-origin",), right=KNOWN,
    ),
    RouteRow(
        "DELETE", "/v1/session", "closeSession", "gateway", "Forget the cookie",
        (RouteAnswer(204, "It is forgotten", ("Set-Cookie",)),), ("foreign-origin",), right=OPEN,
    ),
)  # fmt: skip
