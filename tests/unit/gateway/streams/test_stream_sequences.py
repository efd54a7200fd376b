"""The last Stream-Seq of a stream, as it is read on: what another leader has may not be what was read."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from duramen.client.protocol.fetch import FetchedBytes
from duramen.client.protocol.list_offsets import ListedOffset
from duramen.dlsn import LogEnd
from duramen.errors import ErrorCode, KafkaError
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.streams import stream_sequences
from duramen.gateway.streams.stream_appends import AppendWish, StreamAppends
from duramen.gateway.streams.stream_expiry import NEVER
from duramen.gateway.streams.stream_sequences import SEQUENCE_HEADER, LastSequence, StreamSequences
from duramen.gateway.streams.stream_topics import StreamInfo
from duramen.model import TopicId, TopicPartition
from duramen.wire.batch import build_batch, records
from duramen.wire.messages.conditional_append import ConditionalAppendResponse

INFO = StreamInfo("a", TopicId(bytes(16)), "text/plain", NEVER, 0)


class SequencedLog:
    """A cluster with one partition. sequences: of record n, b"" for one without."""

    def __init__(self, *sequences: bytes) -> None:
        self.sequences = list(sequences)
        self.read = 0

    async def list_offsets(self, wanted: Any) -> Any:
        return {tp: ListedOffset(0, -1, 0) for tp in wanted}

    async def fetch(self, tp: TopicPartition, offset: int, *_: object, **__: object) -> FetchedBytes:
        end = len(self.sequences)
        if offset > end:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        await asyncio.sleep(0)
        self.read += end - offset
        data = b"".join(
            build_batch([(None, b"", [(SEQUENCE_HEADER, each)] if each else [], 1)], base_offset=offset + number)
            for number, each in enumerate(self.sequences[offset:])
        )
        return FetchedBytes(tp, offset, memoryview(data), end, end, end, 0, [])


def read_on(log: SequencedLog, last: LastSequence, end: LogEnd) -> bytes | None:
    asyncio.run(StreamSequences(cast(Any, log)).read_on(INFO, last, end))
    assert last.end == end
    return last.sequence


def test_one_leader_is_read_on_behind_what_is_known() -> None:
    log, last = SequencedLog(b"1", b""), LastSequence()
    assert read_on(log, last, LogEnd(2, 0)) == b"1"
    log.read = 0
    log.sequences += [b""]
    assert (read_on(log, last, LogEnd(3, 0)), log.read) == (b"1", 1)
    log.sequences += [b"4"]
    assert read_on(log, last, LogEnd(4, 0)) == b"4"


@pytest.mark.parametrize("end", [LogEnd(3, 5), LogEnd(1, 0)])
def test_a_sequence_that_was_lost_is_forgotten(end: LogEnd) -> None:
    log, last = SequencedLog(b"1", b"2"), LastSequence()
    assert read_on(log, last, LogEnd(2, 0)) == b"2"
    log.sequences = [b"1", b"", b""][: end.offset]
    assert read_on(log, last, end) == b"1"


def test_an_end_that_never_comes_is_waited_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_sequences, "_COMMIT_S", 0.01)
    last = LastSequence()
    with pytest.raises(KafkaError) as gone:
        read_on(SequencedLog(b"1"), last, LogEnd(2, 0))
    assert gone.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert last.end is None


class LedLog(SequencedLog):
    """The same, with a leader that appends under conditions. epochs: of its records; epoch: in which it leads."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[int] = []
        self.epoch = 0

    async def call(self, _tp: TopicPartition, _key: int, request: Any, **_: object) -> Any:
        end, epoch = len(self.epochs), self.epochs[-1] if self.epochs else -1
        answer = ConditionalAppendResponse.new(end_offset=end, end_epoch=epoch, leader_epoch=self.epoch)
        if request.expected_offset not in (-1, end):
            answer.error_code = int(ErrorCode.END_IS_ELSEWHERE)
        elif request.expected_epoch not in (-1, epoch):
            answer.error_code = int(ErrorCode.OFFSET_OUT_OF_RANGE)
        elif request.records is not None:
            (record,) = records(request.records, max_bytes=1000)
            self.sequences.append(record.headers[0][1] or b"")
            self.epochs.append(self.epoch)
            answer.base_offset = answer.last_offset = end
            answer.end_offset, answer.end_epoch = end + 1, self.epoch
        return answer

    def power_cut(self, kept: int, *refilled: bytes) -> None:
        """All but the first `kept` records are lost, and others came."""
        self.epoch += 1
        self.sequences[kept:] = refilled
        self.epochs[kept:] = [self.epoch] * len(refilled)


@pytest.mark.parametrize("refilled", [(), (b"",), (b"", b"")])
def test_a_sequence_that_a_power_cut_took_is_taken_again(refilled: tuple[bytes, ...]) -> None:
    log = LedLog()
    appends = StreamAppends(cast(Any, log), cast(Any, None), cast(Any, None), 1000)

    async def append(sequence: bytes) -> int:
        wish = AppendWish([(None, b"v", (), 1)], sequence=sequence)
        return (await appends.append(INFO, wish)).base_offset

    async def story() -> None:
        assert [await append(each) for each in (b"1", b"2", b"3")] == [0, 1, 2]
        with pytest.raises(ProblemError):
            await append(b"3")
        log.power_cut(2, *refilled)
        with pytest.raises(ProblemError):
            await append(b"2")
        assert await append(b"3") == 2 + len(refilled)
        log.power_cut(1, b"", b"")
        assert await append(b"4") == 3, "one that is above all is appended behind what is there now"
        with pytest.raises(ProblemError):
            await append(b"3")

    asyncio.run(story())
