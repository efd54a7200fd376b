"""A controller that decides nothing: by it a handler says, in its API's own words, that nobody could be asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from duramen.errors import DuramenError
from duramen.machines.metadata.commands import NewTopic

if TYPE_CHECKING:
    from duramen.partition.metadata.quorum import Quorum
    from duramen.partition.replica.partition import Partition
    from duramen.server.api.services import ControllerService


class RefusingController:
    """Answers every command with the error; what is only looked up is the real one's."""

    is_active = False

    def __init__(self, real: ControllerService, error: DuramenError) -> None:
        self._real = real
        self._error = error
        self.quorum: Quorum = real.quorum

    @property
    def partition(self) -> Partition:
        return self._real.partition

    def decide(self, command: Any, done: Callable[[Any], None], *, makes_room: bool = False) -> None:
        done(self._error)

    def heartbeat(self, command: Any, done: Callable[[Any], None]) -> None:
        done(self._error)

    def submit(self, command: Any, done: Callable[[Any], None]) -> None:
        done(self._error)

    def new_topic(self, name: str) -> NewTopic:
        return self._real.new_topic(name)

    def new_uuid(self) -> bytes:
        return self._real.new_uuid()
