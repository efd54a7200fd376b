"""`duramen cluster status`: one line where nobody leads, 80 columns, and JSON that stays."""

from __future__ import annotations

import json
import socket

import pytest
from tests.worlds.served_node import free_port

from duramen.cli.commands.quorum_status import as_document, head, rows, without_leader
from duramen.cli.main import main
from duramen.cli.shared.output import plain_table
from duramen.cli.shared.quorum_look import NO_LEADER, QuorumAnswer, QuorumLook, Replica

HOSTS = [("controller-1.eu.example.org", 9093), ("controller-2.eu.example.org", 9093), ("10.0.0.3", 9093)]


def replica(number: int, end: int, lag: int, fetched_ms: int | None = 10_000) -> Replica:
    endpoint = ("CONTROLLER", *HOSTS[number - 1])
    return Replica(number, f"directory-{number}", (endpoint,), end, lag, fetched_ms, fetched_ms)


def answer(node: int, epoch: int, leads: bool) -> QuorumAnswer:
    voters = (replica(1, 120, 3), replica(2, 123, 0), replica(3, -1, 123, None)) if leads else ()
    observers = (Replica(104, None, (), 100, 23, 9_000, None),) if leads else ()
    return QuorumAnswer(
        HOSTS[node - 1], 2, epoch, leads, 120 if leads else -1, voters, observers, tuple(HOSTS), "an-id"
    )


def test_it_fits_eighty_columns() -> None:
    look = QuorumLook((answer(2, 7, True), answer(1, 7, False)), {HOSTS[2]: "Connection refused"})
    leader = look.leader
    assert leader is not None
    assert head(leader) == [
        "cluster an-id",
        "leader 2 at controller-2.eu.example.org:9093, epoch 7",
        "high watermark 120",
    ]
    found = rows(leader, look, 12.5)
    assert [row[:2] for row in found] == [("2", "leader"), ("1", "voter"), ("3", "voter"), ("104", "observer")]
    assert [row[5] for row in found] == ["", "2.5 s ago", "never, no answer", "3.5 s ago"]
    assert found[2][3:5] == (None, 123)
    texts = [[str(each) for each in row] for row in found]
    lines = plain_table(("node", "role", "controller", "log end", "lag", "fetched"), texts, {"node"})
    assert max(map(len, lines)) <= 80


def test_a_leader_that_others_know_to_be_deposed_is_none() -> None:
    look = QuorumLook((answer(2, 7, True), answer(1, 8, False)), {HOSTS[2]: "timed out"})
    assert look.leader is None
    assert without_leader(look) == (
        "the quorum has no leader; answered: controller-2.eu.example.org:9093 (epoch 7), "
        "controller-1.eu.example.org:9093 (epoch 8); not: 10.0.0.3:9093 (timed out)"
    )
    newer = QuorumLook((answer(2, 7, True), answer(1, 8, True)), {})
    assert newer.leader is not None
    assert newer.leader.leader_epoch == 8


def test_the_json_has_these_names() -> None:
    document = as_document(answer(2, 7, True))
    names = ["cluster_id", "leader_id", "leader_epoch", "high_watermark", "voters", "observers"]
    assert list(document) == names
    assert document["voters"][0] == {
        "id": 1,
        "directory_id": "directory-1",
        "endpoints": [{"listener": "CONTROLLER", "host": HOSTS[0][0], "port": 9093}],
        "log_end_offset": 120,
        "lag": 3,
        "last_fetch_ms": 10_000,
        "last_caught_up_ms": 10_000,
    }


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    address = f"127.0.0.1:{free_port()}"
    assert main(["cluster", "status", "--bootstrap-controller", address]) == 1
    said = capsys.readouterr()
    told = f"duramen: no controller answers: {address} (Connection refused). Start a node with `duramen serve`, "
    assert (said.out, said.err) == ("", told + "or name another with --bootstrap-controller.\n")
    assert main(["cluster", "status", "--bootstrap-controller", "nowhere"]) == 2
    assert capsys.readouterr().err.startswith("duramen: --bootstrap-controller")


def test_a_node_alone_is_its_quorum(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "status", "-b", bootstrap, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (voter,) = document["voters"]
    assert (document["leader_id"], voter["id"], voter["lag"], document["observers"]) == (1, 1, 0, [])
    assert document["high_watermark"] > 0


def test_a_port_that_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert main(["cluster", "status", "--bootstrap-controller", address, "--timeout", "0.3"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"duramen: no controller answers: {address} (")
    assert said.count("\n") == 1


def test_a_node_that_lives_and_finds_no_leader() -> None:
    look = QuorumLook((), {("a", 1): "Connection refused", ("b", 1): NO_LEADER})
    told = "the quorum has no leader: a:1 (Connection refused), b:1 (answers, and finds no leader)"
    assert without_leader(look) == told
