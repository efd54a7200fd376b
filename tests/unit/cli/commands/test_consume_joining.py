"""`duramen consume --group` says what it waits for before the first record."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from duramen.cli.commands import consume
from duramen.cli.shared import message_source
from duramen.cli.shared.outlet import Outlet
from duramen.cli.shared.retry import Patience


@pytest.mark.parametrize(
    ("joins_at", "said"), [(0.9, ""), (3.4, "joining group audit …\n"), (None, "joining group audit …\n")]
)
def test_who_waits_for_the_group_is_told_so_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], joins_at: float | None, said: str
) -> None:
    now = 0.0

    class Reader:
        """A member that gets its partitions at that moment; the group is shared anew at its end."""

        def __init__(self, *_: object, **__: object) -> None:
            pass

        def __enter__(self) -> Reader:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        @property
        def joined(self) -> bool:
            return joins_at is not None and joins_at <= now < 5

        @property
        def at_end(self) -> bool:
            return now > 9

        def commit(self, _done: object) -> None:
            pass

        def consume(self, _count: int, _timeout: float) -> list[Any]:
            nonlocal now
            now += 0.3
            return []

    monkeypatch.setattr(consume, "GroupReader", Reader)
    monkeypatch.setattr(consume, "partitions_of", lambda *_: {"t": [0]})
    for module in (consume, message_source):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    cluster: Any = SimpleNamespace(timeout=1.0, admin=lambda: None, answering=lambda: "", settings=lambda **_: {})

    def printing(source: message_source.MessageSource, _ends: message_source.Ends) -> bool:
        while not source.at_end():
            assert source.read(1, 0.0) == []
        return False

    start = consume.StartPosition("earliest")
    consume._member(cluster, "t", "audit", start, {}, printing, Patience(1), Outlet())
    assert capsys.readouterr().err == said
