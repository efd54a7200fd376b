"""The consumers that one gateway holds, so many at a time; those that nobody uses end. Pure; time is an argument."""

from __future__ import annotations

from collections.abc import Mapping

from duramen.gateway.consumers.consumer_instance import ConsumerInstance
from duramen.gateway.consumers.consumer_place import ConsumerKey
from duramen.gateway.edge.problem import SOON, ProblemError


class HeldConsumers:
    """most: consumers at a time; idle_s: how long one may go unused."""

    def __init__(self, most: int, idle_s: float) -> None:
        self._most = most
        self._idle_s = idle_s
        self._held: dict[ConsumerKey, ConsumerInstance] = {}

    def __len__(self) -> int:
        return len(self._held)

    @property
    def all(self) -> Mapping[ConsumerKey, ConsumerInstance]:
        """All of them."""
        return dict(self._held)

    def check_room(self) -> None:
        """Problem 503 where there are as many as there may be."""
        if len(self._held) >= self._most:
            raise ProblemError(
                503,
                "overloaded",
                f"{self._most} consumers are as many as this gateway holds (gateway.consumers.max); delete one, or try "
                "again",
                SOON,
                retriable=True,
            )

    def add(self, key: ConsumerKey, consumer: ConsumerInstance) -> None:
        """Hold one more. Problem 409 where there is one of its name."""
        if key in self._held:
            raise consumer_exists()
        self._held[key] = consumer

    def find(self, key: ConsumerKey) -> ConsumerInstance | None:
        """The one of this name."""
        return self._held.get(key)

    def remove(self, key: ConsumerKey, consumer: ConsumerInstance) -> None:
        """It has ended."""
        if self._held.get(key) is consumer:
            del self._held[key]

    def idle(self, now_s: float) -> dict[ConsumerKey, ConsumerInstance]:
        """Those that were not used for too long."""
        return {key: consumer for key, consumer in self.unused.items() if now_s - consumer.last_used_s >= self._idle_s}

    @property
    def unused(self) -> dict[ConsumerKey, ConsumerInstance]:
        """Those that no request uses now."""
        return {key: consumer for key, consumer in self._held.items() if not consumer.turn.locked()}


def no_such_consumer(headers: Mapping[str, str] | None = None) -> ProblemError:
    """404."""
    return ProblemError(404, "no-such-instance", "Consumer instance not found.", headers)


def consumer_exists() -> ProblemError:
    """409."""
    return ProblemError(409, "consumer-exists", "Consumer instance with the specified name already exists.")
