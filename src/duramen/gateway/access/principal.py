"""Who asks, and what they may do with which names. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

RIGHTS: Final = ("read", "write", "admin")
"""What can be given. admin includes the other two, write does not include read."""


class Permission(NamedTuple):
    """A right on a name, or on all that begin with it. name: of topics, as finance.orders."""

    right: str
    name: str
    is_prefix: bool

    def covers(self, right: str, name: str) -> bool:
        """Whether it is enough."""
        if right != self.right and self.right != "admin":
            return False
        return name.startswith(self.name) if self.is_prefix else name == self.name

    def __str__(self) -> str:
        return f"{self.right}={self.name}" + ("*" if self.is_prefix else "")


class Principal(NamedTuple):
    """One who is known."""

    name: str
    permissions: tuple[Permission, ...]

    def may(self, right: str, name: str) -> bool:
        """Whether a right on a name is theirs. A name that ends with a dot stands for all that begin with it, an empty
        one for everything."""
        return any(permission.covers(right, name) for permission in self.permissions)

    def may_read(self, name: str) -> bool:
        """Whether lists show it the name."""
        return self.may("read", name)


SENDER: Final = "duramen.principal"
"""Where the scope of a request has the principal."""

ANYBODY: Final = Principal("", (Permission("admin", "", True),))
"""Who asks a gateway without logins."""


def sender_of(scope: Mapping[str, Any]) -> Principal:
    """Who sends a request that its route has let in. scope: the request's."""
    found: Principal = scope[SENDER]
    return found


def parse_permission(text: str) -> Permission:
    """`read=finance.orders`, `write=finance.*` or `admin=*`; a / is a dot, as in the path of a stream. ValueError."""
    right, equals, name = text.partition("=")
    if not equals or right not in RIGHTS:
        raise ValueError(f"{text!r} is no permission; they are written as {', '.join(f'{r}=NAME' for r in RIGHTS)}")
    if any(part in ("", ".", "..") for part in name.split("/")[:-1]):
        raise ValueError(f"{text!r}: a part of the path is no name")
    plain = name.removesuffix("*").replace("/", ".")
    if not all(part.isascii() and (part.isalnum() or part in "._-") for part in plain) or not name:
        raise ValueError(f"{text!r}: a name has letters, digits, _, - and dots; a * at its end is for all that go on")
    return Permission(right, plain, name.endswith("*"))
