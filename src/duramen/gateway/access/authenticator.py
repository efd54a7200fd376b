"""The seam between a request and who sends it: nobody has to log in, or each request brings a bearer token."""

from __future__ import annotations

from typing import Protocol

from starlette.datastructures import Headers

from duramen.errors import ConfigError
from duramen.gateway.access.principal import ANYBODY, Principal
from duramen.gateway.access.token_lines import TOKEN_LENGTH_MAX, TokenLines, hash_of, parse_token_lines
from duramen.gateway.access.watched_file import WatchedFile
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.routes.route import COOKIE

_SCHEME = "bearer "


class Authenticator(Protocol):
    """Who sends a request, and what they may do now."""

    def principal(self, headers: Headers) -> Principal:
        """Problem 401 with a challenge for who is not known."""

    def is_allowed(self, headers: Headers, right: str, name: str) -> bool:
        """Whether the sender of a request that goes on still has a right."""

    def refresh(self) -> list[str] | None:
        """Look whether somebody's permissions have changed: None where they have not, else what is wrong with them."""


class NoLogin:
    """Everybody may do everything: on loopback."""

    def principal(self, _headers: Headers) -> Principal:
        return ANYBODY

    def is_allowed(self, _headers: Headers, _right: str, _name: str) -> bool:
        return True

    def refresh(self) -> list[str] | None:
        return None


class BearerTokens:
    """Tokens whose hashes are in a file. ConfigError where it is not as it should be at the start; later a line that
    is wrong counts as if it were not there, and a file that is gone has no lines."""

    def __init__(self, path: str) -> None:
        self._file = WatchedFile(path)
        self._file.has_changed()
        found, mistakes = self._read()
        if mistakes:
            raise ConfigError(f"gateway.tokens.file={path}: {mistakes[0]}")
        self._principals = found

    def principal(self, headers: Headers) -> Principal:
        token = token_in(headers)
        if token is None:
            raise login_needed("a bearer token is needed: Authorization: Bearer <token>", "Bearer")
        found = self._known(token)
        if found is None:
            raise login_needed("the bearer token is not known here", 'Bearer error="invalid_token"')
        return found

    def is_allowed(self, headers: Headers, right: str, name: str) -> bool:
        token = token_in(headers)
        found = None if token is None else self._known(token)
        return found is not None and found.may(right, name)

    def refresh(self) -> list[str] | None:
        if not self._file.has_changed():
            return None
        self._principals, mistakes = self._read()
        return mistakes

    def _read(self) -> TokenLines:
        try:
            return parse_token_lines(self._file.text())
        except OSError as error:
            return TokenLines({}, [f"it cannot be read: {error.strerror}"])

    def _known(self, token: str) -> Principal | None:
        # Compared are hashes, which nobody can choose: the time that it takes tells nothing of other tokens.
        return self._principals.get(hash_of(token))


def token_in(headers: Headers) -> str | None:
    """The token of a request: of Authorization, else of the cookie; None where neither has one that could be."""
    given = headers.get("authorization")
    if given is not None:
        token = given[len(_SCHEME) :].strip() if given[: len(_SCHEME)].lower() == _SCHEME else ""
    else:
        token = _cookie(headers.get("cookie", ""))
    return token if token and len(token) <= TOKEN_LENGTH_MAX else None


def _cookie(text: str) -> str:
    """What COOKIE has in a header with several, all of which may be anybody's; "" where it is not there."""
    for part in text.split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
            return value
    return ""


def login_needed(detail: str, challenge: str) -> ProblemError:
    """The refusal of who is not known."""
    return ProblemError(401, "login-needed", detail, {"www-authenticate": challenge})
