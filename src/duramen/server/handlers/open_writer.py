"""OpenWriter (key 10030, ours): open one partition of an exclusive topic for a writer, or give it up. Version 0.

The writer's producer id comes from the blocks that InitProducerId gives from: none was ever given before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duramen.errors import ErrorCode, KafkaError, StreamClosedError
from duramen.partition.replica.exclusive_writer import Opened, check_opening, open_writer, release_writer
from duramen.server.handlers.conditional_append import find_stream
from duramen.server.handlers.produce_fast_path import UNKNOWN_OUTCOME
from duramen.wire.messages.open_writer import OpenWriterResponse

if TYPE_CHECKING:
    from duramen.partition.replica.partition import Partition
    from duramen.server.api.request import Request


def handle(request: Request) -> None:
    """Reply when the opening is committed, or when the time is over."""
    call = OpenWriterCall(request)
    request.services.appends.wait_for(call)
    call.start()


class OpenWriterCall:
    """One request until it is answered."""

    __slots__ = ("_partition", "_request", "deadline")

    def __init__(self, request: Request) -> None:
        self._request = request
        self._partition: Partition | None = None
        self.deadline = request.started + max(request.body.timeout_ms, 0) / 1000

    def start(self) -> None:
        """See `handle`."""
        body, services = self._request.body, self._request.services
        try:
            self._partition = find_stream(self._request, body.topic_name, body.topic_id, body.partition)
            check_opening(self._partition, body.name, may_be_empty=body.release and body.producer_id >= 0)
        except KafkaError as error:
            self._settle(error)
            return
        if body.release:
            now = services.clock.wall_ms()
            release_writer(self._partition, body.name, body.producer_id, now, self._settle)
        else:
            services.producer_ids.next(self._numbered)

    def _numbered(self, producer_id: int | KafkaError) -> None:
        request, partition = self._request, self._partition
        if isinstance(producer_id, KafkaError) or partition is None or self not in request.services.appends.outstanding:
            if isinstance(producer_id, KafkaError):
                self._settle(producer_id)
            return  # the time is over: who was told so is not to fence anybody later
        open_writer(partition, request.body.name, producer_id, request.services.clock.wall_ms(), self._settle)

    def expire(self) -> None:
        """The request's timeout passed."""
        self._settle(KafkaError(ErrorCode.REQUEST_TIMED_OUT, UNKNOWN_OUTCOME))

    def _settle(self, result: Opened | KafkaError) -> None:
        """The answer; one that comes after the timeout changes nothing."""
        self._request.services.appends.outstanding.pop(self, None)
        response = OpenWriterResponse.new()
        if self._partition is not None and self._partition.last_txid is not None:
            response.last_txid = self._partition.last_txid
        if isinstance(result, KafkaError):
            is_closed = isinstance(result, StreamClosedError)
            response.error_code = int(ErrorCode.STREAM_CLOSED if is_closed else result.code)
            response.error_message = result.message
            if self._partition is not None:
                response.end_offset = self._partition.log_end_offset
        else:
            response.producer_id = result.producer_id
            response.producer_epoch = 0 if result.producer_id >= 0 else -1
            response.end_offset, response.leader_epoch = result.end_offset, result.leader_epoch
        self._request.reply(response)
