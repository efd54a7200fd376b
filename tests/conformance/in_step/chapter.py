"""A short story of random requests that two servers get in step, over topics, groups and transactional ids of its own.

A chapter ends where the two answer differently: what follows would only be its consequence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, ClassVar, NamedTuple

from tests.conformance.in_step.side import Side, Spec

from duramen.wire.messages import API

LIST_OFFSETS, CREATE_TOPICS, DESCRIBE_TRANSACTIONS = 2, 19, 65
READS = {2, 9, 10, 15, 16, 32, 61, 65, 66, 69, 74}
"""What may be asked again without changing anything."""
NOT_NOW = {14, 15, 16, 51}
"""A coordinator that is not there yet, CONCURRENT_TRANSACTIONS: clients come again, and so is it done here."""
PATIENCE_S = 3.0
AGAIN_S = 0.5
PAUSE_S = 0.02


class Asked(NamedTuple):
    """One request, and what each side answered."""

    chapter: str
    key: int
    version: int
    spec: Spec
    words: str
    plain: dict[str, Any]
    differences: tuple[str, ...]


class Ended(Exception):  # noqa: N818 - nothing is wrong
    """The chapter is over."""


class Chapter:
    """See the module; kinds of chapters are subclasses."""

    topics: ClassVar[dict[str, int]] = {}

    def __init__(self, name: str, random: Random, sides: list[Side], on_asked: Callable[[Asked], bool]) -> None:
        """on_asked: is told of each request, and says whether the chapter may go on."""
        self.name = name
        self.random = random
        self.sides = sides
        self.last: Asked | None = None
        self._on_asked = on_asked

    def begin(self) -> None:
        """Create its topics."""
        for side in self.sides:
            side.begin(self.name + "-")
            if not self.topics:
                continue
            wanted = [
                {"name": self.own(topic), "num_partitions": count, "replication_factor": 1}
                for topic, count in self.topics.items()
            ]
            response, plain = side.ask(CREATE_TOPICS, 7, {"topics": wanted, "timeout_ms": 20_000})
            if response is None or any(each.error_code for each in response.topics):
                raise RuntimeError(f"{side.name} does not create topics: {plain}")
            for topic in response.topics:
                side.know_topic(topic.name, topic.topic_id)
        for topic, count in self.topics.items():
            self._await_leader(self.own(topic), count)

    def _await_leader(self, topic: str, count: int) -> None:
        for side in self.sides:
            until = time.monotonic() + PATIENCE_S
            while time.monotonic() < until:
                parts = [{"partition_index": number, "timestamp": -1} for number in range(count)]
                response, _ = side.ask(
                    LIST_OFFSETS, 7, {"replica_id": -1, "topics": [{"name": topic, "partitions": parts}]}
                )
                if response and not any(each.error_code for one in response.topics for each in one.partitions):
                    break
                time.sleep(PAUSE_S)

    def step(self) -> None:
        """Send one random request."""
        raise NotImplementedError

    def end(self) -> None:
        """Undo what others would notice."""

    def own(self, name: str) -> str:
        return f"{self.name}-{name}"

    def maybe(self, chance: float) -> bool:
        return self.random.random() < chance

    def ask(self, key: int, version: int, spec: Spec) -> dict[str, Any]:
        """Each side's response, None where it hung up; Ended where they differ."""
        responses: dict[str, Any] = {}
        plain: dict[str, Any] = {}
        for side in self.sides:
            responses[side.name], plain[side.name] = self._patient(side, key, version, spec)
        until = time.monotonic() + AGAIN_S
        while key in READS and differences(*plain.values()) and time.monotonic() < until:
            time.sleep(PAUSE_S * 2)
            for side in self.sides:
                responses[side.name], plain[side.name] = side.call(key, version, spec)
        words = f"{API[key].name} v{version} {said(spec)}"
        self.last = Asked(self.name, key, version, spec, words, plain, tuple(differences(*plain.values())))
        if not self._on_asked(self.last) or None in responses.values():
            raise Ended
        return responses

    def _patient(self, side: Side, key: int, version: int, spec: Spec) -> tuple[Any, Any]:
        until = time.monotonic() + AGAIN_S
        while True:
            found = side.call(key, version, spec)
            if not NOT_NOW & set(codes(found[1])) or time.monotonic() > until:
                return found
            time.sleep(PAUSE_S)

    def await_markers(self, *ids: str) -> bool:
        """Until no transaction of these ids is being ended; whether one still is in the end."""
        hangs = False
        for side in self.sides:
            until = time.monotonic() + AGAIN_S
            while True:
                response, _ = side.ask(DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": list(ids)})
                states = [each.transaction_state for each in response.transaction_states] if response else []
                if not any(each.startswith("Prepare") for each in states):
                    break
                if time.monotonic() > until:
                    hangs = True
                    break
                time.sleep(PAUSE_S / 2)
        return hangs


def codes(plain: Any) -> Iterator[int]:
    """Every error code of an answer."""
    if isinstance(plain, dict):
        for name, each in plain.items():
            if name.endswith("error_code"):
                yield each
            else:
                yield from codes(each)
    elif isinstance(plain, list):
        for each in plain:
            yield from codes(each)


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Where two answers differ: `path: this | that`, without the numbers of elements."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted(one.keys() | other.keys()):
            yield from differences(one.get(name), other.get(name), f"{path}.{name}" if path else name)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for here, there in zip(one, other, strict=True):
            yield from differences(here, there, path + "[]")
    elif one != other:
        yield f"{path}: {short(one)} | {short(other)}"


def short(value: Any) -> str:
    text = f"{len(value)} elements" if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def said(spec: Any) -> str:
    """A request in a line."""
    if isinstance(spec, dict):
        return "{" + ", ".join(f"{name}={said(each)}" for name, each in spec.items()) + "}"
    if isinstance(spec, list):
        return "[" + ", ".join(map(said, spec)) + "]"
    if callable(spec):
        return str(getattr(spec, "says", "its own"))
    return f"<{len(spec)} bytes>" if isinstance(spec, bytes | bytearray) else repr(spec)
