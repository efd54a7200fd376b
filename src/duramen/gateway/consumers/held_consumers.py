"""The consumers that one gateway holds, so many at a time; those that nobody uses end. Pure; time is an argument."""

from __future__ import annotations

from collections.abc import Collection

from duramen.gateway.consumers.consumer_instance import ConsumerInstance
from duramen.gateway.edge.problem import SOON, ProblemError


class HeldConsumers:
    """most: consumers at a time; idle_s: how long one may go unused."""

    def __init__(self, most: int, idle_s: float) -> None:
        self._most = most
        self._idle_s = idle_s
        self._held: dict[tuple[str, str], ConsumerInstance] = {}

    def __len__(self) -> int:
        return len(self._held)

    @property
    def all(self) -> Collection[ConsumerInstance]:
        """All of them."""
        return list(self._held.values())

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

    def add(self, group: str, consumer: ConsumerInstance) -> None:
        """Hold one more. Problem 409 where there is one of its name."""
        key = (group, consumer.name)
        if key in self._held:
            raise ProblemError(409, "consumer-exists", "Consumer instance with the specified name already exists.")
        self._held[key] = consumer

    def find(self, group: str, name: str) -> ConsumerInstance | None:
        """The one of this name."""
        return self._held.get((group, name))

    def remove(self, group: str, name: str) -> None:
        """It has ended."""
        self._held.pop((group, name), None)

    def idle(self, now_s: float) -> list[tuple[str, ConsumerInstance]]:
        """Those that were not used for too long, with their groups."""
        return [
            (group, consumer)
            for (group, _), consumer in self._held.items()
            if not consumer.turn.locked() and now_s - consumer.last_used_s >= self._idle_s
        ]


def no_such_consumer() -> ProblemError:
    """404."""
    return ProblemError(404, "no-such-instance", "Consumer instance not found.")
