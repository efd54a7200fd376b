"""`duramen gateway` where its libraries are not installed, and where it may not listen: one line says what to do."""

from __future__ import annotations

import sys

import pytest

from duramen.cli.main import main


@pytest.mark.parametrize("command", [["gateway"], ["serve", "--set", "gateway.listener=http://127.0.0.1:0"]])
def test_without_the_extra(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)  # type: ignore[arg-type]
    assert main(command) == 2
    assert capsys.readouterr().err == (
        "duramen: the gateway needs uvicorn; install it with: pip install 'duramen[http]'\n"
    )


def test_beyond_loopback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gateway", "--listen", "http://0.0.0.0:8082"]) == 2
    said = capsys.readouterr().err
    assert "needs TLS and logins" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (["gateway.sse.ms=500"], "gateway.listener=http://127.0.0.1:8082"),
        (["gateway.listener=nowhere"], "http://host:port"),
        (["gateway.lisener=http://127.0.0.1:8082"], "nearest is gateway.listener"),
        (["gateway.listener=http://127.0.0.1:0", "gateway.ssems=1"], "nearest is gateway.sse.ms"),
        (
            ["gateway.listener=http://127.0.0.1:0", "process.roles=controller", "controller.listener.names=C",
             "listeners=C://127.0.0.1:9093", "controller.quorum.bootstrap.servers=127.0.0.1:9093"],
            "a controller alone",
        ),
    ],
)  # fmt: skip
def test_a_node_is_not_started_with_what_its_gateway_refuses(
    settings: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *(word for setting in settings for word in ("--set", setting))]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1
