"""What each route needs: the whole table is asked, without a login and with too little."""

from __future__ import annotations

import asyncio
import io
import re
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from duramen.gateway.access.authenticator import BearerTokens
from duramen.gateway.access.principal import RIGHTS, Permission, Principal, parse_permission
from duramen.gateway.access.request_right import RequestRight, check_rows, right_of
from duramen.gateway.access.running_reads import RunningReads
from duramen.gateway.access.token_lines import token_line
from duramen.gateway.app import make_app
from duramen.gateway.edge.edge import Edge
from duramen.gateway.edge.event_lines import EventLines
from duramen.gateway.edge.metrics import GatewayMetrics
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.edge.request_guard import RequestGuard
from duramen.gateway.routes.route import KNOWN, LISTED, OPEN, RouteRow
from duramen.gateway.routes.table import ROUTES

STRONGER = {"read": "write", "write": "read", "admin": "write"}
"""A right that is not enough for another one."""
OWN = {"health", "readiness", "metrics", "openapi"}
"""Operations that the application answers itself."""


async def opened(socket: WebSocket) -> None:
    await socket.accept()
    await socket.close()


async def reached(request: Request) -> Response:
    return Response(request.scope["duramen.operation"], 222)


@pytest.fixture(scope="module")
def lines() -> io.StringIO:
    return io.StringIO()


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory, lines: io.StringIO) -> Edge:
    path = tmp_path_factory.mktemp("access") / "tokens"
    tokens = [token_line(right, f"token-of-{right}", [Permission(right, "", True)]) for right in RIGHTS]
    tokens.append(token_line("narrow", "token-of-narrow", [parse_permission("admin=a.b.c")]))
    path.write_text("\n".join(tokens))
    authenticator = BearerTokens(str(path))
    handlers = {row.operation: reached for row in ROUTES if row.operation not in OWN and not row.is_socket}
    sockets = {row.operation: opened for row in ROUTES if row.is_socket}
    guard = RequestGuard({"localhost"}, set())
    nobody: Any = None
    return make_app(
        handlers,
        sockets,
        nobody,
        guard,
        authenticator,
        RunningReads(authenticator),
        GatewayMetrics(),
        EventLines(lines),
    )


def asked(
    app: Edge, row: RouteRow, token: str | None = None, *, cookie: bool = False, kind: str = "http"
) -> tuple[int, dict[str, str]]:
    """Status and headers of an answer to a request with this token; 101 for a WebSocket that was opened."""
    path = re.sub(r"\{[a-z_]+\}", "x", row.path.replace("{path}", "a/b"))
    headers = [(b"host", b"localhost")]
    if token is not None:
        headers.append((b"cookie", f"other=1; duramen-token={token}".encode()) if cookie else
                       (b"authorization", f"Bearer {token}".encode()))  # fmt: skip
    scope = {
        "type": kind, "method": row.method, "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": headers, "http_version": "1.1", "scheme": "http", "subprotocols": [],
        "extensions": {"websocket.http.response": {}},
    }  # fmt: skip
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request" if kind == "http" else "websocket.connect", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return sent[0].get("status", 101), {name.decode(): value.decode() for name, value in sent[0]["headers"]}


@pytest.mark.parametrize("row", ROUTES, ids=lambda row: row.operation)
def test_every_route_asks_for_its_right(app: Edge, lines: io.StringIO, row: RouteRow) -> None:
    enough = 200 if row.operation in OWN else 426 if row.is_socket else 222
    if row.right == OPEN:
        assert row.operation == "readiness" or asked(app, row)[0] == enough
        return
    status, headers = asked(app, row)
    assert status == 401
    assert headers["www-authenticate"] == "Bearer"
    assert asked(app, row, "another")[0] == 401
    if row.right in (KNOWN, LISTED):
        assert asked(app, row, "token-of-narrow")[0] == enough
        return
    assert asked(app, row, f"token-of-{STRONGER[row.right]}")[0] == 403
    assert asked(app, row, "token-of-narrow")[0] == 403
    assert asked(app, row, f"token-of-{row.right}")[0] == enough
    assert asked(app, row, "token-of-admin", cookie=True)[0] == enough
    assert "code=not-allowed" in lines.getvalue()
    assert "token-of" not in lines.getvalue()


@pytest.mark.parametrize("row", [row for row in ROUTES if row.is_socket], ids=lambda row: row.operation)
def test_a_websocket_asks_for_its_right(app: Edge, row: RouteRow) -> None:
    tokens = {None: 401, "another": 401, "token-of-narrow": 403, f"token-of-{STRONGER[row.right]}": 403}
    tokens[f"token-of-{row.right}"] = 101
    assert {token: asked(app, row, token, kind="websocket")[0] for token in tokens} == tokens


def test_open_are_those_that_tell_nothing() -> None:
    assert {row.operation for row in ROUTES if row.right == OPEN} == {"health", "readiness", "closeSession"}


def test_lists_are_for_whoever_is_known() -> None:
    assert {row.operation for row in ROUTES if row.right == LISTED} == {
        "listNamespaces", "listStreams", "listAllStreams", "listTopicsV2", "listTopicsV3", "listAllTopicSettingsV3",
        "listGroupsV3",
    }  # fmt: skip


def test_what_changes_something_needs_more_than_to_read() -> None:
    found = {
        row.operation for row in ROUTES if row.method not in ("GET", "HEAD") and row.right not in ("write", "admin")
    }
    assert found == {"openSession", "closeSession"}


def test_a_route_that_says_nothing_is_refused() -> None:
    forgotten = RouteRow("GET", "/v1/secrets", "readSecrets", "topic", "", ())
    with pytest.raises(ValueError, match="readSecrets"):
        check_rows((*ROUTES, forgotten))


@pytest.mark.parametrize(
    ("resource", "parameters", "name"),
    [
        ("stream", {"path": "finance/eu"}, "finance.eu"),
        ("topic", {"cluster_id": "c", "topic_name": "finance.eu"}, "finance.eu"),
        ("namespace", {"path": "finance/eu"}, "finance.eu."),
        ("namespace", {}, ""),
        ("group", {"group": "g"}, "g"),
        ("cluster", {"cluster_id": "c"}, ""),
    ],
)
def test_the_name_that_is_asked_for(resource: str, parameters: dict[str, str], name: str) -> None:
    row = RouteRow("GET", "/", "x", resource, "", (), right="read")
    assert right_of(row, parameters) == ("read", name)


@pytest.mark.parametrize(
    ("given", "right", "name", "allowed"),
    [
        ("read=finance.*", "read", "finance.eu", True),
        ("read=finance.*", "read", "finance.", True),
        ("read=finance/*", "read", "finance.eu", True),
        ("read=finance.*", "read", "finances", False),
        ("read=finance.*", "read", "", False),
        ("read=finance", "read", "finance.eu", False),
        ("read=finance", "read", "finance", True),
        ("read=*", "read", "", True),
        ("read=*", "write", "a", False),
        ("write=*", "read", "a", False),
        ("write=*", "admin", "a", False),
        ("admin=*", "read", "a", True),
    ],
)
def test_what_a_permission_covers(given: str, right: str, name: str, allowed: bool) -> None:
    principal = Principal("p", (parse_permission(given),))
    assert principal.may(right, name) is allowed
    if not allowed:
        with pytest.raises(ProblemError) as refused:
            RequestRight(right, name).check(principal)
        assert refused.value.status == 403


@pytest.mark.parametrize("text", ["", "read", "read=", "see=a", "read=a b", "read=a*b", "read=../a:", "read=ä"])
def test_what_is_no_permission(text: str) -> None:
    with pytest.raises(ValueError, match=r"permission|name"):
        parse_permission(text)
