"""One request on its way through the server: what was asked, by whom, and the place its reply keeps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from duramen.errors import DuramenError
from duramen.ports import Part
from duramen.server.api.authorizer import NOBODY
from duramen.server.net.steps import Steps
from duramen.wire.frame import frame_response

if TYPE_CHECKING:
    from duramen.server.api.sliced_work import Work
    from duramen.server.broker import Broker
    from duramen.server.dispatch import Row
    from duramen.server.net.connection import ClientConnection

NO_REPLY: tuple[Part, ...] = ()


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
    was_large: ClassVar[bool] = False
    """Whether it was decoded as LargeWork."""

    def __init__(
        self,
        broker: Broker,
        connection: ClientConnection,
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
            self._fail_to_reply(error)
            return
        self.complete(parts)

    def reply_in_steps(self, work: Steps, *, begun: bool = False) -> None:
        """Answer with the message object that `work` returns: at once if that takes one step, else when it is done as
        LargeWork (`begun` there), and encoded beside the loop."""
        if self._first_step(work, self.reply):
            self.broker.large_work.add(self.connection, self._rest(work, None), begun=begun or self.was_large)

    def in_steps(self, work: Steps, then: Callable[[Any], None]) -> None:
        """`then` with what `work` returns: at once if that takes one step, else when it is done as LargeWork.

        What this client sends behind the request is not handled before `then` has been called.
        """
        if self._first_step(work, then):
            self.broker.large_work.add(self.connection, self._rest(work, then), begun=self.was_large)

    def _first_step(self, work: Steps, then: Callable[[Any], None]) -> bool:
        """Whether there are more."""
        try:
            next(work)
        except StopIteration as end:
            then(end.value)
            return False
        return True

    def _rest(self, work: Steps, then: Callable[[Any], None] | None) -> Work:
        try:
            result = yield from work
            if then is not None:
                then(result)
                return
        except Exception as error:  # noqa: BLE001 as in the door
            self.fail(error)
            return
        try:
            parts = yield partial(self._framed, result)
            self.complete(parts)
        except Exception as error:  # noqa: BLE001 as above
            self._fail_to_reply(error)

    def _framed(self, response: Any) -> list[Part]:
        """The reply's frame; any thread."""
        api = self.row.api
        return frame_response(api, self.version, self.correlation_id, api.response.encode_parts(response, self.version))

    def _fail_to_reply(self, error: BaseException) -> None:
        self.broker.report_bug("reply-failed", error, api=self.row.api.name, version=self.version)
        self.connection.close(f"internal error: {error!r}")

    def fail(self, error: BaseException) -> None:
        """What is wrong with the request ends its connection; so does a bug, which is reported."""
        broker, connection = self.broker, self.connection
        broker.metrics.error(self.row.api.key)
        if isinstance(error, DuramenError | IndexError):
            connection.close(str(error))
            return
        broker.report_bug("request-failed", error, api=self.row.api.key, peer=connection.transport.peer)
        connection.close(f"internal error: {error!r}")

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


class LargeRequest(Request):
    """One whose frame is large, and so may be its reply."""

    __slots__ = ()
    was_large = True

    def reply(self, response: Any) -> None:
        """As for others, but encoded beside the loop."""
        if self.parts is None and not self.connection.closed:
            self.broker.large_work.add(self.connection, self._rest(_made(response), None), begun=True)


def _made(response: Any) -> Steps:
    yield from ()
    return response
