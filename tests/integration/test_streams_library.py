"""The streams library over all of its back ends: a node, a gateway, and a directory in this process."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.worlds.served_gateway import ServedGateway
from tests.worlds.served_node import ROOT, Served

from duramen import streams
from duramen.cli.main import main
from duramen.client.protocol.stream_defaults import STREAM_DEFAULTS
from duramen.dlsn import BEFORE_FIRST
from duramen.errors import ClosedError, ConfigError, KafkaError, StreamClosedError
from duramen.streams.immediate import run
from duramen.streams.link import AppendTerms
from duramen.streams.stream_calls import MadeRows


@pytest.fixture(params=["node", "gateway", "directory"], scope="module")
def space(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[streams.Namespace]:
    """A namespace of its own."""
    folder: Path = tmp_path_factory.mktemp("streams")
    served: Served = request.getfixturevalue("served")
    uri = f"duramen+file://{folder}/log?namespace=tests/a"
    if request.param == "node":
        uri = f"duramen://{served.bootstrap}/tests/a"
    elif request.param == "gateway":
        gateway: ServedGateway = request.getfixturevalue("shared_gateway")
        uri = f"duramen+http://127.0.0.1:{gateway.port}/tests/b"
    with streams.open(uri, timeout_s=10) as opened:
        yield opened


@pytest.fixture
def stream(space: streams.Namespace) -> streams.Stream:
    return space.create(f"s-{uuid4().hex}")


def values(reader: streams.Reader) -> list[bytes | None]:
    return [record.value for record in reader]


def test_what_is_appended_is_read_with_the_positions_of_the_receipts(stream: streams.Stream) -> None:
    first = stream.append(b"a")
    rest = stream.append([b"b", streams.NewStreamRecord(b"c", b"key", [("h", None)], 7)])
    assert (first.offset, first.end, rest.offset, rest.end) == (0, 1, 1, 3)
    assert (rest.durability, rest.copies, rest.epoch) == ("stable", 1, rest.dlsn.leader_epoch)
    a, b, c = stream.reader()
    assert (a.dlsn, b.dlsn, c.dlsn) == (first.dlsn, rest.dlsn, rest.dlsn.next)
    assert (c.value, c.key, c.headers, c.timestamp_ms) == (b"c", b"key", (("h", None),), 7)
    assert (stream.start(), stream.end()) == (0, 3)


def test_a_reader_starts_where_it_is_asked_to(stream: streams.Stream) -> None:
    begin = datetime.now(UTC) - timedelta(seconds=1)
    middle = stream.append([b"a", b"b", b"c"]).dlsn.next
    last = stream.append(b"d").dlsn
    assert values(stream.reader(2)) == [b"c", b"d"]
    assert values(stream.reader(middle)) == [b"b", b"c", b"d"]
    assert values(stream.reader(after=middle)) == [b"c", b"d"]
    assert values(stream.reader(after=last)) == []
    assert values(stream.reader(BEFORE_FIRST)) == [b"a", b"b", b"c", b"d"]
    assert values(stream.reader("end")) == []
    assert values(stream.reader(begin)) == [b"a", b"b", b"c", b"d"]
    assert values(stream.reader(begin + timedelta(hours=1))) == []


def test_a_position_of_another_history_is_no_other_record(stream: streams.Stream) -> None:
    here = stream.append([b"a", b"b"]).dlsn
    elsewhere = here._replace(entry=1)
    with pytest.raises(streams.PositionDivergedError, match="is of another history"):
        next(stream.reader(elsewhere))
    with pytest.raises(streams.PositionDivergedError) as ahead:
        next(stream.reader(17))
    assert ahead.value.end == 2
    with pytest.raises(streams.PositionDivergedError, match="there was no such leader"):
        stream.reader(here._replace(lssn=here.lssn + 5))


def test_a_reader_reads_one_stream_and_none_that_is_made_later_under_its_name(
    space: streams.Namespace, stream: streams.Stream
) -> None:
    stream.append([b"a", b"b"])
    reader, follower, at_end = stream.reader(), stream.reader(follow=True), stream.reader("end", follow=True)
    assert [next(follower).value, next(follower).value] == [b"a", b"b"]
    assert reader.stream_id == follower.stream_id != ""
    space.delete(stream.name)
    again = space.create(stream.name)
    again.append([b"c", b"d", b"e"], close=True)
    for each in (reader, follower, at_end):
        with pytest.raises(streams.PositionDivergedError, match="deleted and made again"):
            next(each)
    anew = again.reader()
    assert (values(anew), anew.stream_id == reader.stream_id) == ([b"c", b"d", b"e"], False)


def test_appends_go_by_the_name_and_are_made_for_what_has_it(space: streams.Namespace, stream: streams.Stream) -> None:
    stream.append(b"a")
    writer = stream.writer()
    writer.write(b"b")  # with the time of day
    space.delete(stream.name)
    again = space.create(stream.name, txid="application")
    with pytest.raises(streams.TxidMissingError):
        stream.append(b"c")
    with pytest.raises(KafkaError, match=r"made again with txid='application'.*open another writer"):
        writer.flush()
    assert again.end() == 0, "the clock is no transaction id"
    assert stream.append(streams.NewStreamRecord(b"d", txid=3)).offset == 0
    space.delete(stream.name)
    space.create(stream.name)
    assert stream.append(b"e").offset == 0


def test_what_is_too_large_says_so_and_what_to_do(stream: streams.Stream) -> None:
    with pytest.raises(streams.AppendTooLargeError, match=r"[89]\d{6}.*; append them in parts \(max_bytes=") as refused:
        stream.append([b"x" * 1000] * 8600)
    if refused.value.limit >= 0:  # the gateway's, of a request in its form
        assert refused.value.size > refused.value.limit == 8 << 20
    with pytest.raises(streams.AppendTooLargeError, match=r"; append a smaller record$"):
        stream.append(b"x" * 8_600_000)
    assert stream.append(b"a").offset == 0


def test_of_two_appends_at_one_position_one_succeeds(stream: streams.Stream) -> None:
    assert stream.append(b"a", expected_position=0).end == 1
    with pytest.raises(streams.StreamEndMovedError) as refused:
        stream.append(b"b", expected_position=0)
    assert refused.value.end == 1
    assert stream.append(b"c", expected_position=refused.value.end).offset == 1
    assert values(stream.reader()) == [b"a", b"c"]


def test_an_expected_position_names_the_history_in_front_of_it(stream: streams.Stream) -> None:
    first = stream.append([b"a", b"b"], expected_position=stream.end_position())
    with pytest.raises(streams.PositionDivergedError) as lost:
        stream.append(b"c", expected_position=first.next._replace(lssn=first.dlsn.lssn + 1))
    assert lost.value.end == 2
    with pytest.raises(streams.StreamEndMovedError):
        stream.append(b"c", expected_position=first.dlsn)
    (*_, last) = stream.reader()
    assert first.next == last.dlsn.next == stream.end_position()
    with stream.writer(expected_position=last.dlsn.next) as writer:
        writer.write(b"c")
        writer.flush()
        writer.write(b"d")
    stream.truncate(4)
    end = stream.end_position()
    assert end.offset == 4
    assert stream.append(b"e", expected_position=end, close=True).offset == 4


def test_a_writer_appends_a_batch_per_flush_and_holds_its_position(stream: streams.Stream) -> None:
    with stream.writer(expected_position=0, max_bytes=4) as writer:
        assert writer.write(b"aa") is None
        assert writer.write(b"bb") is None
        full = writer.write(b"cc")
        assert full is not None
        assert (full.offset, full.end) == (0, 2)
    assert [record.dlsn.slot for record in stream.reader()] == [0, 1, 0]
    stolen = stream.writer(expected_position=2)
    stolen.write(b"dd")
    with pytest.raises(streams.StreamEndMovedError):
        stolen.flush()
    with pytest.raises(ClosedError, match="open another one"):
        stolen.write(b"ee")


def test_nothing_is_appended_to_a_closed_stream_and_its_readers_end(stream: streams.Stream) -> None:
    follower = stream.reader(follow=True)
    stream.append([b"a", b"b"])
    assert (next(follower).value, next(follower).value) == (b"a", b"b")
    assert not stream.is_closed
    assert stream.append(b"c", close=True).offset == 2
    stream.close_stream()
    assert stream.is_closed
    with pytest.raises(StreamClosedError, match="the stream is closed"):
        stream.append(b"d")
    assert values(follower) == [b"c"]
    assert follower.is_ended
    assert values(stream.reader("end", follow=True)) == []


def test_a_reader_that_follows_waits_for_more(space: streams.Namespace, stream: streams.Stream) -> None:
    follower = stream.reader(follow=True)
    if "127.0.0.1" in space.address:
        other = streams.open(space.address, timeout_s=10)
    else:
        other = space
    later = threading.Timer(0.3, lambda: other.stream(stream.name).append(b"late", close=True))
    later.start()
    assert values(follower) == [b"late"]
    later.join()
    if other is not space:
        other.close()


def test_truncation_is_exact_and_positions_before_it_say_where_to_go_on(stream: streams.Stream) -> None:
    dlsn = stream.append([b"a", b"b", b"c", b"d"]).dlsn
    assert stream.truncate(before=dlsn.next) == 1
    assert values(stream.reader()) == [b"b", b"c", b"d"]
    with pytest.raises(streams.TruncatedError) as gone:
        next(stream.reader(dlsn))
    assert gone.value.first == 1
    assert values(stream.reader(after=dlsn)) == [b"b", b"c", b"d"]
    assert stream.truncate(before="end") == 4
    with pytest.raises(streams.PositionDivergedError):
        stream.truncate(before=9)


def test_a_named_writer_that_begins_again_fences_the_one_before(stream: streams.Stream) -> None:
    first = stream.writer(name="importer")
    first.write(b"a")
    receipt = first.flush()
    assert receipt is not None
    assert (first.epoch, first.sequence, receipt.duplicate) == (0, 1, False)
    second = stream.writer(name="importer")
    assert (second.epoch, second.sequence) == (1, 0)
    first.write(b"b")
    first.flush()  # nobody has written in the new epoch yet
    second.write(b"c")
    second.flush()
    first.write(b"d")
    with pytest.raises(streams.WriterFencedError, match="'importer' is at epoch 1") as fenced:
        first.flush()
    assert fenced.value.epoch == 1
    with pytest.raises(ClosedError):
        first.write(b"e")
    assert values(stream.reader()) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("setting", [{"message_timestamp_type": "LogAppendTime"}, {}, {"txid": "assigned"}])
def test_the_first_batch_of_a_writer_whose_answer_was_lost(space: streams.Namespace, setting: Any) -> None:
    stream = space.create(f"s-{uuid4().hex}", **setting)
    for epoch in (0, 2):
        writer = stream.writer(name="w")
        assert writer.epoch == epoch
        writer.write(b"a")
        session = writer._session
        assert session.turn is not None
        run(session._calls.send(MadeRows(session._rows, None), AppendTerms(writer=session.turn)))
        receipt = writer.flush()
        assert receipt is not None
        assert receipt.duplicate
        assert (writer.epoch, writer.sequence) == (epoch + 1, 0)
        writer.write(b"b")
        writer.flush()
    assert values(stream.reader()) == [b"a", b"b"] * 2


def test_a_named_writer_that_goes_on_stores_what_it_sends_again_once(stream: streams.Stream) -> None:
    with stream.writer(name="w", epoch=3) as writer:
        for value in (b"a", b"b"):
            writer.write(value)
            writer.write(value.upper())
            writer.flush()
    with stream.writer(name="w", epoch=3, sequence=1) as again:
        again.write(b"b")
        again.write(b"B")
        stored = again.flush()
        assert stored is not None
        assert (stored.duplicate, stored.offset, stored.end) == (True, 2, 4)
        again.write(b"c")
    assert values(stream.reader()) == [b"a", b"A", b"b", b"B", b"c"]
    ahead = stream.writer(name="w", epoch=3, sequence=9)
    ahead.write(b"d")
    with pytest.raises(streams.WriterSequenceError) as gap:
        ahead.flush()
    assert gap.value.expected == 3


def test_an_exclusive_stream_takes_records_of_its_last_writer_alone(space: streams.Namespace) -> None:
    stream = space.create(f"x-{uuid4().hex}", exclusive=True)
    with pytest.raises(streams.WriterFencedError, match="no writer has opened it"):
        stream.append(b"nobody")
    first = stream.writer(exclusive=True, name="host-1")
    first.write(b"a")
    first.write(b"b")
    first.flush()
    with stream.writer(exclusive=True, name="host-2") as second:
        second.write(b"c")
        first.write(b"d")
        with pytest.raises(streams.WriterFencedError, match="'host-2'"):
            first.flush()
        second.flush()
        second.write(b"e")
    assert values(stream.reader()) == [b"a", b"b", b"c", b"e"]
    with pytest.raises(streams.WriterFencedError, match="no writer has opened it"):  # it was given up
        stream.append(b"f")
    with pytest.raises(streams.WriterFencedError):
        stream.close_stream()
    with stream.writer(exclusive=True) as last:
        last.write(b"g")
        last.close_stream()
    assert stream.is_closed
    assert values(stream.reader())[-2:] == [b"e", b"g"]


def test_a_named_writer_closes_a_stream_unless_it_is_fenced(stream: streams.Stream) -> None:
    old = stream.writer(name="w")
    new = stream.writer(name="w", epoch=5)
    new.write(b"a")
    new.flush()
    with pytest.raises(streams.WriterFencedError, match="epoch 5"):
        old.close_stream()
    assert not stream.is_closed
    new.close_stream()
    assert stream.is_closed


def test_transaction_ids_never_step_back_and_reading_starts_at_one(space: streams.Namespace) -> None:
    stream = space.create(f"t-{uuid4().hex}", txid="application")
    with stream.writer() as writer:
        for txid in (10, 10, 20):
            writer.write(b"%d" % txid, txid=txid)
    refused = stream.writer(name="late")
    refused.write(b"19", txid=19)
    with pytest.raises(streams.TxidOutOfOrderError) as late:
        refused.flush()
    assert late.value.last == 20
    stream.append(streams.NewStreamRecord(b"30", txid=30))
    assert [(record.value, record.txid) for record in stream.reader(txid=11)] == [(b"20", 20), (b"30", 30)]
    assert values(stream.reader(streams.Txid(10))) == [b"10", b"10", b"20", b"30"]
    assert stream.truncate(before=streams.Txid(30)) == 3
    ahead = stream.reader(txid=50, follow=True)
    stream.append([streams.NewStreamRecord(b"40", txid=40), streams.NewStreamRecord(b"50", txid=50)], close=True)
    assert values(ahead) == [b"50"]
    with pytest.raises(KafkaError, match="Txid finds them"):
        stream.reader(datetime.now(UTC))


def with_txids(space: streams.Namespace, *names: str) -> list[streams.Stream]:
    folder = f"m{uuid4().hex}"
    return [space.create(f"{folder}/{name}", txid="application") for name in names]


def write_txids(stream: streams.Stream, *txids: int, close: bool = False) -> None:
    stream.append([streams.NewStreamRecord(b"%d" % txid, txid=txid) for txid in txids], close=close)


def test_several_streams_are_read_as_one_by_transaction_id(space: streams.Namespace) -> None:
    a, b, empty = with_txids(space, "a", "b", "empty")
    write_txids(b, 1, 2, 5)
    write_txids(a, 2, 2, 3)
    names = [empty.name, b.name, a.name]
    found = [(each.stream[-1], each.record.txid) for each in space.merged(names)]
    assert found == [("b", 1), ("a", 2), ("a", 2), ("b", 2), ("a", 3), ("b", 5)]
    some = space.merged(names, start_txid=2)
    assert [next(some).record.txid for _ in range(3)] == [2, 2, 2]
    assert [each.record.txid for each in space.merged(names, start=some.position)] == [3, 5]
    with pytest.raises(KafkaError, match="no transaction ids"):
        space.merged([a.name, space.create(f"{a.name}-plain").name])


def test_merged_streams_are_followed_until_all_are_closed(space: streams.Namespace) -> None:
    a, b = with_txids(space, "a", "b")
    write_txids(a, 5)
    write_txids(b, 5)
    merged = space.merged([a.name, b.name], follow=True)
    assert next(merged).stream == a.name
    write_txids(a, 9, close=True)
    assert next(merged).stream == b.name  # for a has nothing below 9
    other = space if "127.0.0.1" not in space.address else streams.open(space.address, timeout_s=10)
    later = threading.Timer(0.2, lambda: write_txids(other.stream(b.name), 7, 10, close=True))
    later.start()
    assert [each.record.txid for each in merged] == [7, 9, 10]
    later.join()
    if other is not space:
        other.close()


def test_records_need_the_transaction_ids_of_their_application(
    space: streams.Namespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = space.create(f"s-{uuid4().hex}", txid="application")
    with pytest.raises(streams.TxidMissingError, match="txid="):
        stream.append(b"a")
    writer = stream.writer(name="w")
    writer.write(b"b", txid=3)
    with pytest.raises(streams.TxidMissingError):
        writer.write(b"c")
    if not space.address.startswith("duramen+file:"):  # this process has the directory
        (tmp_path / "lines").write_text("x\n")
        given = ["stream", "append", stream.name, str(tmp_path / "lines"), "--at", space.address]
        assert main(given) == 1
        assert "--txid NUMBER" in capsys.readouterr().err
    assert (stream.end(), stream.append(streams.NewStreamRecord(b"d", txid=1)).offset) == (0, 0)


def test_a_stream_without_transaction_ids_takes_none(stream: streams.Stream) -> None:
    with pytest.raises(KafkaError, match="no transaction ids"):
        stream.append(streams.NewStreamRecord(b"a", txid=7))
    with pytest.raises(KafkaError, match="no transaction ids"):
        stream.reader(txid=7)
    with pytest.raises(TypeError, match="not both"):
        stream.append(streams.NewStreamRecord(b"a", timestamp_ms=1, txid=7))


def test_a_stream_keeps_its_records_unless_somebody_says_otherwise(space: streams.Namespace) -> None:
    folder = f"f{uuid4().hex}"
    assert STREAM_DEFAULTS.items() <= space.create(f"{folder}/kept").settings().items()
    space.namespaces.set_defaults(folder, retention_ms=7)
    assert space.create(f"{folder}/brief").settings()["retention.ms"] == "7"
    assert space.create(f"{folder}/other", retention_ms=8).settings()["retention.ms"] == "8"


def test_what_is_no_argument_is_named(space: streams.Namespace, stream: streams.Stream) -> None:
    junk: Any = "junk"
    with pytest.raises(TypeError, match="Dlsn of a record or an offset, not 'junk'"):
        stream.reader(after=junk)
    with pytest.raises(TypeError, match="exclusive is True or False, not 'junk'"):
        space.create("never-made", exclusive=junk)


def test_streams_are_created_listed_and_deleted(space: streams.Namespace) -> None:
    folder = f"f{uuid4().hex}"
    names = [f"{folder}/{name}" for name in ("one", "two/x", "two/y")]
    for name in names:
        space.create(name, retention_ms=-1)
    assert space.list(f"{folder}/") == names
    assert space.list(f"{folder}/two") == names[1:]
    assert space.list(f"{folder}/", limit=2) == names[:2]
    assert space.list(f"{folder}/", after=names[1]) == names[2:]
    with pytest.raises(streams.StreamExistsError):
        space.create(names[0])
    with pytest.raises(KafkaError, match="retention"):
        space.create(f"{folder}/bad", retention_ms="soon")
    doomed = space.stream(names[0])
    space.delete(names[0])
    assert not space.exists(names[0])
    with pytest.raises(streams.NoSuchStreamError, match="duramen stream create"):
        space.stream(names[0])
    with pytest.raises(streams.NoSuchStreamError):
        space.delete(names[0])
    assert doomed.name == names[0]


@pytest.mark.parametrize("name", ["", "a//b", "/a", "../b", "a.b", "a/.position", "a b", "ä"])
def test_a_name_that_leaves_its_namespace_is_refused(space: streams.Namespace, name: str) -> None:
    with pytest.raises(ConfigError, match="is no name"):
        space.create(name)


def test_the_page_shows_programs_that_run(served: Served, tmp_path: Path) -> None:
    page = (ROOT / "docs/streams.md").read_text()
    section = page[page.index("## From Python") : page.index("## Keep your position")]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    program = "\n".join(blocks).replace("127.0.0.1:9092/finance", f"{served.bootstrap}/page")
    run = [sys.executable, "-c", program]
    shown = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert shown.stderr == ""
    assert "[b'12 EUR']" in shown.stdout
    assert "[('payments', 1001), ('refunds', 1001), ('payments', 1002)]" in shown.stdout
    assert len(shown.stdout.splitlines()) == 15
