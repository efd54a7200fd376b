"""Handles of many partitions: what one call stages, committed and moved as a whole, each share once and in order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.worlds.broker_world import InProcess, after_power_cut
from tests.worlds.sink_client import Sink, batch, code, offsets, values

from duramen.machines.sink import machine as rules
from duramen.partition.sinks import staging
from duramen.server.coordinators import sinks
from duramen.wire.messages import API

WIDE = 40


def create_wide(server: InProcess, partitions: int = WIDE) -> None:
    topic = API[19].request.CreatableTopic(name="wide", num_partitions=partitions, replication_factor=1)
    assert server.connect().call(19, 7, topics=[topic], timeout_ms=1000).topics[0].error_code == 0


def wide(sink: Sink, batch_id: int, *names: str) -> list[int]:
    """A call for each name, each with records for all partitions of the topic `wide`; the handles told."""
    found = []
    for name in names:
        answer = sink.stage(batch_id, *(("wide", n, batch(f"{name}{n}", f"{name}{n}'")) for n in range(WIDE)))
        assert answer.error_code == 0, answer
        found.append({entry.handle for topic in answer.topics for entry in topic.partitions})
    return [handle for (handle,) in found]


@pytest.fixture
def server() -> InProcess:
    server = InProcess()
    server.connect().create_topic("t")
    return server


def test_a_call_makes_one_handle_whatever_the_number_of_its_partitions(
    server: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the size of a batch would be limited by tasks times partitions."""
    monkeypatch.setattr(rules, "MAX_HANDLES", 3)
    create_wide(server)
    sink = Sink(server)
    a, b, c = wide(sink, 0, "a", "b", "c")
    refused = sink.stage(0, ("wide", 0, batch("d")))
    assert code(refused.error_code) == "RECORD_LIST_TOO_LARGE"
    answer = sink.commit(0, c, a, b)
    assert (answer.state, offsets(answer)) == (2, [(0, 5)] * WIDE)
    for n in range(WIDE):
        assert values(server, "wide", n) == [f"{name}{n}{end}" for name in "cab" for end in ("", "'")]
    assert sink.describe().staged_handles == 0


def test_a_handle_of_many_partitions_is_moved_once_whenever_the_power_goes() -> None:
    for held in range(0, 24, 3):
        server = InProcess()
        create_wide(server)
        sink = Sink(server)
        handles = wide(sink, 0, "a", "b")
        sink.ask_commit(0, *handles)
        for _ in range(held):
            server.step_journal()
        after = after_power_cut(server)
        after.pass_ms(3000)
        assert Sink(after).commit(0, *handles).state == 2, held
        for n in range(WIDE):
            assert values(after, "wide", n) == [f"{name}{n}{end}" for name in "ab" for end in ("", "'")], (held, n)


def test_a_refused_partition_is_of_no_handle_and_the_others_of_one(server: InProcess) -> None:
    create_wide(server, 3)
    sink = Sink(server)
    answer = sink.stage(0, ("wide", 0, batch("a")), ("wide", 7, batch("b")), ("wide", 2, batch("c")))
    first, none, last = (topic.partitions[0] for topic in answer.topics)
    assert (none.handle, code(none.error_code)) == (-1, "UNKNOWN_TOPIC_OR_PARTITION")
    assert first.handle == last.handle
    assert sink.commit(0, first.handle).state == 2
    assert [values(server, "wide", n) for n in range(3)] == [["a"], [], ["c"]]


def test_what_a_handle_holds_is_bounded() -> None:
    """One that nobody commits is moved as a whole."""
    server = InProcess(duramen_sink_staged_max_bytes="65536")
    create_wide(server, 5)
    sink = Sink(server)
    answer = sink.stage(0, *(("wide", n, batch(f"{n}" + "x" * 30_000)) for n in range(5)))
    handles = [topic.partitions[0].handle for topic in answer.topics]
    assert handles == [0, 0, 2, 2, 4]
    assert sink.commit(0, 4, 0, 2).state == 2
    assert [values(server, "wide", n)[0][0] for n in range(5)] == list("01234")


def test_a_share_of_very_many_pieces_is_read_a_few_at_a_time(
    server: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a look-up on the loop."""
    monkeypatch.setattr(staging, "CHUNK_PIECES", 7)
    jobs: list[int] = []
    run = staging.Chunk.run
    monkeypatch.setattr(staging.Chunk, "run", lambda chunk: (jobs.append(len(chunk.reads)), run(chunk))[1])
    sink = Sink(server)
    handles = [sink.handle(0, "t", f"{n}a", f"{n}b") for n in range(40)]
    assert sink.commit(0, *handles).state == 2
    assert jobs == [7, 7, 7, 7, 7, 5]
    assert values(server, "t") == [f"{n}{end}" for n in range(40) for end in "ab"]


def test_a_committed_batch_whose_handles_are_missing_waits_and_is_told(
    server: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after damage to the log of its coordinator: a part of it would look like the whole."""
    taken = rules._taken
    monkeypatch.setattr(rules, "_taken", lambda sink, commit: taken(sink, replace(commit, handles=commit.handles[:1])))
    sink = Sink(server)
    handles = [sink.handle(0, "t", "a"), sink.handle(0, "t", "b")]
    assert sink.commit(0, *handles, timeout_ms=1000) is None
    server.pass_ms(2000)
    assert (code(sink.committed().error_code), values(server, "t")) == ("REQUEST_TIMED_OUT", [])
    told = [fields["reason"] for event, fields in server.events if event == "sink-batch-delayed"]
    assert any("handles of a committed batch are missing" in reason for reason in told)


def test_an_abort_of_very_many_handles_lets_all_of_them_go(server: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 tombstones are no batch of the coordinator's log: it was refused, and all of it stayed for a day."""
    monkeypatch.setattr(sinks, "MAX_BATCH_BYTES", 400)
    monkeypatch.setattr(rules, "MAX_REMOVED", 3)
    sink = Sink(server)
    handles = [sink.handle(0, "t", f"{n}") for n in range(20)]
    answer = sink.abort(0, *handles[:10])
    assert (code(answer.error_code), answer.released) == ("NONE", 10)
    answer = sink.abort(0)
    assert (code(answer.error_code), answer.released) == ("NONE", 10)
    assert sink.describe().staged_handles == 0
