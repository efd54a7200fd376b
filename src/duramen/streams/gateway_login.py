"""How a gateway is asked: which certificates are trusted, and the bearer token, which nothing shows."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from typing import Final

from duramen.config.listeners import is_loopback
from duramen.errors import ConfigError
from duramen.streams.address import Address

TOKEN_VARIABLE: Final = "DURAMEN_TOKEN"
CA_FILE_VARIABLE: Final = "DURAMEN_CA_FILE"
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,512}", re.ASCII)


class GatewayLogin:
    """tls: None for a plain connection. It has no repr of its own, so that the token is in none."""

    def __init__(self, tls: ssl.SSLContext | None = None, token: str = "") -> None:
        self.tls = tls
        self.headers: Mapping[str, str] = {"Authorization": f"Bearer {token}"} if token else {}

    @property
    def has_token(self) -> bool:
        return bool(self.headers)


def login_at(
    address: Address, token: str | None, ca_file: str | None, environment: Mapping[str, str] = os.environ
) -> GatewayLogin:
    """The login at a gateway's address. What is None may be in the environment.

    ConfigError for a token that cannot be one or would travel in the clear, a file that has no certificates, and one
    that the address has no use for.
    """
    if ca_file is not None and not address.is_https:
        raise ConfigError("a CA file is for a gateway with TLS, at duramen+https://host:port/namespace")
    given = _checked(token, "token=") if token is not None else _checked_variable(environment)
    if not address.is_https:
        if given and not is_loopback(address.gateway.rpartition(":")[0].strip("[]")):
            raise ConfigError(
                f"a token would travel in the clear to {address.gateway}: ask by duramen+https://, or give none "
                f"(token=, {TOKEN_VARIABLE})"
            )
        return GatewayLogin(None, given)
    return GatewayLogin(_context(ca_file, environment.get(CA_FILE_VARIABLE)), given)


def _checked_variable(environment: Mapping[str, str]) -> str:
    text = environment.get(TOKEN_VARIABLE)
    return _checked(text, TOKEN_VARIABLE) if text else ""


def _checked(text: str, source: str) -> str:
    """Without the end of line that a file or a shell leaves. What is wrong is not shown: it may be the token."""
    token = text.strip() if isinstance(text, str) else ""
    if not _TOKEN.fullmatch(token):
        raise ConfigError(
            f"{source} is no bearer token: that is one word of up to 512 visible ASCII characters, "
            "as `duramen gateway token` prints it"
        )
    return token


def _context(given: str | None, of_environment: str | None) -> ssl.SSLContext:
    path, source = (given, "ca_file=") if given is not None else (of_environment or None, f"{CA_FILE_VARIABLE}=")
    try:
        if path is not None and not os.path.getsize(path):
            raise ssl.SSLError("it is empty")
        return ssl.create_default_context(cafile=path)
    except ssl.SSLError:
        raise ConfigError(f"{source}{path}: there is no certificate in it; it has to be in PEM") from None
    except (OSError, TypeError, ValueError) as error:
        raise ConfigError(f"{source}{path}: it cannot be read: {getattr(error, 'strerror', None) or error}") from None
