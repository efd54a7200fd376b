"""Requests on topics: POST of /v1/topics/{topic}/records."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from duramen.errors import DuramenError
from duramen.gateway.edge import media_type
from duramen.gateway.edge.clock import GatewayClock
from duramen.gateway.edge.kafka_problems import problem_of
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.edge.report_response import NDJSON, ReportResponse
from duramen.gateway.edge.request_body import LineCutter, RequestBodies
from duramen.gateway.routes.route import Handler
from duramen.gateway.writes.topic_records import WantedRecord, wanted_record, wanted_records
from duramen.gateway.writes.topic_writes import KnownTopic, PartitionReceipt, TopicWrites


class TopicRequests:
    """Answers requests on topics."""

    def __init__(self, writes: TopicWrites, bodies: RequestBodies, clock: GatewayClock) -> None:
        self._writes = writes
        self._bodies = bodies
        self._clock = clock

    def handlers(self) -> dict[str, Handler]:
        """By operation, as the table of routes names them."""
        return {"writeRecords": self.post_records}

    async def post_records(self, request: Request) -> Response:
        """Write records; a receipt or a problem for each."""
        topic = request.path_params["topic"]
        given = request.headers.get("content-type") or media_type.JSON
        if media_type.essence(given) == NDJSON:
            return ReportResponse(self._report(request, await self._writes.topic(topic)))
        if not media_type.is_json(given):
            raise ProblemError(
                415, "unsupported-type", f"Content-Type: records are sent as application/json or {NDJSON}"
            )
        async with self._bodies.whole(request) as body:
            known = await self._writes.topic(topic)
            wanted = wanted_records(body, known.now_ms(self._clock))
            outcomes = await self._writes.write(known, wanted)
        problems = [each for each in outcomes if isinstance(each, ProblemError)]
        if len(problems) == len(outcomes) and len({each.code for each in problems}) == 1:
            raise problems[0]
        answer = {"records": [_shown(each) for each in outcomes]}
        return Response(msgspec.json.encode(answer), 207 if problems else 200, media_type="application/json")

    async def _report(self, request: Request, known: KnownTopic) -> AsyncGenerator[bytes]:
        """A line for each line of the body that is not blank, in their order, with its number in the body from 0; a
        problem without a line is the end of it."""
        number = 0
        try:
            async with aclosing(self._bodies.pieces(request, LineCutter())) as body:
                async for lines in body:
                    places = [at for at, line in enumerate(lines, number) if line.strip()]
                    outcomes = await self._write_lines(known, [line for line in lines if line.strip()])
                    shown = [{"line": at, **_shown(each)} for at, each in zip(places, outcomes, strict=True)]
                    number += len(lines)
                    if shown:
                        yield msgspec.json.Encoder().encode_lines(shown)
                    known = await self._writes.topic(known.metadata.name)
        except (ProblemError, DuramenError) as error:
            problem = problem_of(error) if isinstance(error, DuramenError) else error
            request.scope["duramen.problem"] = problem
            yield msgspec.json.Encoder().encode_lines([_shown(problem)])

    async def _write_lines(self, known: KnownTopic, lines: Sequence[bytes]) -> list[PartitionReceipt | ProblemError]:
        """What became of each line; one that is no record leaves the others as they are."""
        wanted: list[WantedRecord] = []
        wrong: dict[int, PartitionReceipt | ProblemError] = {}
        for number, line in enumerate(lines):
            try:
                wanted.append(wanted_record(line, known.now_ms(self._clock)))
            except ProblemError as problem:
                wrong[number] = problem
        written = iter(await self._writes.write(known, wanted))
        return [wrong[number] if number in wrong else next(written) for number in range(len(lines))]


def _shown(outcome: PartitionReceipt | ProblemError) -> dict[str, Any]:
    if isinstance(outcome, ProblemError):
        return {"error": msgspec.Raw(outcome.body())}
    return {"partition": outcome.partition, **msgspec.structs.asdict(outcome.receipt)}
