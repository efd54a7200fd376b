"""A node on asyncio whose answers a test decides: out of order, in halves, late, or none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from duramen.errors import ErrorCode
from duramen.wire.batch import build_batch, stamp
from duramen.wire.frame import RequestHeader, encode_response, parse_request_header
from duramen.wire.messages import API

VERSIONS = {0: (3, 13), 1: (4, 18), 2: (1, 10), 3: (0, 13), 10: (0, 6), 18: (0, 4), 22: (0, 5)}
TOPIC_ID = b"i" * 16


class Asked:
    """A request that came, and the way to answer it."""

    def __init__(self, node: AsyncNode, writer: asyncio.StreamWriter, header: RequestHeader, request: Any) -> None:
        self.node = node
        self.header = header
        self.request = request
        self._writer = writer

    @property
    def key(self) -> int:
        return self.header.api_key

    def bytes_of(self, response: Any) -> bytes:
        """The whole frame of a response to it."""
        api, header = API[self.key], self.header
        parts = encode_response(api, header.api_version, header.correlation_id, response)
        return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]

    def answer(self, response: Any) -> None:
        self.send(self.bytes_of(response))

    def send(self, data: bytes) -> None:
        """Bytes as they are."""
        self._writer.write(data)

    def hang_up(self) -> None:
        self._writer.close()


class AsyncNode:
    """Listens on a port of its own. `behave` is called with each request; where it returns True, that is in `asked`."""

    def __init__(
        self, behave: Callable[[Asked], bool | None], versions: Mapping[int, tuple[int, int]] = VERSIONS
    ) -> None:
        self.behave = behave
        self.versions = versions
        self.port = 0
        self.connections = 0
        self.open = 0
        self.seen: list[Asked] = []
        """All requests but ApiVersions."""
        self.asked: asyncio.Queue[Asked] = asyncio.Queue()
        self.reading = asyncio.Event()
        self.reading.set()
        self._writers: list[asyncio.StreamWriter] = []

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> asyncio.Future[None]:
        return asyncio.ensure_future(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        self._writers.append(writer)
        try:
            while True:
                await self.reading.wait()
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = memoryview(await reader.readexactly(size))
                header = parse_request_header(frame)
                request = API[header.api_key].request.decode(frame, header.api_version, header.body_position)
                self._take(Asked(self, writer, header, request))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.transport.abort()

    def _take(self, asked: Asked) -> None:
        if asked.key == 18:
            message = API[18].response
            ranges = [
                message.ApiVersion(api_key=k, min_version=a, max_version=b) for k, (a, b) in self.versions.items()
            ]
            asked.answer(message.new(api_keys=ranges))
            return
        self.seen.append(asked)
        if self.behave(asked):
            self.asked.put_nowait(asked)

    def hang_up(self) -> None:
        """On everyone."""
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def async_node(
    behave: Callable[[Asked], bool | None] = lambda asked: True,
    versions: Mapping[int, tuple[int, int]] = VERSIONS,
) -> AsyncIterator[AsyncNode]:
    node = AsyncNode(behave, versions)
    server = await asyncio.start_server(node.serve, "127.0.0.1", 0)
    node.port = server.sockets[0].getsockname()[1]
    try:
        yield node
    finally:
        server.close()
        node.reading.set()
        node.hang_up()
        await server.wait_closed()
        async with asyncio.timeout(5):
            while node.open:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0)  # the transports' turn


def metadata(asked: Asked, *ports: int, leader: int = 0) -> Any:
    """One topic "t" with partition 0. The nodes listen at these ports, or it is the one that was asked; their ids are
    their places."""
    message = API[3].response
    partition = message.MetadataResponsePartition(error_code=0, partition_index=0, leader_id=leader)
    topic = message.MetadataResponseTopic(error_code=0, name="t", topic_id=TOPIC_ID, partitions=[partition])
    nodes = enumerate(ports or [asked.node.port])
    brokers = [message.MetadataResponseBroker(node_id=number, host="127.0.0.1", port=port) for number, port in nodes]
    return message.new(brokers=brokers, controller_id=0, topics=[topic])


def produced(offset: int, code: ErrorCode = ErrorCode.NONE) -> Any:
    message = API[0].response
    partition = message.PartitionProduceResponse(index=0, error_code=int(code), base_offset=offset)
    return message.new(
        responses=[message.TopicProduceResponse(name="", topic_id=TOPIC_ID, partition_responses=[partition])]
    )


def fetched(records: bytes = b"", code: ErrorCode = ErrorCode.NONE) -> Any:
    message = API[1].response
    partition = message.PartitionData(partition_index=0, error_code=int(code), high_watermark=9, records=records)
    return message.new(responses=[message.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[partition])])


def a_batch(value: bytes, offset: int = 0, **fields: int) -> bytes:
    batch = build_batch([(None, value, (), 1000)], **fields)
    stamp(batch, offset, 0)
    return bytes(batch)
