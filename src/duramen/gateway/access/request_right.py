"""What a request needs: the right that the row of its route asks for, on the name that its path has. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from duramen.gateway.access.principal import RIGHTS, Principal
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.routes.route import KNOWN, LISTED, OPEN, RouteRow

_NAMED_BY: Mapping[str, tuple[str, ...]] = {
    "stream": ("path",),
    "topic": ("topic", "topic_name", "path"),
    "namespace": ("ns", "namespace", "path"),
    "group": ("group", "consumer_group_id", "group_name"),
}
"""By resource: the parameters of a path that may name it."""


class RequestRight(NamedTuple):
    """right: read, write, admin, OPEN, KNOWN or LISTED; name: as `Principal.may` takes it."""

    right: str
    name: str

    def check(self, principal: Principal) -> None:
        """Problem 403."""
        if self.right in RIGHTS and not principal.may(self.right, self.name):
            raise not_allowed(principal, self.right, self.name)


def not_allowed(principal: Principal, right: str, name: str) -> ProblemError:
    """The refusal of who has less than a right on a name."""
    what = f"{name}*" if not name or name.endswith(".") else name
    return ProblemError(
        403, "not-allowed", f"{principal.name} needs {right}={what}; its line of gateway.tokens.file has less"
    )


def right_of(row: RouteRow, parameters: Mapping[str, str]) -> RequestRight:
    """What a request to this route needs. parameters: of its path."""
    name = next((parameters[key] for key in _NAMED_BY.get(row.resource, ()) if key in parameters), "")
    plain = name.strip("/").replace("/", ".")
    return RequestRight(row.right, f"{plain}." if row.resource == "namespace" and plain else plain)


def check_rows(rows: tuple[RouteRow, ...]) -> None:
    """ValueError for a route that does not say what it needs."""
    for row in rows:
        if row.right not in (*RIGHTS, OPEN, KNOWN, LISTED):
            known = f"{RIGHTS}, OPEN, KNOWN, LISTED"
            raise ValueError(f"{row.method} {row.path} ({row.operation}): its right is none of {known}")
