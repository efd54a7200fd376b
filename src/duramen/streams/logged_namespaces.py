"""Namespaces at a back end that reads and appends to their topic itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from duramen.client.protocol import namespaces as spaces
from duramen.client.protocol.namespace_log import NamespaceLog
from duramen.client.protocol.namespaces import NAMESPACES_SETTINGS, NAMESPACES_TOPIC, NamespaceRecord
from duramen.client.protocol.record_table import AppendTable, ReadTable, TableAsk, TableReading, TableStretch
from duramen.client.protocol.stream_defaults import STREAM_DEFAULTS
from duramen.client.protocol.stream_names import name_of
from duramen.errors import ErrorCode, KafkaError
from duramen.streams.errors import NamespaceExistsError, NamespaceNotEmptyError, NoSuchNamespaceError
from duramen.streams.link import AppendTerms
from duramen.streams.namespace_link import DescribedNamespace
from duramen.streams.records import Row
from duramen.wire.batch import NewRecord
from duramen.wire.conditional_answer import ConditionalAnswer

_ROUNDS: Final = 3

Records = Mapping[str, NamespaceRecord]


class LoggedLink(Protocol):
    """The calls of such a back end that this needs."""

    async def topics(self) -> Sequence[str]:
        """Those with one partition."""
        ...

    async def create(self, topic: str, settings: Mapping[str, str]) -> str: ...

    async def delete(self, topic: str) -> None: ...

    async def append(self, topic: str, rows: Sequence[Row] | None, terms: AppendTerms) -> ConditionalAnswer: ...

    async def check_settings(self, namespace: str, settings: Mapping[str, str]) -> None:
        """KafkaError INVALID_CONFIG unless a new stream of a namespace may have these."""
        ...

    async def read_namespaces(self, offset: int, *, wait: bool) -> TableStretch | None:
        """See `ReadTable`."""
        ...


class LoggedNamespaces:
    """See `NamespaceLink`. Nothing is kept between two calls."""

    def __init__(self, link: LoggedLink) -> None:
        self._link = link

    async def defaults_for(self, stream: str) -> Mapping[str, str]:
        """See `NamespaceLink`."""
        return {**STREAM_DEFAULTS, **(spaces.defaults_for(stream, await self._records()) if "/" in stream else {})}

    async def paths(self, namespace: str, prefix: str, after: str, limit: int) -> list[str]:
        """See `NamespaceLink`."""
        front = f"{namespace}/" if namespace else ""
        every = spaces.listed(await self._records(), await self._link.topics())
        inner = (path[len(front) :] for path in every if path.startswith(front))
        return sorted(name for name in inner if name.startswith(prefix) and name > after)[:limit]

    async def describe(self, path: str) -> DescribedNamespace:
        """See `NamespaceLink`."""
        records = await self._records()
        found = spaces.described(path, records, await self._link.topics())
        if found is None:
            raise NoSuchNamespaceError(path)
        spaces.check_readable(found)
        return DescribedNamespace(found, spaces.defaults_for(path, records))

    async def put(self, path: str, defaults: Mapping[str, str], *, only_new: bool) -> NamespaceRecord:
        """See `NamespaceLink`."""
        if defaults:
            inherited = spaces.defaults_for(path, await self._records())
            await self._link.check_settings(path, {**STREAM_DEFAULTS, **inherited, **defaults})
        found: list[NamespaceRecord] = []

        def decide(records: Records) -> Sequence[NewRecord]:
            if only_new and path in records:
                raise NamespaceExistsError(path)
            change = spaces.put(path, defaults, records, _now_ms())
            found.append(change.record)
            return change.rows

        await self._change(decide)
        return found[-1]

    async def delete(self, path: str, *, recursive: bool) -> None:
        """See `NamespaceLink`."""
        records = await self._records()
        inner = any(spaces.is_below(each, path) for each in records)
        topics = await self._topics_in(path)
        if not topics and not inner and path not in records:
            raise NoSuchNamespaceError(path)
        if not recursive and (topics or inner):
            raise NamespaceNotEmptyError(path)
        deleted: set[str] = set()
        for _ in range(_ROUNDS):
            for topic in topics:
                await self._delete(topic)
            deleted.update(topics)
            topics = [topic for topic in await self._topics_in(path) if topic not in deleted]
            if not topics:
                break
        else:
            raise NamespaceNotEmptyError(path)
        gone = 0

        def decide(records: Records) -> Sequence[NewRecord]:
            nonlocal gone
            if not recursive and any(spaces.is_below(each, path) for each in records):
                raise NamespaceNotEmptyError(path)
            rows = spaces.removed(path, records, _now_ms())
            gone = len(rows)
            return rows

        await self._change(decide)
        while gone == spaces.REMOVED_AT_ONCE:
            await self._change(decide)

    async def _topics_in(self, path: str) -> list[str]:
        return [topic for topic in await self._link.topics() if name_of(path, topic)]

    async def _delete(self, topic: str) -> None:
        try:
            await self._link.delete(topic)
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise

    # ---- the topic -------------------------------------------------------------------------------------------

    async def _records(self) -> Records:
        log = NamespaceLog()
        await self._run(log.read())
        return log.records

    async def _change(self, decide: Callable[[Records], Sequence[NewRecord]]) -> None:
        await self._run(NamespaceLog().change(decide))

    async def _run(self, work: TableReading) -> None:
        try:
            ask: TableAsk = next(work)
            while True:
                if isinstance(ask, ReadTable):
                    ask = work.send(await self._link.read_namespaces(ask.offset, wait=ask.wait))
                else:
                    ask = work.send(await self._append(ask))
        except StopIteration:
            return

    async def _append(self, ask: AppendTable) -> bool:
        if not ask.expected:  # it may not be there
            try:
                await self._link.create(NAMESPACES_TOPIC, NAMESPACES_SETTINGS)
            except KafkaError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
        rows: list[Row] = [(key, value, list(headers), when) for key, value, headers, when in ask.rows]
        answer = await self._link.append(NAMESPACES_TOPIC, rows, AppendTerms(ask.expected))
        if answer.code not in (ErrorCode.NONE, ErrorCode.END_IS_ELSEWHERE):
            raise KafkaError(answer.code, f"topic {NAMESPACES_TOPIC}: {answer.message or answer.code.name}")
        return answer.code is ErrorCode.NONE


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
