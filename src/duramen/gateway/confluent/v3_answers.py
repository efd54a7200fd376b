"""Version 3: what all its requests share. The cluster they name is the gateway's, and what they get is JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from duramen.client.aio import AsyncCluster
from duramen.client.protocol.metadata import ClusterMetadata, ClusterNode
from duramen.errors import DuramenError
from duramen.gateway.confluent.rest_errors import V3_JSON
from duramen.gateway.confluent.rest_failures import rest_problem
from duramen.gateway.confluent.rest_links import RestLinks
from duramen.gateway.edge import media_type
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.edge.request_body import RequestBodies
from duramen.gateway.edge.request_json import decoded_json
from duramen.gateway.routes.route import Handler

V3Call = Callable[[Request, RestLinks], Awaitable[Any]]
"""What answers a request: a resource, or None where there is nothing to say."""

_T = TypeVar("_T")


class V3Answers:
    """Makes handlers of calls."""

    def __init__(self, cluster: AsyncCluster, bodies: RequestBodies) -> None:
        self.cluster = cluster
        self._bodies = bodies
        self._cluster_id: str | None = None

    def handler(self, call: V3Call, status: int = 200) -> Handler:
        """What answers requests by a call; 204 where it has nothing to say."""

        async def answer(request: Request) -> Response:
            try:
                found = await call(request, await self.links(request))
            except DuramenError as error:
                raise rest_problem(error) from None
            if found is None:
                return Response(status_code=204)
            return Response(msgspec.json.encode(found), status, media_type=V3_JSON)

        return answer

    async def links(self, request: Request) -> RestLinks:
        """Addresses as the client asked for them. Problem 404 where it names another cluster."""
        wanted = request.path_params.get("cluster_id")
        known = self._cluster_id
        if known is None or (wanted is not None and wanted != known):
            found: ClusterMetadata = await self.cluster.metadata([])
            known = self._cluster_id = found.cluster_id or "unknown"
        if wanted is not None and wanted != known:
            raise ProblemError(404, "no-such-cluster", f"Cluster {wanted} cannot be found.")
        return RestLinks(f"{request.url.scheme}://{request.headers['host']}", known)

    async def node(self, request: Request) -> ClusterNode:
        """The node that the path names. Problem 404."""
        node = (await self.cluster.metadata([])).nodes.get(path_number(request, "broker_id"))
        if node is None:
            raise ProblemError(404, "no-such-broker", f"Broker {request.path_params['broker_id']} cannot be found.")
        return node

    async def wanted(self, request: Request, kind: type[_T]) -> _T:
        """The JSON body. Problem 400 names the field; 408, 413, 415, 503."""
        json_body(request)
        async with self._bodies.whole(request) as body:
            return decoded_json(body, msgspec.json.Decoder(kind), "body")


def json_body(request: Request) -> None:
    """Problem 415 unless the body is said to be JSON."""
    given = request.headers.get("content-type")
    if given is None or not media_type.is_json(given):
        raise ProblemError(415, "unsupported-type", "Content-Type: a body is application/json")


def path_number(request: Request, name: str) -> int:
    """A number of the path; -1, which nothing has, where it is none."""
    text = str(request.path_params[name])
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 11 else -1
