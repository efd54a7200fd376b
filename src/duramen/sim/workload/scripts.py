"""Scripts of the simulated clients: what each does, step by step, and what it waits for in between.

A script is a generator that yields what it waits for: a request or several (pipelined on one connection, answered in
order), or a number of seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeVar

from duramen.client.loop.node_client import NodeRequest
from duramen.ports import Clock

Wish = NodeRequest | list[NodeRequest] | float
Value = TypeVar("Value")
Steps = Generator[Wish, Any, Value]
"""A part of a script that ends with a value."""
Script = Generator[Wish, Any, None]


class Sender(Protocol):
    """What a script's requests go out by."""

    def send(self, wanted: NodeRequest, on_reply: Callable[[Any], None]) -> None:
        """Send the request; `on_reply` gets the response, or None when it was lost."""


class Actor:
    """Runs one script on one client, from its first step to its last."""

    def __init__(self, client: Sender, clock: Clock, script: Script) -> None:
        self.client = client
        self.finished = False
        self._clock = clock
        self._script = script
        clock.call_soon(lambda: self._resume(None))

    def _resume(self, answer: Any) -> None:
        try:
            wish = self._script.send(answer)
        except StopIteration:
            self.finished = True
            return
        if isinstance(wish, list):
            self._send_all(wish)
        elif isinstance(wish, NodeRequest):
            self.client.send(wish, self._resume_soon)
        else:
            self._clock.call_later(wish, lambda: self._resume(None))

    def _resume_soon(self, answer: Any) -> None:
        self._clock.call_soon(lambda: self._resume(answer))

    def _send_all(self, wishes: list[NodeRequest]) -> None:
        answers: list[Any] = [None] * len(wishes)
        missing = len(wishes)

        def on_reply(place: int, answer: Any) -> None:
            nonlocal missing
            answers[place] = answer
            missing -= 1
            if not missing:
                self._resume_soon(answers)

        for place, wish in enumerate(wishes):
            self.client.send(wish, lambda answer, place=place: on_reply(place, answer))  # type: ignore[misc]
