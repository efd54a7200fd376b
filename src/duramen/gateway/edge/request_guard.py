"""Who may ask: Host, Origin and Sec-Fetch-Site of a request against the lists of the gateway.

Any page in a browser can send requests to 127.0.0.1. What changes something is refused when a page of another origin
sends it, and everything is refused by a name that is not the gateway's (DNS rebinding). CORS headers go to the origins
that are listed, to none by default.
"""

from __future__ import annotations

from collections.abc import Collection

from duramen.gateway.edge.problem import ProblemError

CHANGING = frozenset(("POST", "PUT", "DELETE", "PATCH"))
UPGRADE = "UPGRADE"
"""Stands for the method where a WebSocket is opened: a browser lets every page do that, and read what comes."""

ALLOWED_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
ALLOWED_HEADERS = (
    "content-type, authorization, if-none-match, last-event-id, stream-seq, stream-ttl, stream-expires-at, "
    "stream-closed, stream-expected-offset, stream-exclusive, stream-txid, stream-settings, stream-writer, "
    "stream-writer-seq, producer-id, producer-epoch, producer-seq"
)
EXPOSED_HEADERS = (
    "etag, location, retry-after, stream-id, stream-next-offset, stream-receipt, stream-advanced-to, stream-cursor, "
    "stream-up-to-date, stream-closed, stream-ttl, stream-expires-at, stream-sse-data-encoding, producer-epoch, "
    "producer-seq, producer-expected-seq, producer-received-seq, stream-exclusive, stream-txid, "
    "stream-last-txid, stream-writer, stream-writer-next-seq"
)


class RequestGuard:
    """Decides for one gateway. hosts: names it may be addressed by; origins: whose pages may read and write."""

    def __init__(self, hosts: Collection[str], origins: Collection[str]) -> None:
        self._hosts = hosts
        self._origins = origins

    def check(self, method: str, host: str | None, origin: str | None, site: str | None) -> None:
        """Problem 421 or 403 where the request is refused. method: or UPGRADE; host: None for none, or several; site:
        Sec-Fetch-Site."""
        if host is None:
            raise ProblemError(421, "host-not-listed", "the request has no header Host, or several")
        if _name(host) not in self._hosts:
            raise ProblemError(
                421, "host-not-listed", f"this gateway is not {host!r}; gateway.hosts lists the names it answers to"
            )
        if (method not in CHANGING and method != UPGRADE) or self.listed(origin):
            return
        own = origin is None or origin.lower().partition("://")[2] == host.lower()
        if not own or site not in (None, "same-origin", "none"):
            raise ProblemError(
                403,
                "foreign-origin",
                "a page of another origin may change nothing and open no WebSocket; gateway.origins lists who may",
            )

    def listed(self, origin: str | None) -> bool:
        """Whether its pages get CORS headers."""
        return origin is not None and origin.lower() in self._origins

    def cors_headers(self, origin: str | None) -> dict[str, str]:
        """Headers of an answer to a page of this origin."""
        if origin is None or not self.listed(origin):
            return {}
        return {
            "access-control-allow-origin": origin,
            "access-control-allow-credentials": "true",
            "access-control-expose-headers": EXPOSED_HEADERS,
            "vary": "origin",
        }

    def preflight_headers(self, origin: str | None) -> dict[str, str]:
        """Headers of an answer to OPTIONS, beside those of every answer: a browser takes none of them twice."""
        if not self.listed(origin):
            return {}
        return {
            "access-control-allow-methods": ALLOWED_METHODS,
            "access-control-allow-headers": ALLOWED_HEADERS,
            "access-control-max-age": "600",
        }

    @property
    def resource_policy(self) -> str:
        """Who may embed answers: pages of other origins only where some are listed."""
        return "cross-origin" if self._origins else "same-origin"


def _name(host: str) -> str:
    """The name in a Host header, without port and brackets."""
    lowered = host.strip().lower()
    if lowered.startswith("["):
        return lowered[1:].partition("]")[0]
    return lowered.partition(":")[0].rstrip(".")
