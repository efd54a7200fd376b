"""Producer ids for idempotent producers: handed out from blocks that the metadata log recorded first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from duramen.errors import DuramenError, ErrorCode, KafkaError
from duramen.machines.metadata.commands import AllocateProducerIds, ProducerIds


class Decider(Protocol):
    """Has the active controller decide, wherever it is."""

    def ask(self, command: Any, done: Callable[[Any], None]) -> object: ...


class ProducerIdSource:
    """One broker's current block. A restart forgets what is left of it: ids are plenty, reuse is forbidden."""

    def __init__(self, controller: Decider, node_id: int) -> None:
        self._controller = controller
        self._node_id = node_id
        self.broker_epoch = -1
        """Until this node is registered."""
        self._next = 0
        self._end = 0
        self._waiting: deque[Callable[[int | KafkaError], None]] = deque()
        self._asking = False

    def next(self, answer: Callable[[int | KafkaError], None]) -> None:
        """`answer(id)` now, or once another block is durable; KafkaError when none can be had."""
        self._waiting.append(answer)
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._next < self._end:
            producer_id = self._next
            self._next += 1
            self._waiting.popleft()(producer_id)
        if self._waiting and not self._asking:
            self._asking = True
            self._controller.ask(AllocateProducerIds(self._node_id, self.broker_epoch), self._allocated)

    def _allocated(self, block: Any) -> None:
        self._asking = False
        if isinstance(block, ProducerIds):
            first, count = block
            self._next, self._end = first, first + count
            self._serve()
            return
        code = block.code if isinstance(block, DuramenError) else ErrorCode.COORDINATOR_NOT_AVAILABLE
        waiting, self._waiting = self._waiting, deque()
        for answer in waiting:
            answer(KafkaError(code, str(block)))
