"""`duramen stream` on a node and in a directory."""

from __future__ import annotations

import io
import json
import socket
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from duramen.cli.commands.stream import _patiently
from duramen.cli.main import main
from duramen.cli.shared.stream_access import StreamAccess, _in_our_options
from duramen.dlsn import FIRST
from duramen.errors import DeadlineError, DuramenError, ErrorCode, KafkaError, NetworkError, TlsError
from duramen.streams import StreamRecord

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(params=["node", "directory"])
def run(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    """`duramen stream WORDS...` in a namespace of its own, with some bytes as input: exit code, stdout, stderr."""
    if request.param == "node":
        address = f"duramen://{request.getfixturevalue('bootstrap')}/n{uuid.uuid4().hex}"
    else:
        address = f"duramen+file://{tmp_path}/log?namespace=n"

    def stream(*words: str, given: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
        code = main(["stream", *words, "--at", address])
        out, err = capsysbinary.readouterr()
        return code, out.decode(), err.decode()

    return stream


def test_a_stream_is_created_appended_to_read_truncated_closed_and_deleted(run: Run) -> None:
    assert run("create", "a/b", "--config", "retention.ms=-1") == (0, "", "created a/b with retention.ms=-1\n")
    assert run("create", "a/b")[:2] == (1, "")
    assert run("create", "a/b", "--if-not-exists") == (0, "", "a/b exists\n")
    assert run("list", "a/") == (0, "a/b\n", "")
    code, out, err = run("append", "a/b", given=b"one\ntwo\r\nthree")
    assert (code, out) == (0, "")
    assert err.startswith("appended 3 records to a/b from offset 0 (DLSN 0000000")
    assert err.endswith("), ends at 3; stable, 1 copy\n")
    code, out, _ = run("append", "a/b", "--whole", "--expect", "3", "--json", given=b"x\ny")
    receipt = json.loads(out)
    assert (code, receipt["offset"], receipt["end"], receipt["durability"]) == (0, 3, 4, "stable")
    assert run("append", "a/b", "--expect", "3", given=b"no")[0] == 1
    assert run("read", "a/b", "--limit", "2") == (0, "one\ntwo\n", "")
    assert run("read", "a/b", "--from", "-1") == (0, "x\ny\n", "")
    code, out, _ = run("read", "a/b", "--json", "--from", "1", "-n", "1")
    two = json.loads(out)
    assert (two["offset"], two["value"]) == (1, "two")
    assert run("read", "a/b", "--after", two["dlsn"], "-n", "1")[1] == "three\n"
    assert run("truncate", "a/b", "--before", two["dlsn"], "--yes") == (0, "a/b now starts at offset 1\n", "")
    assert run("read", "a/b", "--from", "0") == (
        1, "", "duramen: a/b: 0 was truncated; the first offset that is kept is 1: --from start begins there.\n"
    )  # fmt: skip
    assert run("close", "a/b", "--yes") == (0, "", "closed a/b\n")
    assert run("append", "a/b", given=b"late") == (1, "", "duramen: a/b: the stream is closed\n")
    assert run("read", "a/b", "--follow", "--from", "3") == (0, "x\ny\n", "")
    assert run("delete", "a/b", "--yes") == (0, "", "deleted a/b\n")
    assert run("read", "a/b") == (1, "", "duramen: there is no stream 'a/b'; `duramen stream create a/b` makes it\n")


def test_what_cannot_be_undone_is_asked_for(run: Run) -> None:
    run("create", "s")
    for words in (["close", "s"], ["delete", "s"], ["truncate", "s", "--before", "end"]):
        code, out, err = run(*words)
        assert (code, out, err.count("\n"), "add --yes" in err) == (2, "", 1, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["read", "s", "--at", "http://x"], "is no address of streams; it is duramen://"),
        (["read", "s", "--at", "duramen+file:///nowhere/at/all"], "there is no such directory"),
        (["read", "../s", "--at", "duramen://127.0.0.1:1"], "127.0.0.1:1"),
        (["read", "s", "--after", "7"], "is no DLSN"),
        (["read", "s", "--from", "soon"], "nor a DLSN"),
        (["list", "--at", ""], "--at is empty"),
        (["list", "--bootstrap", ""], "--bootstrap '': it is HOST[:PORT]"),
        (["list", "--bootstrap", "duramen://h:1"], "other addresses go with --at"),
        (["list", "--at", "duramen://h:99999"], "--at h:99999: a port is at most 65535"),
    ],
)
def test_a_mistake_is_said_in_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stream", *words]) in (1, 2)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err


def test_reading_makes_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name, said in (("empty", "there is no log in this directory"), ("file", "Not a directory")):
        assert main(["stream", "list", "--at", f"duramen+file://{tmp_path}/{name}"]) == 1
        assert said in capsys.readouterr().err
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_gateways_login_is_told_of_in_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    with socket.create_server(("127.0.0.1", 0)) as door:
        there = ("stream", "list", "--at", f"duramen+https://127.0.0.1:{door.getsockname()[1]}")
        for words, said in (
            (("--token-file", str(empty)), "--token-file is no bearer token"),
            (("--token-file", str(tmp_path)), f"--token-file {tmp_path}: Is a directory"),
            (("--ca-file", str(empty)), f"--ca-file {empty}: there is no certificate in it"),
        ):
            assert main([*there, *words]) == 2
            assert said in capsys.readouterr().err
    text = "the gateway needs a bearer token; give one that is made as token=, or in DURAMEN_TOKEN"
    assert str(_in_our_options(DuramenError(text))).endswith("that is made, by --token-file or in DURAMEN_TOKEN")
    other = KafkaError(ErrorCode.STREAM_CLOSED, "the stream is closed")
    assert _in_our_options(other) is other


def test_an_input_without_an_end_is_given_up(run: Run) -> None:
    assert run("create", "s", "--config", "max.message.bytes=100000")[0] == 0
    code, out, err = run("append", "s", given=b"one\n" + b"x" * 400_000)
    assert (code, out) == (1, "")
    assert err == (
        "1 record of the input is stored; what follows is not, or its fate is unknown\n"
        "duramen: line 2 of the input is longer than 97.7 KiB (100,000 bytes, max.message.bytes of the stream); "
        "no record can be.\n"
    )
    code, out, err = run("append", "s", "--whole", given=b"x\n" * 60_000)
    assert (code, out) == (1, "")
    assert err.startswith("duramen: the input is longer than 97.7 KiB")
    assert run("append", "s", given=b"x" * 90_000)[0] == 0


def test_an_expected_end_is_checked_without_a_record(run: Run) -> None:
    run("create", "s")
    assert run("append", "s", "--expect", "0") == (0, "", "appended 0 records to s\n")
    assert run("append", "s", "--expect", "5") == (1, "", "duramen: s: the stream ends at 0, not at 5.\n")


def test_who_follows_waits_for_a_node_that_is_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("duramen.cli.commands.stream._AWAY_SECONDS", 0)
    one, two = (StreamRecord(offset, FIRST, 0, None, b"", ()) for offset in (0, 1))
    told: list[object] = [one, DeadlineError("not done"), NetworkError("hung up"), two, NetworkError("again"), None]

    class Told:
        def __iter__(self) -> Told:
            return self

        def __next__(self) -> StreamRecord:
            found = told.pop(0)
            if isinstance(found, Exception):
                raise found
            if found is None:
                raise StopIteration
            return cast(StreamRecord, found)

    assert list(_patiently(StreamAccess("duramen://h", 1), Told())) == [one, two]
    assert capsys.readouterr().err == "waiting for duramen://h: not done\nwaiting for duramen://h: again\n"
    told[:] = [TlsError("not trusted")]
    with pytest.raises(TlsError):
        list(_patiently(StreamAccess("duramen://h", 1), Told()))


def test_appends_of_writers_and_transaction_ids(run: Run) -> None:
    assert run("create", "x", "--exclusive", "--txid", "application")[0] == 0
    code, _, err = run("append", "x", "--txid", "1", given=b"nobody")
    assert code == 1
    assert "no writer has opened it" in err
    assert run("append", "x", "--exclusive", "--writer", "me", "--txid", "10", given=b"a\nb")[0] == 0
    assert run("append", "x", "--exclusive", "--txid", "20", given=b"c")[0] == 0
    assert run("read", "x", "--from", "txid:11") == (0, "c\n", "")
    code, _, err = run("append", "x", "--exclusive", "--txid", "19", given=b"d")
    assert code == 1
    assert "below the last, 20" in err
    assert run("create", "named")[0] == 0
    assert run("append", "named", "--writer", "w", given=b"1")[0] == 0
    assert run("append", "named", "--writer", "w", given=b"2")[0] == 0
    assert run("read", "named") == (0, "1\n2\n", "")


def test_a_json_stream_takes_json(run: Run) -> None:
    run("create", "j", "--config", "duramen.stream.content.type=application/json; charset=utf-8")
    for wrong in (b"not json", b"NaN", b'{"a":', b'"\xff"', b"\n"):
        code, _, err = run("append", "j", given=b'{"n":1}\n' + wrong)
        assert (code, "j takes JSON, and record 2 of the input is none: " in err, "--raw" in err) == (1, True, True)
    assert run("read", "j") == (0, "", ""), "nothing of a batch"
    assert run("append", "j", given=b'{"n":1}\n2')[0] == 0
    assert run("append", "j", "--raw", given=b"not json")[0] == 0
    assert run("read", "j") == (0, '{"n":1}\n2\nnot json\n', "")
