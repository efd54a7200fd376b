"""Which certificates of other gateways are trusted."""

from __future__ import annotations

import ssl

from duramen.errors import ConfigError


class PeerTrust:
    """Those that a file has signed, else those that the system trusts. ConfigError, in one line, for a file that cannot
    be used."""

    def __init__(self, ca: str) -> None:
        self._context = _loaded(ca) if ca else None

    @property
    def context(self) -> ssl.SSLContext:
        """For connections to them; the system's certificates are loaded when the first one is made."""
        if self._context is None:
            self._context = ssl.create_default_context()
        return self._context


def _loaded(ca: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except ssl.SSLError as error:
        raise ConfigError(f"gateway.tls.ca={ca} has no certificates in PEM ({error.reason or error})") from None
    except OSError as error:
        raise ConfigError(f"gateway.tls.ca={ca} cannot be read: {error.strerror}") from None
