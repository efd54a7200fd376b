"""Version 3: records written to a topic, one JSON object after another, each with a report as soon as it is stored."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from duramen.errors import DuramenError
from duramen.gateway.confluent.concatenated_json import ConcatenatedJson
from duramen.gateway.confluent.rest_errors import V3_JSON, RestError, rest_error
from duramen.gateway.confluent.rest_failures import no_such_partition, no_such_topic_here, rest_problem
from duramen.gateway.confluent.rest_links import RestLinks
from duramen.gateway.confluent.rest_records import RecordReport, WantedReport, produced_record, record_report
from duramen.gateway.confluent.v3_answers import V3Answers, json_body
from duramen.gateway.edge.clock import GatewayClock
from duramen.gateway.edge.problem import ProblemError, bad_request
from duramen.gateway.edge.report_response import ReportResponse
from duramen.gateway.edge.request_body import RequestBodies
from duramen.gateway.routes.route import Handler
from duramen.gateway.writes.topic_writes import KnownTopic, PartitionReceipt, TopicWrites

RecordOutcome = RecordReport | ProblemError

_VERSION: Final = 3


class V3Records:
    """Answers POST of records."""

    def __init__(self, answers: V3Answers, writes: TopicWrites, bodies: RequestBodies, clock: GatewayClock) -> None:
        self._answers = answers
        self._writes = writes
        self._bodies = bodies
        self._clock = clock

    def handlers(self) -> dict[str, Handler]:
        """By operation, as the table of routes names them."""
        return {"produceRecordsV3": self.post_records}

    async def post_records(self, request: Request) -> Response:
        """Write records. Of a body of known length with one record the answer is its report, and has its status."""
        json_body(request)
        try:
            links = await self._answers.links(request)
            topic = await self._topic(request)
        except DuramenError as error:
            raise rest_problem(error) from None
        reports = self._reports(request, links, topic)
        if "content-length" not in request.headers:
            return ReportResponse(_encoded(request, [], reports), V3_JSON)
        first: list[RecordOutcome] = await anext(reports, [])
        second: list[RecordOutcome] = await anext(reports, [])
        if not first:
            raise bad_request("body", "it has no record")
        if len(first) == 1 and not second:
            if isinstance(first[0], ProblemError):
                raise first[0]
            return Response(msgspec.json.encode(first[0]), media_type=V3_JSON)
        return ReportResponse(_encoded(request, [*first, *second], reports), V3_JSON)

    async def _topic(self, request: Request) -> KnownTopic:
        name = request.path_params["topic_name"]
        try:
            return await self._writes.topic(name)
        except ProblemError as problem:
            raise (no_such_topic_here(name) if problem.code == "no-such-topic" else problem) from None

    async def _reports(
        self, request: Request, links: RestLinks, topic: KnownTopic
    ) -> AsyncGenerator[list[RecordOutcome]]:
        """What became of the records of the body, in order; what is wrong with the body itself comes last."""
        number = 0
        try:
            async with aclosing(self._bodies.pieces(request, ConcatenatedJson())) as body:
                async for texts in body:
                    yield await self._write(links, topic, texts, number)
                    number += len(texts)
                    topic = await self._topic(request)
        except ProblemError as problem:
            yield [problem]
        except DuramenError as error:
            yield [rest_problem(error)]

    async def _write(
        self, links: RestLinks, topic: KnownTopic, texts: Sequence[bytes], number: int
    ) -> list[RecordOutcome]:
        """What became of each; one that is no record leaves the others as they are."""
        wanted: dict[int, WantedReport] = {}
        outcomes: dict[int, RecordOutcome] = {}
        for place, text in enumerate(texts):
            try:
                each = produced_record(text, topic.now_ms(self._clock))
            except ProblemError as problem:
                outcomes[place] = _numbered(problem, number + place)
                continue
            named = each.wanted.partition
            if named is not None and named not in topic.metadata.partitions:
                outcomes[place] = no_such_partition()
            else:
                wanted[place] = each
        written = await self._writes.write(topic, [each.wanted for each in wanted.values()])
        for (place, each), found in zip(wanted.items(), written, strict=True):
            outcomes[place] = (
                record_report(links.cluster_id, topic.metadata.name, each, found.partition, found.receipt.offset)
                if isinstance(found, PartitionReceipt)
                else found
            )
        return [outcomes[place] for place in range(len(texts))]


def _numbered(problem: ProblemError, number: int) -> ProblemError:
    return ProblemError(problem.status, problem.code, f"record {number + 1} of the body: {problem.detail}")


async def _encoded(
    request: Request, first: Sequence[RecordOutcome], reports: AsyncGenerator[list[RecordOutcome]]
) -> AsyncGenerator[bytes]:
    """A line for each report."""
    async with aclosing(reports):
        if first:
            yield _lines(request, first)
        async for some in reports:
            yield _lines(request, some)


def _lines(request: Request, outcomes: Sequence[RecordOutcome]) -> bytes:
    shown: list[RecordReport | RestError] = []
    for each in outcomes:
        if isinstance(each, ProblemError):
            request.scope["duramen.problem"] = each
            shown.append(rest_error(_VERSION, each))
        else:
            shown.append(each)
    return msgspec.json.Encoder().encode_lines(shown)
