"""A node that answers requests by hand, on any Network port: what a channel's other side may do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from duramen.client.loop.node_client import NodeRequest, call
from duramen.ports import Network, Part, Transport
from duramen.wire.frame import RequestHeader, encode_response, parse_request_header
from duramen.wire.messages import API

Answer = Callable[[RequestHeader, Any], Any]


def echo(header: RequestHeader, request: Any) -> Any:
    """Metadata whose controller is the correlation id."""
    return API[header.api_key].response.new(controller_id=header.correlation_id)


def ask() -> NodeRequest:
    """What `echo` answers."""
    return call("Metadata", 12, topics=None)


def fetched(records: bytes) -> Any:
    """A Fetch response of one partition with these records."""
    structs = API[1].response
    partition = structs.PartitionData(partition_index=0, high_watermark=1, records=records)
    return structs.new(responses=[structs.FetchableTopicResponse(topic_id=bytes(16), partitions=[partition])])


class AnsweringNode:
    """Listens at host:port. `answer` makes each response, None leaves the request without one (`held`)."""

    def __init__(self, network: Network, host: str, port: int = 0, answer: Answer | None = echo) -> None:
        self.answer = answer
        self.accepted: list[Transport] = []
        self.held: list[RequestHeader] = []
        self.requests: list[Any] = []
        self.on_accept: Callable[[Transport], None] = lambda transport: None
        self.listener = network.listen(host, port, self._accept)

    def _accept(self, transport: Transport) -> None:
        self.accepted.append(transport)
        received = bytearray()
        unsent: list[Part] = []
        transport.set_reader(lambda: self._read(transport, received, unsent))
        self.on_accept(transport)

    def _read(self, transport: Transport, received: bytearray, unsent: list[Part]) -> None:
        buffer = bytearray(1 << 16)
        try:
            count = transport.recv_into(memoryview(buffer))
        except OSError:
            count = 0
        if count == 0:
            transport.close()
            return
        received += buffer[: max(0, count)]
        while len(received) >= 4 and len(received) >= (end := 4 + int.from_bytes(received[:4], "big")):
            frame = memoryview(bytes(received[4:end]))
            del received[:end]
            header = parse_request_header(frame)
            request = API[header.api_key].request.decode(frame, header.api_version, header.body_position)
            self.requests.append(request)
            response = self.answer(header, request) if self.answer is not None else None
            if response is None:
                self.held.append(header)
            else:
                self.reply(transport, header, response, unsent)

    def reply(self, transport: Transport, header: RequestHeader, response: Any, unsent: list[Part]) -> None:
        """Send it, now or as the connection takes it."""
        parts = encode_response(API[header.api_key], header.api_version, header.correlation_id, response)
        unsent.append(b"".join(bytes(part) for part in parts if not isinstance(part, tuple)))
        self._send(transport, unsent)

    def _send(self, transport: Transport, unsent: list[Part]) -> None:
        data = b"".join(bytes(part) for part in unsent if not isinstance(part, tuple))
        try:
            sent = transport.send([data])
        except OSError:
            transport.close()
            return
        unsent[:] = [data[sent:]] if sent < len(data) else []
        transport.set_writer((lambda: self._send(transport, unsent)) if unsent else None)
