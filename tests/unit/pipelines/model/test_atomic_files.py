"""What a pipeline writes down survives a power cut: also the names of its folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from duramen.pipelines.model import atomic_files


def test_the_names_of_new_folders_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(atomic_files, "sync", synced.append)
    atomic_files.make_folder(tmp_path / "tables" / "delays" / "archive")
    assert (tmp_path / "tables" / "delays" / "archive").is_dir()
    assert synced == [tmp_path, tmp_path / "tables", tmp_path / "tables" / "delays"]
    atomic_files.make_folder(tmp_path / "tables" / "delays")
    assert len(synced) == 3


@pytest.mark.parametrize("step", ["write", "sync", "rename"])
def test_what_a_full_disk_broke_off_is_not_left_there(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its part kept the disk full. What was there before stays."""
    atomic_files.write_json(tmp_path / "current.json", {"version": "v1"})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def part(beside: Path, text: str, **_: object) -> None:
        beside.write_bytes(text[:3].encode())
        full()

    where = {
        "write": (Path, "write_text", part),
        "sync": (atomic_files, "sync", full),
        "rename": (atomic_files.os, "replace", full),
    }
    monkeypatch.setattr(*where[step])
    with pytest.raises(OSError, match="No space left"):
        atomic_files.write_json(tmp_path / "current.json", {"version": "v2"})
    assert [path.name for path in tmp_path.iterdir()] == ["current.json"]
    assert atomic_files.read_json(tmp_path / "current.json") == {"version": "v1"}
