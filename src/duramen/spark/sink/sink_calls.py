"""The calls of the staged commit (docs/protocol.md), as the sink's driver and tasks make them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from duramen.client.protocol.deadline import Deadline
from duramen.client.protocol.outcomes import may_help
from duramen.client.protocol.routes import SINK, CoordinatorKey, Route
from duramen.errors import DeadlineError, ErrorCode, KafkaError
from duramen.model import NO_TOPIC_ID
from duramen.wire.messages import API

CLAIM: Final = 10000
STAGE: Final = 10001
COMMIT: Final = 10002
DESCRIBE: Final = 10003
ABORT: Final = 10004
RELEASE: Final = 10005

COMMITTED: Final = 1
"""State of a batch: nothing can undo it, and not all of it can be read."""

_log = logging.getLogger(__name__)


class Caller(Protocol):
    """What of `client.Cluster` is used here."""

    def call(
        self,
        route: Route,
        key: int,
        request: Any,
        *,
        code_of: Any = ...,
        timeout_s: float | None = ...,
        wait_s: float = ...,
    ) -> Any: ...


@dataclass(frozen=True, slots=True)
class Claim:
    """A run's hold of a sink, as the driver got it and as its tasks carry it."""

    sink_id: str
    epoch: int
    last_batch_id: int
    max_staged_bytes: int
    """Of one partition in one call."""


@dataclass(frozen=True, slots=True)
class SinkShare:
    """Record batches for one partition, one behind the other; a call has at most one for each partition."""

    topic: str
    partition: int
    records: bytes | bytearray


class SupersededError(KafkaError):
    """Another run has claimed the sink: this one must stop, for ever."""


class SinkCalls:
    """One sink's conversation with its coordinator. Every call tries again what may pass, up to `timeout_s`.

    Raises SupersededError when a newer run owns the sink, KafkaError for what is refused otherwise.
    """

    def __init__(self, cluster: Caller, sink_id: str, *, timeout_s: float, wait_s: float) -> None:
        """wait_s: how long the coordinator may take to one request before it is asked again."""
        self._cluster = cluster
        self._sink_id = sink_id
        self._timeout_s = timeout_s
        self._wait_s = wait_s

    def claim(self, run_id: str, *, ephemeral: bool) -> Claim:
        """Make this run the sink's owner; the same run may ask as often as it likes."""
        request = API[CLAIM].request.new(sink_id=self._sink_id, run_id=run_id, ephemeral=ephemeral)
        response = self._call(CLAIM, request)
        return Claim(self._sink_id, response.epoch, response.last_batch_id, response.max_staged_bytes)

    def describe(self) -> Any:
        """The DescribeSink response."""
        return self._call(DESCRIBE, API[DESCRIBE].request.new(sink_id=self._sink_id))

    def stage(self, epoch: int, batch_id: int, task: str, shares: Sequence[SinkShare]) -> list[int] | None:
        """Store the shares durably, visible to nobody; the handles that hold them, each once.

        None: this batch was committed before, there is nothing left to do. A share whose partition cannot take it just
        now is offered again until the time limit.
        """
        deadline = Deadline(f"StageBatch of {self._sink_id}", self._timeout_s, time.monotonic())
        handles: dict[int, int] = {}
        while True:
            missing = [place for place in range(len(shares)) if place not in handles]
            answers = self._stage_once(epoch, batch_id, task, [shares[place] for place in missing])
            if answers is None:
                return None
            failed: KafkaError | None = None
            for place, answer in zip(missing, answers, strict=True):
                if isinstance(answer, KafkaError):
                    if not may_help(answer):
                        raise answer
                    failed = answer
                else:
                    handles[place] = answer
            if failed is None:
                return list(dict.fromkeys(handles[place] for place in range(len(shares))))
            time.sleep(deadline.pause_s(failed, time.monotonic()))

    def _stage_once(
        self, epoch: int, batch_id: int, task: str, shares: Sequence[SinkShare]
    ) -> list[int | KafkaError] | None:
        """One request; per share its handle or why there is none."""
        message = API[STAGE].request
        partitions: dict[str, list[Any]] = {}
        for share in shares:
            entry = message.StagePartition(index=share.partition, records=share.records)
            partitions.setdefault(share.topic, []).append(entry)
        topics = [
            message.StageTopic(name=name, topic_id=NO_TOPIC_ID, partitions=entries)
            for name, entries in partitions.items()
        ]
        request = message.new(
            sink_id=self._sink_id,
            epoch=epoch,
            batch_id=batch_id,
            task=task,
            timeout_ms=int(self._wait_s * 1000),
            topics=topics,
        )
        response = self._call(STAGE, request)
        if response.already_committed:
            return None
        answers = {(topic.name, entry.index): entry for topic in response.topics for entry in topic.partitions}
        return [self._handle(answers.get((share.topic, share.partition)), share) for share in shares]

    def _handle(self, answer: Any | None, share: SinkShare) -> int | KafkaError:
        what = f"{share.topic}-{share.partition}"
        if answer is None:
            return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"StageBatch: the answer leaves {what} out")
        return self._refusal(answer, what) if answer.error_code else int(answer.handle)

    def commit(self, epoch: int, batch_id: int, handles: Iterable[int], metadata: bytes) -> Any:
        """The batch's records become readable, all of them, once; returns when they are. The CommitStaged response.

        While the node says that the batch is committed and on its way, there is no time limit, as nothing can undo it:
        whoever takes it for failed may write it again. When the node goes then, this returns without knowing more.
        """
        wait_s = min(self._wait_s, self._timeout_s / 2)  # so that an answer comes before the time limit
        request = API[COMMIT].request.new(
            sink_id=self._sink_id,
            epoch=epoch,
            batch_id=batch_id,
            handles=list(handles),
            metadata=metadata,
            timeout_ms=int(wait_s * 1000),
        )
        began = time.monotonic()
        known: Any = None

        def code_of(answer: Any) -> int:
            nonlocal known
            code = int(answer.error_code)
            if answer.state == COMMITTED:
                known = answer
                return ErrorCode.NONE if code == ErrorCode.REQUEST_TIMED_OUT else code
            return code

        while True:
            try:
                response = self._ask(COMMIT, request, code_of, wait_s)
            except DeadlineError as error:
                if known is None:
                    raise
                text = "sink %s: batch %d is committed, and the node went before all of it could be read: %s"
                _log.warning(text, self._sink_id, batch_id, error)
                return known
            if not response.error_code:
                return response
            if response.error_code != ErrorCode.REQUEST_TIMED_OUT:
                raise self._refusal(response, API[COMMIT].name)
            text = "sink %s: batch %d is committed and on its way to its partitions, for %d s now"
            _log.warning(text, self._sink_id, batch_id, time.monotonic() - began)

    def abort(self, epoch: int, batch_id: int, handles: Iterable[int] | None) -> bool:
        """Let staged records go (None: all of the batch's); True where the batch was committed: nothing is undone."""
        listed = None if handles is None else list(handles)
        request = API[ABORT].request.new(sink_id=self._sink_id, epoch=epoch, batch_id=batch_id, handles=listed)
        return bool(self._call(ABORT, request).already_committed)

    def release(self, epoch: int) -> None:
        """Forget the sink: it will not be used again."""
        self._call(RELEASE, API[RELEASE].request.new(sink_id=self._sink_id, epoch=epoch))

    def _call(self, key: int, request: Any) -> Any:
        response = self._ask(key, request, lambda answer: int(answer.error_code), self._wait_s)
        if response.error_code:
            raise self._refusal(response, API[key].name)
        return response

    def _ask(self, key: int, request: Any, code_of: Callable[[Any], int], wait_s: float) -> Any:
        route = CoordinatorKey(self._sink_id, SINK)
        return self._cluster.call(route, key, request, code_of=code_of, timeout_s=self._timeout_s, wait_s=wait_s)

    def _refusal(self, answer: Any, what: str) -> KafkaError:
        try:
            code = ErrorCode(answer.error_code)
        except ValueError:
            code = ErrorCode.UNKNOWN_SERVER_ERROR
        if code == ErrorCode.PRODUCER_FENCED:
            return SupersededError(
                code,
                f"{what}: another run writes as sink {self._sink_id} now, and this one must stop. Two queries on one "
                "checkpoint, or with one sinkId? Each needs its own",
            )
        return KafkaError(code, f"{what} of sink {self._sink_id}: {answer.error_message or code.name}")
