"""Some of the lives that `make interleavings` lives many of, and syncs that were forgotten, which they have to find."""

from __future__ import annotations

import pytest
from tests.crash.interleavings import live
from tests.crash.promises import PromiseBrokenError

from duramen.errors import CorruptLogError
from duramen.sim.disk import CrashFile


def some_lives() -> None:
    for seed in range(60):
        live(seed)


def test_random_lives_keep_every_promise() -> None:
    some_lives()


@pytest.mark.parametrize("forgotten", [".part", ".log"])
def test_forgotten_syncs_are_found(monkeypatch: pytest.MonkeyPatch, forgotten: str) -> None:
    sync = CrashFile.sync
    monkeypatch.setattr(CrashFile, "sync", lambda file: None if file.path.endswith(forgotten) else sync(file))
    with pytest.raises((PromiseBrokenError, CorruptLogError)):
        some_lives()
