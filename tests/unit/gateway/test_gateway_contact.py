"""A gateway says in its log when no node answers, and when one does."""

from __future__ import annotations

import asyncio
import io

import pytest

from duramen.client.aio import AsyncCluster
from duramen.config import load_gateway_config
from duramen.errors import NetworkError
from duramen.gateway.access.authenticator import NoLogin
from duramen.gateway.gateway import Gateway


def test_a_cluster_that_is_away_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    async def metadata(_cluster: AsyncCluster, _topics: list[str]) -> None:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise NetworkError("refused")

    async def nothing(*_: object) -> None:
        pass

    monkeypatch.setattr(AsyncCluster, "metadata", metadata)
    monkeypatch.setattr("duramen.gateway.gateway.sweep_expired", nothing)
    monkeypatch.setattr("duramen.gateway.gateway.READY_S", 0.01)
    log = io.StringIO()

    async def run() -> None:
        config = load_gateway_config(None, {"bootstrap.servers": "127.0.0.1:1"})
        async with Gateway(config, NoLogin(), log) as gateway:
            await asyncio.wait_for(gateway._first_look, 10)

    asyncio.run(run())
    away, found = log.getvalue().splitlines()
    assert " warning cluster-away nodes=127.0.0.1:1 why=refused remedy=" in away
    assert found.endswith(" info cluster-found nodes=127.0.0.1:1")
