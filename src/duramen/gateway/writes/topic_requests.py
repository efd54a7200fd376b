"""Requests on topics: POST of /v1/topics/{topic}/records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from duramen.client.aio import AsyncCluster
from duramen.client.protocol.metadata import TopicMetadata
from duramen.errors import DuramenError, ErrorCode, KafkaError
from duramen.gateway.edge import media_type
from duramen.gateway.edge.clock import GatewayClock
from duramen.gateway.edge.kafka_problems import problem_of
from duramen.gateway.edge.metrics import GatewayMetrics
from duramen.gateway.edge.problem import ProblemError, bad_request
from duramen.gateway.edge.report_response import NDJSON, ReportResponse
from duramen.gateway.edge.request_body import RequestBodies
from duramen.gateway.routes.route import Handler
from duramen.gateway.streams.receipt_header import ReceiptBody, receipt
from duramen.gateway.writes.partition_writes import PartitionWrites, record_size
from duramen.gateway.writes.topic_records import TopicPlaces, WantedRecord, wanted_record, wanted_records
from duramen.gateway.writes.write_queue import BATCH_MAX_BYTES
from duramen.model import TopicPartition
from duramen.wire.batch import NewRecord

_FRESH_S: Final = 2.0
_KNOWN_MAX: Final = 10_000


class PartitionReceipt(NamedTuple):
    """Where a record went."""

    partition: int
    receipt: ReceiptBody


class _KnownTopic(NamedTuple):
    """A topic as it was at a moment, and where its next records go."""

    at_s: float
    metadata: TopicMetadata
    places: TopicPlaces


class TopicRequests:
    """Answers requests on topics."""

    def __init__(
        self,
        cluster: AsyncCluster,
        writes: PartitionWrites,
        bodies: RequestBodies,
        clock: GatewayClock,
        metrics: GatewayMetrics,
    ) -> None:
        self._cluster = cluster
        self._writes = writes
        self._bodies = bodies
        self._clock = clock
        self._metrics = metrics
        self._known: dict[str, _KnownTopic] = {}

    def handlers(self) -> dict[str, Handler]:
        """By operation, as the table of routes names them."""
        return {"writeRecords": self.post_records}

    async def post_records(self, request: Request) -> Response:
        """Write records; a receipt or a problem for each."""
        topic = request.path_params["topic"]
        given = request.headers.get("content-type") or media_type.JSON
        if media_type.essence(given) == NDJSON:
            return ReportResponse(self._report(request, await self._topic(topic)))
        if not media_type.is_json(given):
            raise ProblemError(
                415, "unsupported-type", f"Content-Type: records are sent as application/json or {NDJSON}"
            )
        async with self._bodies.whole(request) as body:
            wanted = wanted_records(body, self._clock.now_ms())
            known = await self._topic(topic)
            outcomes = await self._write(known, wanted)
        problems = [each for each in outcomes if isinstance(each, ProblemError)]
        if len(problems) == len(outcomes) and len({each.code for each in problems}) == 1:
            raise problems[0]
        answer = {"records": [_shown(each) for each in outcomes]}
        return Response(msgspec.json.encode(answer), 207 if problems else 200, media_type="application/json")

    async def _report(self, request: Request, known: _KnownTopic) -> AsyncGenerator[bytes]:
        """A line for each line of the body, in their order; a problem without a line is the end of it."""
        number = 0
        try:
            async with aclosing(self._bodies.lines(request)) as body:
                async for lines in body:
                    outcomes = await self._write_lines(known, lines)
                    shown = [{"line": at, **_shown(each)} for at, each in enumerate(outcomes, number)]
                    number += len(lines)
                    yield msgspec.json.Encoder().encode_lines(shown)
                    known = await self._topic(known.metadata.name)
        except (ProblemError, DuramenError) as error:
            problem = problem_of(error) if isinstance(error, DuramenError) else error
            request.scope["duramen.problem"] = problem
            yield msgspec.json.Encoder().encode_lines([_shown(problem)])

    async def _write_lines(self, known: _KnownTopic, lines: Sequence[bytes]) -> list[PartitionReceipt | ProblemError]:
        """What became of each line; one that is no record leaves the others as they are."""
        wanted: list[WantedRecord] = []
        wrong: dict[int, PartitionReceipt | ProblemError] = {}
        for number, line in enumerate(lines):
            try:
                wanted.append(wanted_record(line, self._clock.now_ms()))
            except ProblemError as problem:
                wrong[number] = problem
        written = iter(await self._write(known, wanted))
        return [wrong[number] if number in wrong else next(written) for number in range(len(lines))]

    async def _write(self, known: _KnownTopic, wanted: Sequence[WantedRecord]) -> list[PartitionReceipt | ProblemError]:
        """What became of each record."""
        outcomes: dict[int, PartitionReceipt | ProblemError] = {}
        partitions = known.metadata.partitions
        shares: dict[int, list[tuple[int, NewRecord]]] = {}
        for number, each in enumerate(wanted):
            partition = known.places.partition(each, record_size(each.record), len(partitions))
            if partition in partitions:
                shares.setdefault(partition, []).append((number, each.record))
            else:
                outcomes[number] = bad_request("partition", f"the topic has {len(partitions)}, numbered from 0")
        writes = [self._write_share(known.metadata, *share, outcomes) for share in shares.items()]
        if len(writes) == 1:
            await writes[0]
        else:
            await asyncio.gather(*writes)
        self._metrics.records_written.inc(sum(isinstance(each, PartitionReceipt) for each in outcomes.values()))
        return [outcomes[number] for number in range(len(wanted))]

    async def _write_share(
        self,
        topic: TopicMetadata,
        partition: int,
        share: Sequence[tuple[int, NewRecord]],
        outcomes: dict[int, PartitionReceipt | ProblemError],
    ) -> None:
        """What becomes of the records of one partition, which are appended in their order."""
        tp = TopicPartition(topic.name, partition)
        parts = _parts(share)
        while parts:
            part = parts.pop(0)
            try:
                written = await self._writes.write(tp, topic.topic_id, [record for _, record in part])
            except ProblemError as problem:
                if problem.code == "record-too-large" and len(part) > 1:  # together, for a topic that takes less
                    middle = len(part) // 2
                    parts[:0] = [part[:middle], part[middle:]]
                    continue
                if problem.code == "no-such-stream":
                    self._known.pop(topic.name, None)
                    problem = _no_such_topic(topic.name)
                outcomes.update((number, problem) for number, _ in part)
            else:
                for offset, (number, _) in enumerate(part, written.first):
                    outcomes[number] = PartitionReceipt(partition, receipt(written.batch, offset))

    async def _topic(self, topic: str) -> _KnownTopic:
        """The topic, as it was a moment ago at the earliest. Problem 404, 403."""
        now_s = self._clock.monotonic_s()
        known = self._known.get(topic)
        if known is not None and now_s - known.at_s < _FRESH_S:
            return known
        found = (await self._cluster.metadata([topic])).topics.get(topic)
        if found is None or found.error in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
            self._known.pop(topic, None)
            raise _no_such_topic(topic)
        if found.error:
            raise problem_of(KafkaError(found.error, f"{topic}: {found.error.name}"))
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        places = TopicPlaces() if known is None else known.places
        self._known[topic] = known = _KnownTopic(now_s, found, places)
        return known


def _parts(share: Sequence[tuple[int, NewRecord]]) -> list[list[tuple[int, NewRecord]]]:
    """The records of one partition in parts that a batch takes; a larger record is a part of its own."""
    parts: list[list[tuple[int, NewRecord]]] = []
    room = -1
    for each in share:
        size = record_size(each[1])
        if size > room:
            parts.append([])
            room = BATCH_MAX_BYTES
        parts[-1].append(each)
        room -= size
    return parts


def _shown(outcome: PartitionReceipt | ProblemError) -> dict[str, Any]:
    if isinstance(outcome, ProblemError):
        return {"error": msgspec.Raw(outcome.body())}
    return {"partition": outcome.partition, **msgspec.structs.asdict(outcome.receipt)}


def _no_such_topic(topic: str) -> ProblemError:
    return ProblemError(404, "no-such-topic", f"there is no topic {topic}")
