"""`duramen stream` on a node and in a directory."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from duramen.cli.main import main

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
    ],
)
def test_a_mistake_is_said_in_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stream", *words]) in (1, 2)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err


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
