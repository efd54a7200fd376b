"""`duramen stream namespace` on a node and in a directory."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from duramen.cli.main import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> Run:
    """`duramen stream namespace WORDS...` in a namespace of a node: exit code, stdout, stderr."""
    return running(f"duramen://{bootstrap}/n{uuid.uuid4().hex}", capsys)


def running(address: str, capsys: pytest.CaptureFixture[str]) -> Run:
    def stream(*words: str) -> tuple[int, str, str]:
        code = main(["stream", *words, "--at", address])
        out, err = capsys.readouterr()
        return code, out, err

    return stream


def test_a_directory_is_made_by_its_first_namespace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = running(f"duramen+file://{tmp_path}/log?namespace=n", capsys)
    assert run("namespace", "list")[0] == 1
    assert run("namespace", "create", "a", "--config", "retention.ms=5") == (0, "", "created a\n")
    assert json.loads(run("namespace", "describe", "a", "--json")[1])["defaults"] == {"retention.ms": "5"}
    assert run("namespace", "set", "a", "--config", "retention.ms=x")[0] == 1, "as a node answers"


def test_namespaces_are_created_set_listed_described_and_deleted(run: Run) -> None:
    assert run("namespace", "create", "a", "a/b", "--config", "retention.ms=5") == (0, "", "created a\ncreated a/b\n")
    code, _, err = run("namespace", "create", "a")
    assert (code, "exists; --if-not-exists" in err) == (1, True)
    assert run("namespace", "create", "a", "--if-not-exists") == (0, "", "a exists\n")
    run("create", "c/s")
    assert run("namespace", "list") == (0, "a\na/b\nc\n", "")
    assert json.loads(run("namespace", "list", "a", "--limit", "1", "--after", "a", "--json")[1]) == ["a/b"]
    code, _, err = run("namespace", "set", "a/b", "--config", "retention.bytes=6")
    assert (code, err) == (0, "streams that are made in a/b get retention.bytes=6\n")
    found = json.loads(run("namespace", "describe", "a/b", "--json")[1])
    assert (found["defaults"], found["inherited"]) == ({"retention.bytes": "6"}, {"retention.ms": "5"})
    assert found["created_at"].startswith("20")
    code, out, _ = run("namespace", "describe", "a/b")
    assert [line.split() for line in out.splitlines() if "retention" in line] == [
        ["retention.bytes", "6", "its", "own"],
        ["retention.ms", "5", "inherited"],
    ]
    assert "not explicitly" in run("namespace", "describe", "c")[1]
    code, _, err = run("namespace", "delete", "a", "--yes")
    assert (code, err) == (
        1, "duramen: the namespace 'a' is not empty; --recursive deletes what lies in it, too.\n"
    )  # fmt: skip
    assert run("namespace", "delete", "a", "c", "--recursive", "--yes") == (0, "", "deleted a\ndeleted c\n")
    assert run("namespace", "list") == (
        0,
        "",
        "there are no namespaces; `duramen stream namespace create NAME` makes one\n",
    )
    assert run("list")[1] == ""


def test_what_is_refused(run: Run) -> None:
    run("create", "s")
    for words, said in (
        (("create", "a//b"), "is no name"),
        (("create", "a", "--config", "retention.mss=5"), "unknown topic setting retention.mss"),
        (("create", "a", "--config", "retention.ms"), "expected key=value"),
        (("describe", "a"), "there is no namespace"),
        (("delete", "a", "--yes"), "there is no namespace"),
    ):
        code, out, err = run("namespace", *words)
        assert (code in (1, 2), out, said in err) == (True, "", True), (words, err)
