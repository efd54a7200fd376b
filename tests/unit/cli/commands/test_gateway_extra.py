"""`duramen gateway` where its libraries are not installed, and where it may not listen: one line says what to do."""

from __future__ import annotations

import sys

import pytest

from duramen.cli.main import main


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delitem(sys.modules, "duramen.gateway.main", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)  # type: ignore[arg-type]
    assert main(["gateway"]) == 2
    assert capsys.readouterr().err == (
        "duramen: the gateway needs uvicorn; install it with: pip install 'duramen[http]'\n"
    )


def test_beyond_loopback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gateway", "--listen", "http://0.0.0.0:8082"]) == 2
    said = capsys.readouterr().err
    assert "needs TLS and logins" in said
    assert said.count("\n") == 1
