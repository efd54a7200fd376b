"""Claims, descriptions, aborts and releases of sinks, and their list (keys 10000, 10003 to 10006). Version 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from duramen.errors import ClosedError, DuramenError, ErrorCode
from duramen.machines.sink.commands import (
    Aborted,
    AbortStaged,
    Claimed,
    ClaimEpoch,
    DescribeSink,
    ReleaseSink,
    SinkDescription,
)
from duramen.wire.messages.abort_staged import AbortStagedResponse
from duramen.wire.messages.claim_sink_epoch import ClaimSinkEpochResponse
from duramen.wire.messages.describe_sink import DescribeSinkResponse
from duramen.wire.messages.list_sinks import ListSinksResponse
from duramen.wire.messages.release_sink import ReleaseSinkResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

_CODES = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.RECORD_LIST_TOO_LARGE,
}
"""What a failed append to the sinks' own log means to their caller."""


def sink_error(error: DuramenError) -> ErrorCode:
    """The code a sink's caller is answered with."""
    if isinstance(error, ClosedError):
        return ErrorCode.NOT_COORDINATOR
    return _CODES.get(error.code, error.code)


def is_denied(request: Request) -> bool:
    """Whether this principal may not use the sink; then it has been answered."""
    if request.body.sink_id not in request.denied:
        return False
    request.reply(
        request.row.api.response.new(
            error_code=int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
            error_message="not allowed to use this sink",
        )
    )
    return True


def _submit(request: Request, command: Any, answered: Callable[[Any], Any]) -> None:
    """Have the sink's coordinator decide; `answered` makes the response of what is no error, or
    None where that is not the end of it."""

    def reply(answer: Any) -> None:
        if isinstance(answer, DuramenError):
            response = request.row.api.response
            request.reply(response.new(error_code=int(sink_error(answer)), error_message=str(answer)))
        elif (response := answered(answer)) is not None:
            request.reply(response)

    if not is_denied(request):
        request.services.sinks.submit(request.body.sink_id, command, reply)


def handle_claim(request: Request) -> None:
    """Make this run the sink's only one; the first claim of all creates the internal topics."""
    body, services = request.body, request.services
    most = services.config.integer("duramen.sink.staged.max.bytes")

    def claimed(answer: Claimed) -> Any:
        return ClaimSinkEpochResponse.new(epoch=answer.epoch, last_batch_id=answer.last_batch, max_staged_bytes=most)

    def ensured(code: ErrorCode) -> None:
        if code is not ErrorCode.NONE:
            request.reply(ClaimSinkEpochResponse.new(error_code=int(code)))
        else:
            command = ClaimEpoch(body.sink_id, body.run_id, body.ephemeral, services.sinks.new_producer_id())
            _submit(request, command, claimed)

    if not is_denied(request):
        services.sinks.ensure_topics(ensured)


def handle_abort(request: Request) -> None:
    """Let staged records go, unless they are committed."""
    body = request.body
    handles = None if body.handles is None else tuple(body.handles)
    command = AbortStaged(body.sink_id, body.epoch, body.batch_id, handles)
    released = 0

    def aborted(answer: Aborted) -> Any:
        nonlocal released
        released += answer.released
        if answer.left:
            _submit(request, command, aborted)
            return None
        return AbortStagedResponse.new(already_committed=answer.already_committed, released=released)

    _submit(request, command, aborted)


def handle_release(request: Request) -> None:
    """Forget a sink that is done for good."""
    body = request.body
    _submit(request, ReleaseSink(body.sink_id, body.epoch), lambda _: ReleaseSinkResponse.new())


def handle_describe(request: Request) -> None:
    """Who owns the sink, its batches and what is staged."""

    def described(answer: SinkDescription) -> Any:
        return DescribeSinkResponse.new(
            epoch=answer.epoch,
            run_id=answer.run_id,
            ephemeral=answer.ephemeral,
            producer_id=answer.producer_id,
            last_batch_id=answer.last_batch,
            last_metadata=answer.last_metadata,
            batches=[DescribeSinkResponse.SinkBatch(**batch._asdict()) for batch in answer.batches],
            staged_handles=answer.staged_handles,
            staged_bytes=answer.staged_bytes,
        )

    _submit(request, DescribeSink(request.body.sink_id), described)


def handle_list(request: Request) -> None:
    """The sinks of every coordinator that runs here, by name."""
    found = []
    for coordinator in request.services.sinks.running():
        for sink in coordinator.machine.sinks.values():
            found.append(
                ListSinksResponse.ListedSink(
                    sink_id=sink.id,
                    epoch=sink.epoch,
                    ephemeral=sink.ephemeral,
                    last_batch_id=sink.last_batch,
                    unfinished_batches=sum(1 for _ in sink.unfinished()),
                    staged_handles=len(sink.staged),
                    staged_bytes=sink.staged_bytes,
                )
            )
    denied = request.denies(request.row.operation, request.row.resource, [sink.sink_id for sink in found])
    shown = sorted((sink for sink in found if sink.sink_id not in denied), key=lambda sink: str(sink.sink_id))
    request.reply(ListSinksResponse.new(sinks=shown))
