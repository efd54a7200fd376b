"""One connection to a gateway, which is kept; what got no answer is sent again until a time limit."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from duramen.client.protocol.deadline import Deadline
from duramen.errors import ClosedError, NetworkError, NoConnectionError, NothingThereError, TlsError
from duramen.streams.gateway_login import CA_FILE_VARIABLE, GatewayLogin
from duramen.streams.http_words import GatewayAnswer, GatewayError

FIRST_CONTACT_S: Final = 5.0
_ATTEMPT_S: Final = 35.0
"""When a gateway that says nothing is given up: its own limit of a request is 30 s."""
_PROBE_S: Final = 2.0
_UNSIGNED: Final = (18, 19, 20, 21)
"""OpenSSL's codes of certificates whose signer is not known here."""
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")


class GatewayConnection:
    """For one thread at a time. timeout_s: of each request with all its attempts.

    Whatever is sent here may be sent again: reads, appends of a writer that is known again, and closing.
    """

    def __init__(self, host: str, port: int, timeout_s: float, login: GatewayLogin) -> None:
        self._where = f"{host}:{port}"
        self._address = (host, port)
        self._timeout_s = timeout_s
        self._login = login
        self._was_understood = False
        self._connection: http.client.HTTPConnection | None = None
        self._was_reached = False
        self._is_closed = False

    def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        waits_s: float = 0.0,
    ) -> GatewayAnswer:
        """One request; waits_s: how long the gateway itself may wait. GatewayError for a problem, DeadlineError,
        TlsError, NothingThereError where nothing ever took a connection.
        """
        began = time.monotonic()
        deadline = Deadline(f"{method} {path.partition('?')[0]} at {self._where}", self._timeout_s + waits_s, began)
        while True:
            try:
                return self._attempt(method, path, body, dict(headers or {}), deadline, waits_s)
            except (NetworkError, GatewayError) as error:
                now = time.monotonic()
                if isinstance(error, NoConnectionError) and not self._was_reached and now - began > FIRST_CONTACT_S:
                    raise NothingThereError(str(error)) from error
                time.sleep(deadline.pause_s(error, now))

    def _attempt(
        self, method: str, path: str, body: bytes, headers: dict[str, str], deadline: Deadline, waits_s: float
    ) -> GatewayAnswer:
        if self._is_closed:
            raise ClosedError("this namespace was closed")
        left = deadline.at_most(_ATTEMPT_S + waits_s, time.monotonic()) - time.monotonic()
        connection = self._reach(max(left, 0.001))
        try:
            connection.request(method, path, body=body or None, headers={**headers, **self._login.headers})
            response = connection.getresponse()
            answer = GatewayAnswer(
                response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
            )
        except (OSError, http.client.HTTPException) as error:
            self._hang_up()
            if isinstance(error, ConnectionError | http.client.BadStatusLine):
                self._check_plain(left)
            raise NetworkError(f"{self._where}: {error or type(error).__name__}") from error
        if response.will_close:
            self._hang_up()
        if answer.status >= 300:  # a gateway redirects nobody
            refusal = GatewayError(answer, f"{method} {path.partition('?')[0]}", has_token=self._login.has_token)
            if not refusal.problem and answer.status == 400:
                self._check_plain(left)
            raise refusal
        self._was_understood = True
        return answer

    def _reach(self, left_s: float) -> http.client.HTTPConnection:
        connection = self._connection
        if connection is None:
            connection = self._unconnected(min(left_s, FIRST_CONTACT_S))
            try:
                connection.connect()
            except OSError as error:
                connection.close()
                self._check_trust(error)
                raise NoConnectionError(f"{self._where}: {error}") from error
            self._connection = connection
            self._was_reached = True
        connection.sock.settimeout(left_s)
        return connection

    def _unconnected(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._login.tls is None:
            return http.client.HTTPConnection(*self._address, timeout=timeout_s)
        return http.client.HTTPSConnection(*self._address, timeout=timeout_s, context=self._login.tls)

    def _check_trust(self, error: OSError) -> None:
        """TlsError for what comes again with each connection."""
        if isinstance(error, ssl.SSLCertVerificationError):
            remedy = (
                f"; ca_file= or {CA_FILE_VARIABLE} names a file with the certificate of who signed it"
                if error.verify_code in _UNSIGNED
                else ""
            )
            why = error.verify_message.rstrip(".")
            raise TlsError(f"{self._where}: the certificate is not trusted ({why}){remedy}") from error
        if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
            raise TlsError(f"{self._where} does not speak TLS; a gateway without it is at duramen+http://") from error

    def _check_plain(self, left_s: float) -> None:
        """TlsError where a plain request was not understood because TLS is spoken there. Asked once at most; nothing is
        sent but the handshake."""
        if self._was_understood or self._login.tls is not None:
            return
        self._was_understood = True  # or its gateway was killed: that is not asked again
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with (
                socket.create_connection(self._address, min(left_s, _PROBE_S)) as plain,
                context.wrap_socket(plain, server_hostname=self._address[0]),
            ):
                pass
        except (OSError, ValueError):
            return
        raise TlsError(f"{self._where} speaks TLS; the gateway there is at duramen+https://")

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Hang up for good, also while another thread waits for an answer; calling it again does nothing."""
        self._is_closed = True
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with suppress(OSError):
                # That of TLS would let the thread that is about to send go on without it, for a moment.
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)
        self._hang_up()
