"""Routes of namespaces."""

from __future__ import annotations

from duramen.gateway.namespaces.namespace_bodies import NamespaceBody, NamespaceList, ShownNamespace, StreamList
from duramen.gateway.routes.errors import ANY_CALL
from duramen.gateway.routes.route import LISTED, Parameter, RouteAnswer, RouteRow

_JSON = "application/json"
_ONE = "/v1/namespaces/{path}"
_PATH = Parameter(
    "path", "path", "Segments of letters, digits, _ and -, joined by /, of which the last is not `streams`", True
)
_PAGE = (
    Parameter("prefix", "query", "Only names that begin with it"),
    Parameter("after", "query", "Only names after it: the `next` of the page before"),
    Parameter("limit", "query", "At most so many, from 1 to 10,000; 1,000 if it is not given"),
)
_NAMESPACES = "namespaces: name, created_at, defaults; next: the last name, where more come"
_STREAMS = (
    "streams: name (in the namespace), topic, content_type, expires_at; next: the last name, where there are more"
)
_RECORD = "name, created_at, defaults, and what it inherits from the namespaces around it (inherited)"

NAMESPACE_ROUTES: tuple[RouteRow, ...] = (
    RouteRow(
        "GET",
        "/v1/namespaces",
        "listNamespaces",
        "namespace",
        "All namespaces, by name and page: those with a record, and those that streams lie in",
        (RouteAnswer(200, _NAMESPACES, (), _JSON, NamespaceList),),
        (*ANY_CALL, "bad-request"),
        _PAGE,
        right=LISTED,
    ),
    RouteRow(
        "PUT",
        _ONE,
        "putNamespace",
        "namespace",
        "Make a namespace, or set what streams that are made in it get",
        (
            RouteAnswer(201, f"A record of it was made; {_RECORD}", (), _JSON, ShownNamespace),
            RouteAnswer(200, "It had one, which has these defaults now; the same body", (), _JSON, ShownNamespace),
        ),
        (*ANY_CALL, "bad-request", "exists", "body-too-large", "overloaded", "too-few-replicas", "disk-full",
         "outcome-unknown", "foreign-origin", "body-timeout"),
        (_PATH, Parameter("If-None-Match", "header", "*: only if nothing is written about it yet")),
        'An object, `{"defaults": {"retention.ms": "86400000"}}`: topic settings as texts, instead of those it had; '
        "without defaults they stay",
        NamespaceBody,
        right="admin",
    ),
    RouteRow(
        "GET",
        _ONE,
        "describeNamespace",
        "namespace",
        "A namespace",
        (RouteAnswer(200, f"{_RECORD}; created_at is null where nothing is written of it", (), _JSON, ShownNamespace),),
        (*ANY_CALL, "bad-request", "no-such-namespace"),
        (_PATH,),
        right="read",
    ),
    RouteRow(
        "DELETE",
        _ONE,
        "deleteNamespace",
        "namespace",
        "Delete a namespace that is empty, or all streams and namespaces in it, too",
        (RouteAnswer(204, "It is gone. One that was cut short is completed by the same request"),),
        (*ANY_CALL, "bad-request", "no-such-namespace", "not-empty", "too-few-replicas", "disk-full",
         "outcome-unknown", "foreign-origin"),
        (_PATH, Parameter("recursive", "query", "true: with all that is in it; false (the default): if nothing is")),
        right="admin",
    ),
    RouteRow(
        "GET",
        f"{_ONE}/streams",
        "listStreams",
        "namespace",
        "The streams in a namespace and in those below it, by name and page",
        (RouteAnswer(200, _STREAMS, (), _JSON, StreamList),),
        (*ANY_CALL, "bad-request", "no-such-namespace"),
        (_PATH, *_PAGE),
        right=LISTED,
    ),
    RouteRow(
        "GET",
        "/v1/namespaces/streams",
        "listAllStreams",
        "namespace",
        "All streams, by name and page",
        (RouteAnswer(200, _STREAMS, (), _JSON, StreamList),),
        (*ANY_CALL, "bad-request"),
        _PAGE,
        right=LISTED,
    ),
)  # fmt: skip
