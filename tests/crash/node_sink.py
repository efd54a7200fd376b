"""A sink's driver on a broker whose disk is taped: what it asked to be committed, and what it was told of it."""

from __future__ import annotations

from typing import Any

from tests.crash.node_run import NodeRun
from tests.worlds.broker_world import NOW

from duramen.wire.batch import build_batch
from duramen.wire.messages import API

CLAIM, STAGE, COMMIT = 10000, 10001, 10002


class SinkRun:
    """One sink of one topic; a batch's values count as asked for when its commit is."""

    def __init__(self, run: NodeRun, name: str) -> None:
        self._run = run
        self._name = name
        self._epoch = -1
        self._handles: list[int] = []
        self._values: list[bytes] = []

    @property
    def claimed(self) -> bool:
        """Whether the last run was given an epoch."""
        return self._epoch >= 0

    def claim(self, run_id: str) -> None:
        """A new run takes over."""

        def told(reply: Any) -> None:
            if self._run._accepted(reply.error_code, "a claim"):
                self._epoch = reply.epoch

        self._run.ask(CLAIM, 0, told, sink_id="sink", run_id=run_id, ephemeral=False)
        self._run.settle()

    def stage(self, batch_id: int, *values: bytes, meant: bool = True) -> None:
        """Stage one piece; meant: it is to be committed, too."""
        request = API[STAGE].request
        data = build_batch([(b"k", value, (), NOW) for value in values])
        topic = request.StageTopic(name=self._name, partitions=[request.StagePartition(index=0, records=data)])

        def told(reply: Any) -> None:
            accepted = self._run._accepted(reply.error_code, "a stage")
            if accepted and self._run._accepted(reply.topics[0].partitions[0].error_code, "a piece") and meant:
                self._handles.append(reply.topics[0].partitions[0].handle)
                self._values += values

        fields = {"sink_id": "sink", "epoch": self._epoch, "batch_id": batch_id, "task": "t", "timeout_ms": 1000}
        self._run.ask(STAGE, 0, told, topics=[topic], **fields)
        self._run.settle()

    def commit(self, batch_id: int) -> None:
        """Commit what was staged and meant."""
        handles, values = self._handles, self._values
        self._handles, self._values = [], []
        life = self._run.promise.topics[self._name][-1]
        life.asked += values

        def told(reply: Any) -> None:
            if self._run._accepted(reply.error_code, "a commit of a sink") and handles:
                first = reply.topics[0].partitions[0].base_offset
                life.stored |= {first + index: value for index, value in enumerate(values)}

        fields = {"sink_id": "sink", "epoch": self._epoch, "batch_id": batch_id, "timeout_ms": 1000}
        self._run.ask(COMMIT, 0, told, handles=handles, metadata=b"m", **fields)
        self._run.settle()
