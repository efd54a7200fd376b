"""Trying again: one call at a time, or a request to each of many leaders, until a time limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from duramen.client.blocking.connection import BlockingConnection
from duramen.client.blocking.connection_pool import ConnectionPool, may_help
from duramen.client.blocking.deadline import Deadline
from duramen.client.protocol import fetch
from duramen.client.protocol.routes import Route
from duramen.errors import ClosedError, DuramenError, ErrorCode, KafkaError, NetworkError, OutcomeUnknownError
from duramen.model import TopicPartition

UNKNOWN_PATIENCE_S = 1.0
"""How long a topic that is not there is looked for: a node that has just heard of it may need a moment."""
_UNKNOWN = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}

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
                return attempt(deadline.at_most(self._request_timeout_s + wait_s))
            except DuramenError as error:
                self._pool.forget(route)
                self._pause(deadline, error)

    def _deadline(self, what: str, timeout_s: float | None) -> Deadline:
        if self._pool.closed:
            raise ClosedError("this client was closed")
        return Deadline(what, self._timeout_s if timeout_s is None else timeout_s)

    def _pause(self, deadline: Deadline, error: DuramenError) -> None:
        """Wait before the next attempt; raises the error when there is to be none."""
        if not may_help(error) or isinstance(error, OutcomeUnknownError):
            raise error
        if deadline.unknown_s(unknown=error.code in _UNKNOWN) > UNKNOWN_PATIENCE_S:
            raise error
        deadline.pause(error)

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
            until = deadline.at_most(self._request_timeout_s + wait_s)
            failed: DuramenError | None = None
            try:
                by_leader = self._by_leader(pending, until)
                sent = self._send_all(by_leader, ask(by_leader, until), until)
                for connection, tps, error in sent:
                    answers: dict[TopicPartition, Any] = {}
                    try:
                        if error is None:
                            patience = deadline.at_most(self._request_timeout_s + wait_s)
                            answers = parse(connection.receive(patience, deadline.end), tps)
                    except DuramenError as raised:
                        error = raised
                    for tp in tps:
                        answer = error or answers.get(tp) or fetch.missing(tp)
                        if isinstance(answer, DuramenError) and (
                            may_help(answer) or not isinstance(answer, KafkaError)
                        ):
                            failed = answer
                        else:
                            found[tp] = answer
            except DuramenError as error:
                failed = error
            if failed is not None:
                pending = [tp for tp in pending if tp not in found]
                self._pool.forget({tp.topic: None for tp in pending})
                self._pause(deadline, failed)
            else:
                pending = []
        return found

    def _by_leader(self, tps: Iterable[TopicPartition], until: float) -> dict[BlockingConnection, list[TopicPartition]]:
        self._pool.know((tp.topic for tp in tps), until)
        found: dict[BlockingConnection, list[TopicPartition]] = {}
        known: dict[int, BlockingConnection] = {}
        for tp in tps:
            leader = self._pool.leader(tp, until)
            if leader not in known:
                known[leader] = self._pool.to(leader, until)
            found.setdefault(known[leader], []).append(tp)
        return found

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
