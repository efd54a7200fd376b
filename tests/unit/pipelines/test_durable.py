"""What a pipeline writes down survives a power cut: also the names of its folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from duramen.pipelines import durable


def test_the_names_of_new_folders_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(durable, "sync", synced.append)
    durable.make_folder(tmp_path / "tables" / "delays" / "archive")
    assert (tmp_path / "tables" / "delays" / "archive").is_dir()
    assert synced == [tmp_path, tmp_path / "tables", tmp_path / "tables" / "delays"]
    durable.make_folder(tmp_path / "tables" / "delays")
    assert len(synced) == 3
