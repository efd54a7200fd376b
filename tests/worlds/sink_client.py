"""A driver and its tasks, as they speak to the broker."""

from __future__ import annotations

from typing import Any

from tests.worlds.broker_world import NOW, InProcess, Line

from duramen.errors import ErrorCode
from duramen.wire.batch import batches, build_batch, records
from duramen.wire.messages import API

CLAIM, STAGE, COMMIT, DESCRIBE, ABORT, RELEASE, LIST = range(10000, 10007)


def batch(*values: str, key: bytes | None = b"k", **fields: Any) -> bytes:
    return bytes(build_batch([(key, value.encode(), (), NOW) for value in values], **fields))


class Sink:
    """One run of a sink's program on one connection."""

    def __init__(
        self, server: InProcess, sink_id: str = "sink", run_id: str = "run-1", ephemeral: bool = False
    ) -> None:
        self.server = server
        self.line: Line = server.connect()
        self.id = sink_id
        self.claimed = self.line.call(CLAIM, 0, sink_id=sink_id, run_id=run_id, ephemeral=ephemeral)
        self.epoch = self.claimed.epoch

    def stage(self, batch_id: int, *pieces: tuple[str, int, bytes], **fields: Any) -> Any:
        request = API[STAGE].request
        topics = [
            request.StageTopic(name=topic, partitions=[request.StagePartition(index=index, records=data)])
            for topic, index, data in pieces
        ]
        arguments = {"sink_id": self.id, "epoch": self.epoch, "batch_id": batch_id, "task": "t", "timeout_ms": 10_000}
        return self.line.call(STAGE, 0, **{**arguments, "topics": topics, **fields})

    def handle(self, batch_id: int, topic: str, *values: str, partition: int = 0) -> int:
        """Stage one piece that is accepted."""
        answer = self.stage(batch_id, (topic, partition, batch(*values)))
        assert answer.error_code == 0, answer
        entry = answer.topics[0].partitions[0]
        assert entry.error_code == 0, entry
        return int(entry.handle)

    def ask_commit(self, batch_id: int, *handles: int, metadata: bytes | None = None, timeout_ms: int = 10_000) -> None:
        self.line.ask(
            COMMIT, 0, sink_id=self.id, epoch=self.epoch, batch_id=batch_id, handles=list(handles), metadata=metadata,
            timeout_ms=timeout_ms,
        )  # fmt: skip

    def commit(self, batch_id: int, *handles: int, **fields: Any) -> Any:
        self.ask_commit(batch_id, *handles, **fields)
        self.server.run()
        return self.committed()

    def committed(self) -> Any:
        return self.line.answer(COMMIT, 0)

    def abort(self, batch_id: int, *handles: int) -> Any:
        named = list(handles) or None
        return self.line.call(ABORT, 0, sink_id=self.id, epoch=self.epoch, batch_id=batch_id, handles=named)

    def describe(self) -> Any:
        return self.server.connect().call(DESCRIBE, 0, sink_id=self.id)


def values(server: InProcess, topic: str, partition: int = 0) -> list[str]:
    """What a consumer reads."""
    line = server.connect()
    found: list[str] = []
    request = API[1].request
    while True:
        part = request.FetchPartition(partition=partition, fetch_offset=len(found), partition_max_bytes=1 << 20)
        reply = line.call(
            1, 12, max_wait_ms=0, min_bytes=1, topics=[request.FetchTopic(topic=topic, partitions=[part])]
        )
        data = memoryview(reply.responses[0].partitions[0].records or b"")
        if not data:
            return found
        for position, header in batches(data):
            for record in records(data[position:], header, max_bytes=1 << 20):
                if record.offset >= len(found):
                    found.append((record.value or b"").decode())


def code(number: int) -> str:
    return ErrorCode(number).name


def offsets(answer: Any) -> list[tuple[int, int]]:
    return [(p.base_offset, p.last_offset) for topic in answer.topics for p in topic.partitions]


def jump(server: InProcess, milliseconds: int) -> None:
    """Much time passes in which nothing is due more than once."""
    server.clock.now_ms += milliseconds
    server.pass_ms(3000)


def alter(server: InProcess, topic: str, **settings: str) -> None:
    request = API[33].request
    configs = [request.AlterableConfig(name=key.replace("_", "."), value=value) for key, value in settings.items()]
    resource = request.AlterConfigsResource(resource_type=2, resource_name=topic, configs=configs)
    reply = server.connect().call(33, 2, resources=[resource], validate_only=False)
    assert reply.responses[0].error_code == 0, reply
