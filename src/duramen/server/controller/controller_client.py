"""The active controller as a node reaches it, wherever it is: in this process, or over its controller's listener.

Commands of this node (registration, heartbeats, producer ids, topics of coordinators) and its clients' admin requests
(in an Envelope, KIP-590) go the same way: until an active controller has answered, or their time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from duramen.errors import ClosedError, DuramenError, ErrorCode, KafkaError
from duramen.machines.metadata.commands import NewTopic, RegisterBroker, TopicCreated
from duramen.ports import Part, Timer, World
from duramen.server.controller import command_messages, envelopes
from duramen.server.controller.embedded_request import embed
from duramen.server.controller.refusing_controller import RefusingController
from duramen.wire.error_codes import Codes

if TYPE_CHECKING:
    from duramen.client.loop.node_client import NodeRequest
    from duramen.partition.metadata.controller import Controller
    from duramen.partition.metadata.publisher import MetadataPublisher
    from duramen.server.api.request import Request
    from duramen.server.controller.controller_channels import ControllerChannels

Answer = Callable[[Any], None]

PATIENCE_S: Final = 30.0
"""How long something waits for an active controller, unless it says less: Kafka's `request.timeout.ms`."""
HEARTBEAT_PATIENCE_S: Final = 1.0
"""The same for a heartbeat: what it says is old by then."""
LEAST_PATIENCE_S: Final = 1.0
"""Of clients that do not want to wait at all: Kafka's controllers answer them when it is decided, too."""
FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 0.5
CLUSTER: Final = "User:CLUSTER"
"""Who asks for what no client asked for."""


class Forwarded(NamedTuple):
    """A reply's frame. offset: of the metadata, behind what it speaks of; codes: errors that it tells, if known."""

    parts: list[Part]
    codes: Codes
    offset: int


class ControllerErrand:
    """Something that the active controller is to decide.

    here: has it decided in this process. request: makes what is sent to another one. read: the answer in a response.
    """

    __slots__ = ("deadline", "done", "here", "is_heartbeat", "read", "request", "tries", "why")

    def __init__(
        self,
        here: Callable[[Answer], None],
        request: Callable[[], NodeRequest],
        read: Callable[[Any], Any],
        done: Answer,
        deadline: float,
        *,
        is_heartbeat: bool = False,
    ) -> None:
        self.here = here
        self.request = request
        self.read = read
        self.done = done
        self.deadline = deadline
        self.is_heartbeat = is_heartbeat
        self.tries = 0
        self.why = "no controller is known"


class ControllerClient:
    """Of one node. Loop thread only.

    Whoever asks gets the machine's answer, or a DuramenError; never NOT_CONTROLLER. What is lost on its way, or on its
    way back, is asked again, as in Kafka: a topic may exist by then because the first try made it.
    """

    def __init__(
        self,
        world: World,
        controller: Controller,
        publisher: MetadataPublisher,
        cluster_id: str,
        node_id: int,
    ) -> None:
        self._world = world
        self._clock = world.clock
        self._controller = controller
        self._publisher = publisher
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._channels: ControllerChannels | None = None
        self._pausing: dict[ControllerErrand, Timer] = {}
        self._closed = False
        controller.on_leader.append(self._leader_changed)

    # ---- commands of this node -------------------------------------------------------------------------------

    def ask(self, command: Any, done: Answer, timeout: float | None = None) -> ControllerErrand:
        """Have a command decided that is one of Kafka's requests; `done(answer)`, or a DuramenError.

        What is decided in this process is in the image by then; what is decided elsewhere need not be. Returns what
        tells how often it was tried.
        """
        controller = self._controller
        is_heartbeat = type(command) in command_messages.HEARTBEATS
        here = controller.heartbeat if is_heartbeat else controller.decide
        return self._ask(partial(here, command), command, done, timeout)

    def register(self, command: RegisterBroker, done: Answer, timeout: float | None = None) -> None:
        """Have this process registered; where this node is the controller it is unfenced by then, too."""
        self._ask(partial(self._controller.register, command), command, done, timeout)

    def _ask(
        self, here: Callable[[Answer], None], command: Any, done: Answer, timeout: float | None
    ) -> ControllerErrand:
        is_heartbeat = type(command) in command_messages.HEARTBEATS
        if timeout is None:
            timeout = HEARTBEAT_PATIENCE_S if is_heartbeat else PATIENCE_S
        errand = ControllerErrand(
            here,
            partial(command_messages.to_wire, command, self._cluster_id),
            partial(command_messages.answer_from_wire, command),
            done,
            self._clock.monotonic() + timeout,
            is_heartbeat=is_heartbeat,
        )
        self._run(errand)
        return errand

    def ask_session(self, own_ms: int, done: Callable[[int], None]) -> None:
        """How many ms the active controller waits for a silent broker; not called where none says so in time.

        own_ms: what this node would say.
        """

        def request() -> NodeRequest:
            return command_messages.session_to_wire(self._controller.quorum.leader_id)

        def answered(answer: Any) -> None:
            if not isinstance(answer, DuramenError):
                done(answer)

        deadline = self._clock.monotonic() + PATIENCE_S
        self._run(
            ControllerErrand(
                lambda answer: answer(own_ms), request, command_messages.session_from_wire, answered, deadline
            )
        )

    def create(self, topics: list[NewTopic], done: Callable[[list[TopicCreated] | DuramenError], None]) -> None:
        """Create topics with the defaults of the active controller; `done` when they are in the image here, and their
        partitions in this node."""
        deadline = self._clock.monotonic() + PATIENCE_S

        def created(answer: Any) -> None:
            if not isinstance(answer, Forwarded):
                done(answer)
                return
            results = command_messages.created_from_wire(envelopes.reply_data(answer.parts))
            publisher = self._publisher
            self._when_here(
                answer.offset,
                deadline,
                lambda: done(publisher.with_creation_errors(results)),
                makes_partitions=True,
            )

        def request() -> NodeRequest:
            inner = command_messages.creation_to_wire(topics, int(PATIENCE_S * 1000))
            return envelopes.wrap(inner, 0, f"duramen-{self._node_id}", (CLUSTER, ""))

        self._run(ControllerErrand(partial(self._controller.create, topics), request, _forwarded, created, deadline))

    def new_topic(self, name: str) -> NewTopic:
        """A topic of this name; internal topics get the partitions and settings they are born with."""
        return self._controller.new_topic(name)

    # ---- requests of clients ---------------------------------------------------------------------------------

    def forward(self, request: Request, handle: Callable[[Request], None], *, makes_partitions: bool = False) -> None:
        """Have the handler answer the request at the active controller; the client is told when the image here has it.

        makes_partitions: the answer waits for this node's own, too.
        """
        if request.is_embedded:
            handle(request)
        elif request.was_large and not self._controller.is_active:
            request.in_steps(_wrapped(request), partial(self._forward, request, handle, makes_partitions))
        else:
            self._forward(request, handle, makes_partitions, None)

    def _forward(
        self,
        request: Request,
        handle: Callable[[Request], None],
        makes_partitions: bool,
        wrapped: NodeRequest | None,
    ) -> None:
        timeout_ms = getattr(request.body, "timeout_ms", None)
        patience = PATIENCE_S if timeout_ms is None else min(max(timeout_ms / 1000, LEAST_PATIENCE_S), PATIENCE_S)
        deadline = self._clock.monotonic() + patience

        def here(answer: Answer) -> None:
            def replied(parts: list[Part], codes: Codes) -> None:
                lost = int(ErrorCode.NOT_CONTROLLER) in codes
                answer(KafkaError(ErrorCode.NOT_CONTROLLER) if lost else Forwarded(parts, codes, 0))

            handle(embed(request, replied))

        def done(answer: Any) -> None:
            if request.connection.closed:
                return
            if isinstance(answer, Forwarded):
                reply = partial(request.relay, answer.parts, answer.codes)
                self._when_here(answer.offset, deadline, reply, makes_partitions=makes_partitions)
            else:
                services = request.services
                request.services = replace(services, controller=RefusingController(services.controller, answer))
                handle(request)

        make = partial(envelopes.wrap_request, request) if wrapped is None else lambda: wrapped
        self._run(ControllerErrand(here, make, _forwarded, done, deadline))

    def _when_here(
        self, offset: int, deadline: float, callback: Callable[[], None], *, makes_partitions: bool = False
    ) -> None:
        """Call back when the image here has everything below the offset, or the time is over."""
        reader, publisher = self._controller.reader, self._publisher
        if reader.position >= offset and not makes_partitions:
            callback()
            return
        waits = [callback]
        timer: Timer | None = None

        def once() -> None:
            if waits:
                if timer is not None:
                    timer.cancel()
                waits.pop()()

        def applied() -> None:
            if makes_partitions:
                publisher.when_published(once)
            else:
                once()

        reader.when_applied(offset, applied)
        if waits:
            timer = self._clock.call_later(max(deadline - self._clock.monotonic(), 0.0), once)

    # ---- on the way ------------------------------------------------------------------------------------------

    def _run(self, errand: ControllerErrand) -> None:
        if self._closed:
            errand.done(ClosedError("this node stops"))
            return
        controller = self._controller
        errand.tries += 1
        if controller.is_active or controller.quorum.is_sole_voter:
            errand.here(partial(self._answered, errand))
            return
        left = errand.deadline - self._clock.monotonic()
        quorum = controller.quorum
        leader_id, endpoint = quorum.leader_id, quorum.leader_endpoint
        if left <= 0 or endpoint is None or leader_id in (-1, self._node_id):
            self._again(errand)
            return
        try:
            request = errand.request()
        except DuramenError as error:
            errand.done(error)
            return
        replied = partial(self._replied, errand, leader_id)
        self._connected().send(leader_id, endpoint, request, replied, left, is_heartbeat=errand.is_heartbeat)

    def _connected(self) -> ControllerChannels:
        if self._channels is None:
            # Loaded on demand: a node alone, as most are, starts without it.
            module = import_module("duramen.server.controller.controller_channels")
            self._channels = module.ControllerChannels(self._world, self._node_id)
        channels: ControllerChannels = self._channels
        return channels

    def _replied(self, errand: ControllerErrand, leader_id: int, response: Any | None) -> None:
        if response is None:
            errand.why = f"node {leader_id} did not answer"
            self._again(errand)
            return
        self._answered(errand, errand.read(response))

    def _answered(self, errand: ControllerErrand, answer: Any) -> None:
        if isinstance(answer, DuramenError) and answer.code is ErrorCode.NOT_CONTROLLER:
            errand.why = str(answer)
            self._again(errand)
        else:
            errand.done(answer)

    def _again(self, errand: ControllerErrand) -> None:
        """Nobody decided: ask again after a pause."""
        if self._closed:
            errand.done(ClosedError("this node stops"))
            return
        left = errand.deadline - self._clock.monotonic()
        if left <= 0:
            why = f"no active controller has answered in time: {errand.why}"
            errand.done(KafkaError(ErrorCode.REQUEST_TIMED_OUT, why))
            return
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(errand.tries, 16))
        pause *= self._world.entropy.uniform(0.8, 1.2)
        self._pausing[errand] = self._clock.call_later(min(pause, left), partial(self._resume, errand))

    def _resume(self, errand: ControllerErrand) -> None:
        if self._pausing.pop(errand, None) is not None:
            self._run(errand)

    def _leader_changed(self, leader_id: int, epoch: int) -> None:
        if self._channels is not None:
            self._channels.follow(leader_id)

    def close(self) -> None:
        """Nothing is asked any more; who waits is told so."""
        self._closed = True
        pausing, self._pausing = self._pausing, {}
        for errand, timer in pausing.items():
            timer.cancel()
            errand.done(ClosedError("this node stops"))
        if self._channels is not None:
            self._channels.close()


def _wrapped(request: Request) -> Generator[Any, Any, NodeRequest]:
    """Encoded beside the loop."""
    yield
    wrapped: NodeRequest = yield partial(envelopes.wrap_request, request)
    return wrapped


def _forwarded(response: Any) -> Forwarded | KafkaError:
    """What an Envelope brought back."""
    if response.error_code:
        return command_messages.error_from_wire(response.error_code)
    return Forwarded(envelopes.reply_parts(bytes(response.response_data or b"")), {}, response.metadata_offset)
