"""One request on its way through the server: what was asked, by whom, and the place its reply keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from duramen.errors import DuramenError
from duramen.ports import Part
from duramen.server.api.authorizer import NOBODY, Operation, Resource
from duramen.server.net.listener_type import ListenerType
from duramen.server.net.steps import Steps
from duramen.wire.error_codes import Codes, error_codes
from duramen.wire.frame import frame_response
from duramen.wire.messages import ApiMessage
from duramen.wire.schema import Message

if TYPE_CHECKING:
    from duramen.server.api.services import Services
    from duramen.server.api.sliced_work import Work
    from duramen.server.net.connection import ClientConnection

NO_REPLY: tuple[Part, ...] = ()


class Request:
    """A decoded request. `reply` may be called at once or any time later; connections keep the order."""

    __slots__ = (
        "body",
        "connection",
        "correlation_id",
        "denied",
        "parts",
        "row",
        "services",
        "started",
        "version",
    )
    was_large: ClassVar[bool] = False
    """Whether it was decoded as SlicedWork."""
    is_embedded: ClassVar[bool] = False
    """Whether another node handed it on, or this one did to itself: it is decided here."""

    def __init__(
        self,
        services: Services,
        connection: ClientConnection,
        row: ApiRow,
        version: int,
        correlation_id: int,
    ) -> None:
        self.services = services
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

    def denies(self, operation: Operation, resource: Resource, names: Iterable[str]) -> frozenset[str]:
        """Those of `names` the request's principal may not touch with `operation`."""
        principal, host = self.asker
        return self.services.access.authorizer.denied(principal, host, operation, resource, names)

    @property
    def asker(self) -> tuple[str, str]:
        """Principal and address of who asks."""
        return self.connection.principal, self.connection.transport.peer

    def deny_topics(self, names: Iterable[str]) -> frozenset[str]:
        """Topics among `names` that the request's own operation may not touch."""
        return self.denies(self.row.operation, Resource.TOPIC, names)

    @property
    def client_id(self) -> str:
        """What the client calls itself; "" when it does not say."""
        return self.connection.client_id

    def reply(self, response: Any) -> None:
        """Answer with a message object of the API's response."""
        if self.parts is not None or self.connection.closed:
            return
        try:
            parts, codes = self._framed(response)
        except Exception as error:  # noqa: BLE001 replies come from callbacks: one that fails must not stop the others
            self._fail_to_reply(error)
            return
        self._answer(parts, codes)

    def reply_in_steps(self, work: Steps, *, begun: bool = False) -> None:
        """Answer with the message object that `work` returns: at once if that takes one step, else when it is done as
        SlicedWork (`begun` there), and encoded beside the loop."""
        if self._first_step(work, self.reply):
            self.services.sliced_work.add(self.connection, self._rest(work, None), begun=begun or self.was_large)

    def in_steps(self, work: Steps, then: Callable[[Any], None]) -> None:
        """`then` with what `work` returns: at once if that takes one step, else when it is done as SlicedWork.

        What this client sends behind the request is not handled before `then` has been called.
        """
        if self._first_step(work, then):
            self.services.sliced_work.add(self.connection, self._rest(work, then), begun=self.was_large)

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
        except Exception as error:  # noqa: BLE001 as in the decoder
            self.fail(error)
            return
        try:
            parts, codes = yield partial(self._framed, result)
            self._answer(parts, codes)
        except Exception as error:  # noqa: BLE001 as above
            self._fail_to_reply(error)

    def _framed(self, response: Any) -> tuple[list[Part], Codes]:
        """The reply's frame, and the errors it tells; any thread."""
        api = self.row.api
        message = api.response
        parts = message.encode_parts(response, self.version)
        return frame_response(api, self.version, self.correlation_id, parts), error_codes(message, response)

    def _answer(self, parts: list[Part], codes: Codes) -> None:
        """The reply is encoded, and tells these errors."""
        if codes:
            self.count_errors(codes)
        self.complete(parts)

    def relay(self, parts: list[Part], codes: Codes) -> None:
        """Answer with a frame that was made elsewhere, and tells these errors."""
        if self.parts is None and not self.connection.closed:
            self._answer(parts, codes)

    def _fail_to_reply(self, error: BaseException) -> None:
        self.services.report_bug("reply-failed", error, api=self.row.api.name, version=self.version)
        self.drop_connection(f"internal error: {error!r}")

    def fail(self, error: BaseException) -> None:
        """What is wrong with the request ends its connection; so does a bug, which is reported."""
        services = self.services
        services.metrics.error(self.row.api.key)
        if isinstance(error, DuramenError | IndexError):
            self.drop_connection(str(error))
            return
        services.report_bug("request-failed", error, api=self.row.api.key, peer=self.connection.transport.peer)
        self.drop_connection(f"internal error: {error!r}")

    def count_errors(self, codes: Codes) -> None:
        """Of what the client is told, or would be: where there is no reply, its connection ends."""
        self.services.metrics.error_codes(self.row.api.key, codes)

    def reply_nothing(self) -> None:
        """The request has no reply (Produce with acks=0)."""
        self.complete(NO_REPLY)

    def complete(self, parts: list[Part] | tuple[Part, ...]) -> None:
        """Answer with finished bytes."""
        if self.parts is not None:
            return
        self.parts = parts
        self.services.metrics.request(self.row.api.key, self.services.clock.monotonic() - self.started)
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
            self.services.sliced_work.add(self.connection, self._rest(_made(response), None), begun=True)


class FastPath(Protocol):
    """Handles frames of an API whose beginning is known from an earlier request, without decoding them."""

    def handle_known(
        self,
        services: Services,
        connection: ClientConnection,
        view: memoryview,
        version: int,
        correlation: int,
        client: int,
    ) -> bool:
        """Handle the frame in `view`, whose client id has so many bytes, if it begins like an earlier one."""

    def learn(self, view: memoryview, request: Any) -> None:
        """Remember how a decoded request begins."""


class ApiRow(NamedTuple):
    """All that is said of one API as it is served here. `names` gives the resources a request touches."""

    api: ApiMessage
    listeners: ListenerType
    """On which it is served."""
    handle: Callable[[Request], None]
    operation: Operation
    resource: Resource
    names: Callable[[Any], Iterable[str]]
    lowest: int
    highest: int
    advertised_from: int
    """The lowest version that ApiVersions names, which clients may look for although it is refused."""
    flexible_from: int
    """First version whose header has tagged fields; beyond every version when there is none."""
    request: Message
    request_class: type[Request]
    large_class: type[Request]
    """Of requests above SMALL_BYTES, as what follows."""
    handle_large: Callable[[Request], None]
    most: int
    """Elements."""
    decoded_at_once: int
    """Elements of a large request up to which it is decoded on the loop all the same."""
    refuse_excess: Callable[[Request], None] | None
    """Answers a request of more than `most` elements; without it the connection ends."""
    refuse_version: Callable[[Services, ClientConnection, ApiRow, memoryview, int, int], bool] | None
    """Answers a version that is not served (services, connection, row, frame, version, correlation id); False, or no
    such function: the connection ends (KIP-511)."""
    fast_path: Callable[[], FastPath] | None


def _made(response: Any) -> Steps:
    yield from ()
    return response
