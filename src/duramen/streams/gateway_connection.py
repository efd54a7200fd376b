"""One connection to a gateway, which is kept; what got no answer is sent again until a time limit."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from duramen.client.protocol.deadline import Deadline
from duramen.errors import ClosedError, NetworkError, NoConnectionError, NothingThereError
from duramen.streams.http_words import GatewayAnswer, GatewayError

FIRST_CONTACT_S: Final = 5.0
_ATTEMPT_S: Final = 35.0
"""When a gateway that says nothing is given up: its own limit of a request is 30 s."""


class GatewayConnection:
    """For one thread at a time. timeout_s: of each request with all its attempts.

    Whatever is sent here may be sent again: reads, appends of a writer that is known again, and closing.
    """

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._where = f"{host}:{port}"
        self._address = (host, port)
        self._timeout_s = timeout_s
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
        NothingThereError where nothing ever took a connection.
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
            connection.request(method, path, body=body or None, headers=headers)
            response = connection.getresponse()
            answer = GatewayAnswer(
                response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
            )
        except (OSError, http.client.HTTPException) as error:
            self._hang_up()
            raise NetworkError(f"{self._where}: {error or type(error).__name__}") from error
        if response.will_close:
            self._hang_up()
        if answer.status >= 400:
            raise GatewayError(answer)
        return answer

    def _reach(self, left_s: float) -> http.client.HTTPConnection:
        connection = self._connection
        if connection is None:
            connection = http.client.HTTPConnection(*self._address, timeout=min(left_s, FIRST_CONTACT_S))
            try:
                connection.connect()
            except OSError as error:
                raise NoConnectionError(f"{self._where}: {error}") from error
            self._connection = connection
            self._was_reached = True
        connection.sock.settimeout(left_s)
        return connection

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
                connection.sock.shutdown(socket.SHUT_RDWR)
        self._hang_up()
