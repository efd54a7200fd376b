"""One request on its way through the server: what was asked, by whom, and the place its reply keeps."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from duramen.ports import Part
from duramen.server.authorizer import NOBODY
from duramen.wire.frame import frame_response

if TYPE_CHECKING:
    from duramen.server.broker import Broker
    from duramen.server.dispatch import Row
    from duramen.server.network import Connection

NO_REPLY: tuple[Part, ...] = ()

STEP = 100
"""Topics, partitions or the like in a step of a large reply: a millisecond."""

Steps = Generator[None, None, Any]
"""The way to a message object, which it returns, by steps of about STEP entries."""


class Request:
    """A decoded request. `reply` may be called at once or any time later; connections keep the order."""

    __slots__ = (
        "body",
        "broker",
        "connection",
        "correlation_id",
        "denied",
        "parts",
        "row",
        "started",
        "version",
    )

    def __init__(
        self,
        broker: Broker,
        connection: Connection,
        row: Row,
        version: int,
        correlation_id: int,
    ) -> None:
        self.broker = broker
        self.connection = connection
        self.row = row
        self.version = version
        self.correlation_id = correlation_id
        self.started = connection.last_active
        """When the bytes that brought it arrived."""
        self.body: Any = None
        self.denied: frozenset[str] = NOBODY
        """Names of the row's resource type this principal may not touch; the handler answers for them."""
        self.parts: list[Part] | tuple[Part, ...] | None = None

    @property
    def client_id(self) -> str:
        """What the client calls itself; "" when it does not say."""
        return self.connection.client_id

    def reply(self, response: Any) -> None:
        """Answer with a message object of the API's response."""
        if self.parts is not None or self.connection.closed:
            return
        try:
            parts = self._framed(response)
        except Exception as error:  # noqa: BLE001 replies come from callbacks: one that fails must not stop the others
            self._fail(error)
            return
        self.complete(parts)

    def reply_in_steps(self, work: Steps) -> None:
        """Answer with the message object that `work` returns, after one step at once or more of them a turn each.

        For what else may hold the loop for milliseconds. A reply of several steps is encoded off the loop. One of these
        is made at a time, and until it is made its client's next requests wait: what it is made of takes more memory.
        """
        connection = self.connection
        try:
            next(work)
        except StopIteration as end:
            self.reply(end.value)
            return

        def encoded(parts: list[Part] | None, error: BaseException | None) -> None:
            if error is not None:
                self._fail(error)
            elif parts is not None and not connection.closed:
                self.complete(parts)
            connection.unmute("large")

        def go_on() -> bool:
            if connection.closed:
                return True
            try:
                next(work)
            except StopIteration as end:
                self.broker.world.executor.submit("replies", partial(self._framed, end.value), encoded)
                return True
            except Exception as error:  # noqa: BLE001 as above
                self._fail(error)
                return True
            return False

        connection.mute("large")
        self.broker.large_replies.add(go_on)

    def _framed(self, response: Any) -> list[Part]:
        """The reply's frame; any thread."""
        api = self.row.api
        return frame_response(api, self.version, self.correlation_id, api.response.encode_parts(response, self.version))

    def _fail(self, error: BaseException) -> None:
        self.broker.report_bug("reply-failed", error, api=self.row.api.name, version=self.version)
        self.connection.close(f"internal error: {error!r}")

    def reply_nothing(self) -> None:
        """The request has no reply (Produce with acks=0)."""
        self.complete(NO_REPLY)

    def complete(self, parts: list[Part] | tuple[Part, ...]) -> None:
        """Answer with finished bytes."""
        if self.parts is not None:
            return
        self.parts = parts
        self.broker.metrics.request(self.row.api.key, self.broker.clock.monotonic() - self.started)
        self.connection.ready(self)

    def drop_connection(self, reason: str) -> None:
        """The only honest answer is to hang up (Kafka does so where a reply could not say what is wrong)."""
        self.connection.close(reason)
