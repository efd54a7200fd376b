"""Bearer tokens, and the lines of the file that has their hashes: `name:sha256:read=finance.*,write=finance.*`. Pure,
but for `fresh_token`.

A token is 256 random bits, so that its plain SHA-256 is as good as one that is slow to compute.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from typing import NamedTuple

from duramen.gateway.access.principal import Permission, Principal, parse_permission

TOKEN_LENGTH_MAX = 512

_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}", re.ASCII)
_HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)


class TokenLines(NamedTuple):
    """What a file says. principals: by the hash of their tokens; mistakes: of lines that count as if not there."""

    principals: dict[str, Principal]
    mistakes: list[str]


def fresh_token() -> str:
    """A new one."""
    return "duramen_" + secrets.token_urlsafe(32)


def hash_of(token: str) -> str:
    """What the file has in its place."""
    return hashlib.sha256(token.encode()).hexdigest()


def token_line(name: str, token: str, permissions: Iterable[Permission]) -> str:
    """A line of the file. ValueError for a name that may not be."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r}: a name has 1 to 64 letters, digits, _, ., @ and -")
    return f"{name}:{hash_of(token)}:{','.join(map(str, permissions))}"


def parse_token_lines(text: str) -> TokenLines:
    """The lines of a file; empty ones, and those that begin with #, say nothing. A hash is not repeated in mistakes."""
    principals: dict[str, Principal] = {}
    mistakes = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        try:
            name, digest, permissions = _fields(line)
            if digest in principals:
                raise ValueError("the token of an earlier line")
            principals[digest] = Principal(name, permissions)
        except ValueError as error:
            mistakes.append(f"line {number}: {error}")
    return TokenLines(principals, mistakes)


def _fields(line: str) -> tuple[str, str, tuple[Permission, ...]]:
    parts = line.split(":")
    if len(parts) != 3:
        raise ValueError("not of the form name:hash:permissions; `duramen gateway token` prints one")
    name, digest, permissions = (part.strip() for part in parts)
    if not _NAME.fullmatch(name):
        raise ValueError("a name has 1 to 64 letters, digits, _, ., @ and -")
    if not _HASH.fullmatch(digest):
        raise ValueError("the hash is not a SHA-256 of 64 hexadecimal digits; `duramen gateway token` prints one")
    return name, digest, tuple(parse_permission(each.strip()) for each in permissions.split(",") if each.strip())
