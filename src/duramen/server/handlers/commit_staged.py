"""CommitStaged: what was staged for a batch of a sink becomes part of its topics, once (key 10002). Version 0.

The commit point is one record of the coordinator. The reply waits until every share of the batch can be read; a batch
that is committed already is answered the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duramen.errors import DuramenError, ErrorCode, KafkaError
from duramen.machines.sink.commands import COMMITTED, FINISHED, BatchCommitted, CommitStaged, ShareDone
from duramen.machines.sink.state import SinkCommit
from duramen.partition.sinks.commit_applier import batch_key
from duramen.server.handlers.sink_admin import is_denied, sink_error
from duramen.wire.messages.commit_staged import CommitStagedResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

UNKNOWN = 0
READABLE = 2


class CommitCall:
    """One CommitStaged request until it is answered."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._state = UNKNOWN
        self._already = False
        self._commit: SinkCommit
        self._timer = request.services.clock.call_later(max(request.body.timeout_ms, 0) / 1000, self._expire)

    def start(self) -> None:
        body = self.request.body
        command = CommitStaged(body.sink_id, body.epoch, body.batch_id, tuple(body.handles), body.metadata)
        self.request.services.sinks.submit(body.sink_id, command, self._decided)

    def _decided(self, answer: BatchCommitted | DuramenError) -> None:
        if isinstance(answer, DuramenError):
            self._fail(answer)
            return
        self._state = COMMITTED
        self._already = answer.already
        body, sinks = self.request.body, self.request.services.sinks
        commit = sinks.commit(body.sink_id, body.batch_id)
        if self.request.parts is not None:
            return  # it has waited too long, and was told so
        if commit is None:
            self._fail(KafkaError(ErrorCode.NOT_COORDINATOR, "the sink's coordinator has moved"))
            return
        self._commit = commit
        if commit.state == FINISHED:
            self._readable(
                tuple(ShareDone(share.base_offset, share.last_offset, share.dropped) for share in commit.shares)
            )
        elif not sinks.materialiser.when_readable(batch_key(body.sink_id, commit), self._readable):
            self._fail(KafkaError(ErrorCode.NOT_COORDINATOR, "the broker stops"))

    def _readable(self, shares: tuple[ShareDone, ...]) -> None:
        image = self.request.services.image
        topics: dict[bytes, Any] = {}
        for share, done in zip(self._commit.shares, shares, strict=True):
            topic_id, index = share.target
            topic = topics.get(topic_id)
            if topic is None:
                name = image.topic_name(topic_id) or ""
                topic = CommitStagedResponse.CommittedTopic(name=name, topic_id=topic_id, partitions=[])
                topics[topic_id] = topic
            topic.partitions.append(
                CommitStagedResponse.CommittedPartition(index=index, records=share.records, **done._asdict())
            )
        self._reply(
            CommitStagedResponse.new(state=READABLE, already_committed=self._already, topics=list(topics.values()))
        )

    def _fail(self, error: DuramenError) -> None:
        self._reply(
            CommitStagedResponse.new(
                error_code=int(sink_error(error)),
                error_message=str(error),
                state=self._state,
                already_committed=self._already,
            )
        )

    def _expire(self) -> None:
        if self._state != UNKNOWN:
            key = batch_key(self.request.body.sink_id, self._commit)
            self.request.services.sinks.materialiser.forget(key, self._readable)
        text = "not yet committed, as far as is known" if self._state == UNKNOWN else "committed, and on its way"
        self._fail(KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{text}; ask again"))

    def _reply(self, response: Any) -> None:
        self._timer.cancel()
        self.request.reply(response)


def handle(request: Request) -> None:
    """Commit, and answer when everything can be read."""
    if not is_denied(request):
        CommitCall(request).start()
