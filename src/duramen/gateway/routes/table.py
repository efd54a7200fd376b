"""The one table of what the gateway serves: routes, how each is asked and answered, and with what it refuses.

The application, `/openapi.json` and docs/http.md are made from it.
"""

from __future__ import annotations

from duramen.gateway.routes.confluent_routes import V3_ROUTES
from duramen.gateway.routes.namespace_routes import NAMESPACE_ROUTES
from duramen.gateway.routes.process_routes import PROCESS_ROUTES
from duramen.gateway.routes.rest_consumer_routes import CONSUMER_ROUTES
from duramen.gateway.routes.rest_v2_routes import V2_ROUTES
from duramen.gateway.routes.route import RouteRow
from duramen.gateway.routes.session_routes import SESSION_ROUTES
from duramen.gateway.routes.stream_routes import STREAM_ROUTES
from duramen.gateway.routes.topic_routes import TOPIC_ROUTES

ROUTES: tuple[RouteRow, ...] = (
    *STREAM_ROUTES,
    *NAMESPACE_ROUTES,
    *TOPIC_ROUTES,
    *V3_ROUTES,
    *V2_ROUTES,
    *CONSUMER_ROUTES,
    *SESSION_ROUTES,
    *PROCESS_ROUTES,
)
"""Every route, in the order of the documents."""
