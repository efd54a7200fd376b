"""The certificate and key of the listener, loaded from PEM files, and again when they have changed."""

from __future__ import annotations

import ssl

from duramen.errors import ConfigError
from duramen.gateway.access.watched_file import WatchedFile


class Certificate:
    """One of them. ConfigError, in one line, where it cannot be used at the start."""

    def __init__(self, certificate: str, key: str) -> None:
        self._certificate = certificate
        self._key = key
        self._files = (WatchedFile(certificate), WatchedFile(key))
        for file in self._files:
            file.has_changed()
        self.context = self._newest = self._loaded()
        self.context.sni_callback = self._take_newest

    def refresh(self) -> str | None:
        """Load what has changed, for connections that come from now on: "" where it was loaded, why it could not be, or
        None where nothing has changed. Then the one before stays."""
        if not [file for file in self._files if file.has_changed()]:
            return None
        try:
            self._newest = self._loaded()
        except ConfigError as error:
            return str(error)
        return ""

    def _take_newest(self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _context: object) -> None:
        """Asked in each handshake, whether a name is sent or not. A context that is used is not loaded anew: a file
        that changes meanwhile would leave it without a key."""
        connection.context = self._newest

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        for setting, path in (("certificate", self._certificate), ("key", self._key)):
            try:
                with open(path, "rb"):
                    pass
            except OSError as error:
                raise ConfigError(f"gateway.tls.{setting}={path} cannot be read: {error.strerror}") from None
        try:
            context.load_cert_chain(self._certificate, self._key, _no_password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                why = "the key is not that of the certificate"
            else:
                why = f"they are not a certificate and a key in PEM ({error.reason or error})"
            raise ConfigError(f"gateway.tls.certificate={self._certificate}, key={self._key}: {why}") from None
        except OSError as error:  # it went meanwhile
            raise ConfigError(
                f"gateway.tls.certificate={self._certificate}, key={self._key} cannot be read: {error.strerror}"
            ) from None
        return context


def _no_password() -> str:
    raise ConfigError("gateway.tls.key is encrypted, and there is nobody to type its password; decrypt the file")
