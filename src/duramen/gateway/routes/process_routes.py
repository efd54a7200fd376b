"""Routes of the process itself."""

from __future__ import annotations

from duramen.gateway.routes.route import KNOWN, OPEN, RouteAnswer, RouteRow

PROCESS_ROUTES: tuple[RouteRow, ...] = (
    RouteRow(
        "GET", "/healthz", "health", "gateway", "Whether the process answers",
        (RouteAnswer(200, "It does", (), "text/plain"),), right=OPEN,
    ),
    RouteRow(
        "GET", "/readyz", "readiness", "gateway", "Whether the cluster answers the gateway",
        (RouteAnswer(200, "It does", (), "text/plain"),), ("node-away",), right=OPEN,
    ),
    RouteRow(
        "GET", "/metrics", "metrics", "gateway", "Counters for Prometheus",
        (RouteAnswer(200, "The counters", (), "text/plain"),), right=KNOWN,
    ),
    RouteRow(
        "GET", "/openapi.json", "openapi", "gateway", "This table, as OpenAPI 3.1",
        (RouteAnswer(200, "The description", (), "application/json"),), right=KNOWN,
    ),
)  # fmt: skip
