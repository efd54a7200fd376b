"""The life of a broker as its controllers see it: registered and fenced, unfenced, and handed over at a stop (KIP-631).

A broker registers, is unfenced when it has applied its own registration, and says every half second that it lives. It
serves clients from when its own image shows it unfenced. At a stop it asks for that until nobody needs it any more.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from duramen.errors import DuramenError, ErrorCode, StorageError
from duramen.machines.metadata.commands import BrokerHeartbeat, HeartbeatAnswer, RegisterBroker, Registered
from duramen.machines.metadata.image import MetadataImage
from duramen.ports import Clock, Timer
from duramen.server.api.services import EventReport

if TYPE_CHECKING:
    from duramen.server.controller.broker_lease import BrokerLease

HEARTBEAT_SECONDS: Final = 1.0
"""How long one heartbeat looks for a controller, at least."""
RETRY_SECONDS: Final = 0.2
"""Between two tries to register."""
STOPPING_SECONDS: Final = 0.05
"""Between two questions whether others lead by now."""
PATIENCE_SECONDS: Final = 30.0
"""How long a stop waits for others to lead."""
_PASSING: Final = (
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.DUPLICATE_BROKER_REGISTRATION,
)
"""Refusals that end by themselves: a controller is elected, an older process's session ends."""
NO_CONTROLLER_SECONDS: Final = 3.0
"""The same while no controller answers."""


class LifecycleState(Enum):
    STARTING = "starting"
    FENCED = "fenced"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Controllers(Protocol):
    """The active controller, wherever it is."""

    def register(self, command: RegisterBroker, done: Callable[[Any], None]) -> None:
        """Have the process registered: `done(Registered)`, or with a DuramenError."""

    def ask(self, command: Any, done: Callable[[Any], None], timeout: float) -> object:
        """Have a metadata command decided: `done(answer)`, or with a DuramenError, at latest after `timeout` s."""


class AppliedMetadata(Protocol):
    """This node's own copy of the metadata."""

    @property
    def image(self) -> MetadataImage: ...

    @property
    def position(self) -> int:
        """Everything below this offset is in the image."""

    def when_applied(self, offset: int, callback: Callable[[], None]) -> None: ...


class BrokerLifecycle:
    """Of one process. Loop thread only.

    registration: makes the command, with the incarnation of this process. on_registered: gets the broker epoch.
    on_serving: called once, when clients may be served. is_alone: whether no other node could decide what this one
    cannot.
    """

    def __init__(
        self,
        clock: Clock,
        controllers: Controllers,
        metadata: AppliedMetadata,
        registration: Callable[[], RegisterBroker],
        interval_s: float,
        report: EventReport,
        on_registered: Callable[[int], None],
        on_serving: Callable[[], None],
        is_alone: Callable[[], bool] = lambda: False,
    ) -> None:
        self.state = LifecycleState.STARTING
        self.epoch = -1
        self._clock = clock
        self._controllers = controllers
        self._metadata = metadata
        self._registration = registration
        self._interval = interval_s
        self._report = report
        self._on_registered = on_registered
        self._on_serving = on_serving
        self._is_alone = is_alone
        self.on_heartbeat: Callable[[float], None] = lambda seconds: None
        """Called with what a heartbeat took to be answered."""
        self._node_id = -1
        self._timer: Timer | None = None
        self._asking = False
        self._is_told = ""
        self._has_served = False
        self._stopped: Callable[[], None] = lambda: None
        self._began = 0.0
        self._last_answer = 0.0
        self.lease: BrokerLease | None = None
        """None: this node is the only voter, whose word is always enough."""

    # ---- from the start to serving -----------------------------------------------------------------------------

    def start(self) -> None:
        """Register, as often as it takes."""
        command = self._registration()
        self._node_id = command.node_id
        self._controllers.register(command, self._registered)

    def _registered(self, answer: Any) -> None:
        if self.state is LifecycleState.STOPPED or self.state is LifecycleState.STOPPING:
            return
        if not isinstance(answer, Registered):
            error = answer if isinstance(answer, DuramenError) else StorageError(f"registration failed: {answer}")
            if self._is_alone() and error.code not in _PASSING:
                raise error
            self._tell("broker-not-registered", error)
            self._later(RETRY_SECONDS, self.start)
            return
        self._is_told = ""
        self.epoch = answer.broker_epoch
        self.state = LifecycleState.FENCED
        self._on_registered(self.epoch)
        self.changed()  # a controller that is this node has it unfenced by now
        self._metadata.when_applied(self.epoch + 1, self._beat)

    def changed(self) -> None:
        """Brokers changed in the image: this one may be unfenced in it by now, or fenced."""
        if self.state not in (LifecycleState.FENCED, LifecycleState.RUNNING):
            return
        broker = self._metadata.image.brokers.get(self._node_id)
        if broker is None or broker.epoch != self.epoch:
            return
        if broker.fenced:
            if self.state is LifecycleState.RUNNING:
                self.state = LifecycleState.FENCED
                self._report("broker-fenced", epoch=self.epoch)
        elif self.state is LifecycleState.FENCED:
            self.state = LifecycleState.RUNNING
            if self._has_served:
                self._report("broker-unfenced", epoch=self.epoch)
            else:
                self._has_served = True
                self._on_serving()

    # ---- heartbeats ----------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Say that this process lives. The next one is due when this one is answered, an interval after it was sent."""
        if self._asking or self.state is LifecycleState.STOPPED:
            return
        self._asking = True
        sent = self._clock.monotonic()
        lease_from = 0.0 if self.lease is None else self.lease.now()
        stopping = self.state is LifecycleState.STOPPING
        command = BrokerHeartbeat(
            self._node_id, self.epoch, self._metadata.position - 1, wants_fence=False, wants_shutdown=stopping
        )
        self._controllers.ask(
            command, partial(self._answered, sent, lease_from), max(2 * self._interval, HEARTBEAT_SECONDS)
        )

    def _answered(self, sent: float, lease_from: float, answer: Any) -> None:
        self._asking = False
        if self.state is LifecycleState.STOPPED:
            return
        now = self._clock.monotonic()
        if isinstance(answer, HeartbeatAnswer):
            self._is_told = ""
            self._last_answer = now
            self.on_heartbeat(now - sent)
            if self.lease is not None and not answer.is_fenced:
                self.lease.renew(lease_from)
            if self.state is LifecycleState.STOPPING:
                self._stopping(now, answer.should_shut_down)
                return
            self.changed()
        elif self.state is LifecycleState.STOPPING:
            self._stopping(now, _is_unknown(answer) or (self._is_alone() and answer.code not in _PASSING))
            return
        else:
            self._tell("heartbeat-not-answered", answer)
            if _is_unknown(answer):  # somebody unregistered it, or another process took its id
                self.state = LifecycleState.STARTING
                self._later(RETRY_SECONDS, self.start)
                return
        self._later(max(0.0, sent + self._interval - now), self._beat)

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.call_later(seconds, call)

    def _tell(self, event: str, error: Any) -> None:
        """Once, until it goes well or something else is wrong."""
        text = str(error)
        if text != self._is_told:
            self._is_told = text
            self._report(event, error=text)

    # ---- the end -------------------------------------------------------------------------------------------------

    def stop(self, done: Callable[[], None], *, hands_over: bool = True) -> None:
        """Hand over what this broker leads; `done` when nobody needs it any more, or nothing more can be waited for.

        hands_over: else it ends as it is, and others lead when they find that it is gone.
        """
        if self.state in (LifecycleState.STOPPING, LifecycleState.STOPPED):
            return
        self._stopped = done
        if self.epoch < 0 or not hands_over:  # not registered: nothing is led here
            self.end()
            return
        self.state = LifecycleState.STOPPING
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._began = self._last_answer = self._clock.monotonic()
        image = self._metadata.image
        if image.brokers.keys() - {self._node_id}:
            led = sum(each.leader == self._node_id for topic in image.topics.values() for each in topic.partitions)
            self._report("broker-hands-over", leads=led)
        self._beat()

    def _stopping(self, now: float, may_end: bool) -> None:
        if may_end:
            self.end()
        elif now >= self._began + PATIENCE_SECONDS or now >= self._last_answer + NO_CONTROLLER_SECONDS:
            self.stop_waiting()
        else:
            self._later(STOPPING_SECONDS, self._beat)

    def stop_waiting(self) -> None:
        """A stop that waits for others to lead ends now."""
        if self.state is LifecycleState.STOPPING:
            self._report("broker-not-handed-over", seconds=round(self._clock.monotonic() - self._began, 1))
            self.end()

    def end(self) -> None:
        """At once: whoever asked for a stop is told that it is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.state = LifecycleState.STOPPED
        stopped, self._stopped = self._stopped, lambda: None
        stopped()


def _is_unknown(answer: Any) -> bool:
    """Whether the controller knows no broker of this id and epoch."""
    codes = (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED)
    return isinstance(answer, DuramenError) and answer.code in codes
