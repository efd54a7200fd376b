"""Trying again: one call at a time, or a request to each of many leaders, until a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from duramen.client.blocking.connection import BlockingConnection
from duramen.client.blocking.connection_pool import ConnectionPool
from duramen.client.protocol.deadline import Deadline
from duramen.client.protocol.outcomes import settled
from duramen.client.protocol.routes import Route
from duramen.errors import ClosedError, DuramenError, NetworkError
from duramen.model import TopicPartition

_T = TypeVar("_T")
Asked = tuple[BlockingConnection, int, Any, int | None]
"""A request: the connection, the API key, the message, and the highest version it can be sent in."""


class Retries:
    """Runs the attempts of one client. timeout_s: of a call; request_timeout_s: of one attempt."""

    def __init__(self, pool: ConnectionPool, timeout_s: float, request_timeout_s: float) -> None:
        self._pool = pool
        self._timeout_s = timeout_s
        self._request_timeout_s = request_timeout_s

    def retry(
        self,
        what: str,
        route: Route,
        attempt: Callable[[float], _T],
        timeout_s: float | None = None,
        wait_s: float = 0.0,
    ) -> _T:
        """The result of an attempt, which gets the moment (monotonic) by which it ends."""
        deadline = self._deadline(what, timeout_s)
        while True:
            try:
                return attempt(deadline.at_most(self._request_timeout_s + wait_s, time.monotonic()))
            except DuramenError as error:
                self._pool.view.forget(route)
                time.sleep(deadline.pause_s(error, time.monotonic()))

    def _deadline(self, what: str, timeout_s: float | None) -> Deadline:
        if self._pool.closed:
            raise ClosedError("this client was closed")
        return Deadline(what, self._timeout_s if timeout_s is None else timeout_s, time.monotonic())

    def from_leaders(
        self,
        what: str,
        wanted: Iterable[TopicPartition],
        ask: Callable[[Mapping[BlockingConnection, list[TopicPartition]], float], Iterable[Asked]],
        parse: Callable[[Any, list[TopicPartition]], dict[TopicPartition, Any]],
        timeout_s: float | None,
        wait_s: float = 0.0,
    ) -> dict[TopicPartition, Any]:
        """Answers for every partition: a request to each leader, all sent before the first answer is waited for.

        Partitions whose refusal may pass, or whose leader is lost, are asked for again until the time limit.
        """
        deadline = self._deadline(what, timeout_s)
        found: dict[TopicPartition, Any] = {}
        pending = list(wanted)
        while pending:
            until = deadline.at_most(self._request_timeout_s + wait_s, time.monotonic())
            failed: DuramenError | None = None
            try:
                by_leader = self._by_leader(pending, until)
                sent = self._send_all(by_leader, ask(by_leader, until), until)
                for connection, tps, error in sent:
                    answers: dict[TopicPartition, Any] = {}
                    try:
                        if error is None:
                            patience = deadline.at_most(self._request_timeout_s + wait_s, time.monotonic())
                            answers = parse(connection.receive(patience, deadline.end), tps)
                    except DuramenError as raised:
                        error = raised
                    for refusal in settled(tps, answers, error, found).values():
                        failed = refusal
            except DuramenError as error:
                failed = error
            if failed is None:
                break
            pending = [tp for tp in pending if tp not in found]
            self._pool.view.forget({tp.topic: None for tp in pending})
            time.sleep(deadline.pause_s(failed, time.monotonic()))
        return found

    def _by_leader(self, tps: list[TopicPartition], until: float) -> dict[BlockingConnection, list[TopicPartition]]:
        by_node = self._pool.find(self._pool.view.by_leader(tps), until)
        return {self._pool.to(node, until): share for node, share in by_node.items()}

    @staticmethod
    def _send_all(
        by_leader: Mapping[BlockingConnection, list[TopicPartition]], requests: Iterable[Asked], until: float
    ) -> list[tuple[BlockingConnection, list[TopicPartition], DuramenError | None]]:
        sent: list[tuple[BlockingConnection, list[TopicPartition], DuramenError | None]] = []
        for connection, key, request, highest in requests:
            try:
                connection.send(key, request, until, highest)
                sent.append((connection, by_leader[connection], None))
            except NetworkError as error:
                sent.append((connection, by_leader[connection], error))
        return sent
