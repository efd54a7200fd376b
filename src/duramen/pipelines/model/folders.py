"""Where a pipeline keeps what: one folder a step, in it one folder a version, and the pointer to the current one.

<folder>/<step>/current.json            the version that readers see; replaced by rename
<folder>/<step>/reprocess.json          how far a reprocessing has come
<folder>/<step>/hold                    locked by who swaps: a run lets go of the step meanwhile
<folder>/<step>/<version>/about.json    which logic made it, into which topic
<folder>/<step>/<version>/table/        the store
<folder>/<step>/<version>/checkpoint-0/ Spark's
<folder>/<step>/<version>/topics.json   which topics a table's records are of, by their ids
<folder>/<step>/<version>/progress.json the last batch
<folder>/<step>/<version>/writer        over Spark Connect: locked while Spark's server takes a batch
<folder>/<step>/<version>/run.json      over Spark Connect: the run whose batches Spark's server takes
<folder>/<step>/<version>/server.jsonl  over Spark Connect: what the server tells the run of each batch
<folder>/<step>/<version>/late.json     how many rows came too late for the watermark (late_rows.py)
"""

from __future__ import annotations

import fcntl
import json
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from duramen.errors import ConfigError, DuramenError
from duramen.model import TopicId, topic_id_from_text, topic_id_text
from duramen.pipelines.model.atomic_files import make_folder, read_json, write_json
from duramen.pipelines.model.offsets import NO_OFFSET, Offsets
from duramen.spark.options.positions import first_from_json, from_json, ids_from_json
from duramen.swaps import CutOver

FIRST_VERSION = "v1"
LOCK_POLL_SECONDS = 0.05
LOOK_SECONDS_MAX = 1.0
WRITING_SECONDS_MAX = 60.0
_VERSION = re.compile(r"(?!hold$)[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class BusyError(DuramenError):
    """Another process works on the same version of a step."""


class Current(NamedTuple):
    """The pointer of a step. previous: where `rollback` goes; cuts: of a stream, oldest first; back: a rollback put it
    there, so that another one would go forward again."""

    version: str = FIRST_VERSION
    previous: str | None = None
    cuts: tuple[CutOver, ...] = ()
    back: bool = False


class StepFolder:
    """The files of one step."""

    def __init__(self, folder: Path, step: str) -> None:
        self.path = folder / step
        self.step = step

    def current(self) -> Current:
        found = read_json(self.path / "current.json")
        if found is None:
            return Current()
        cuts = tuple(map(CutOver.from_json, found["cuts"]))
        return Current(found["version"], found["previous"], cuts, found.get("back", False))

    def point(self, current: Current) -> None:
        """Make another version the one that readers see; they see the old or the new."""
        make_folder(self.path)
        cuts = [cut.to_json() for cut in current.cuts]
        write_json(self.path / "current.json", {**current._asdict(), "cuts": cuts})

    def versions(self) -> list[str]:
        return sorted(path.parent.name for path in self.path.glob("*/about.json"))

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Ask a run of the step to let go of it until this is left. BusyError when somebody holds it already."""
        make_folder(self.path)
        # Whoever looks whether it is held locks it for a moment.
        with _locked(self.path / "hold", LOOK_SECONDS_MAX, f"another process swaps {self.step} now; wait for it"):
            yield

    @property
    def held(self) -> bool:
        """Whether somebody asks for the step. Who dies lets go by that."""
        return _is_locked(self.path / "hold")

    def version(self, name: str) -> VersionFolder:
        if not _VERSION.fullmatch(name):
            raise ConfigError(
                f"{name!r}: a version's name is made of letters, digits, dashes and underscores, and not hold"
            )
        return VersionFolder(self.path / name, self.step, name)

    def reprocessing(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = read_json(self.path / "reprocess.json")
        return found

    def note_reprocessing(self, state: dict[str, Any]) -> None:
        make_folder(self.path)
        write_json(self.path / "reprocess.json", state)


class VersionFolder:
    """The files of one version of a step."""

    def __init__(self, path: Path, step: str, name: str) -> None:
        self.path = path
        self.step = step
        self.name = name
        self.table = path / "table"
        self.server_report = path / "server.jsonl"

    def checkpoint(self, generation: int) -> Path:
        """Spark's checkpoint. The generation counts how often the source has moved to another topic."""
        return self.path / f"checkpoint-{generation}"

    def sink(self, pipeline: str, generation: int) -> str:
        """The name under which a stream of this version writes what comes of the source's generation."""
        return f"{pipeline}.{self.step}.{self.name}.{generation}"

    def about(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = read_json(self.path / "about.json")
        return found

    def describe(self, about: dict[str, Any]) -> None:
        make_folder(self.path)
        write_json(self.path / "about.json", about)

    def topic_ids(self) -> dict[str, TopicId]:
        """The ids of the topics whose records its table has, as far as they are known. They outlive the checkpoint."""
        found: dict[str, str] = read_json(self.path / "topics.json") or {}
        return {topic: topic_id_from_text(text) for topic, text in found.items()}

    def note_topic_ids(self, ids: Mapping[str, TopicId]) -> None:
        write_json(self.path / "topics.json", {topic: topic_id_text(each) for topic, each in ids.items()})

    def progress(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = read_json(self.path / "progress.json")
        return found

    def note_progress(self, progress: dict[str, Any]) -> None:
        write_json(self.path / "progress.json", progress)

    @contextmanager
    def locked(self, seconds: float = 0.0) -> Iterator[None]:
        """Keep other processes of this machine away, and Spark's server with batches of a run that has ended. BusyError
        when there is one, still after so many seconds."""
        make_folder(self.path)
        with _locked(self.path / "lock", seconds, f"another process runs {self.step} {self.name}; stop it first"):
            (self.path / "run.json").unlink(missing_ok=True)
            with self.writing():
                pass  # the last batch of such a run has ended
            yield

    def name_run(self) -> str:
        """A name for the run that has the lock now, by which another process knows whether it goes on."""
        name = uuid.uuid4().hex
        write_json(self.path / "run.json", {"run": name})
        return name

    def is_run_by(self, run: str) -> bool:
        """Whether the run of this name goes on: nobody else has taken the lock since, and it is held."""
        found = read_json(self.path / "run.json") or {}
        return found.get("run") == run and _is_locked(self.path / "lock")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """What Spark's server does with a batch (Spark Connect). BusyError while it still has another one."""
        make_folder(self.path)
        told = f"Spark's server still takes a batch of {self.step} {self.name}; wait for it"
        with _locked(self.path / "writer", WRITING_SECONDS_MAX, told):
            yield


def _is_locked(path: Path) -> bool:
    """Whether somebody has the lock. Who dies lets go by that."""
    try:
        with path.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def _locked(path: Path, seconds: float, told: str) -> Iterator[None]:
    """BusyError with these words where somebody else has the lock, still after so many seconds."""
    until = time.monotonic() + seconds
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise BusyError(told) from None
                time.sleep(LOCK_POLL_SECONDS)
        yield


def _sources(checkpoint: Path, batch: int) -> list[str]:
    """Where a batch ends, a text for each source in the order of Spark's plan, `-` where one has nothing yet."""
    return (checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()[2:]


def batch_end(checkpoint: Path, batch: int) -> Offsets:
    """Where a batch ends in its sources, by the plan that Spark wrote before it ran."""
    return Offsets.from_sources(_sources(checkpoint, batch))


def beginning(checkpoint: Path) -> Offsets:
    """Where the first batch of a checkpoint begins, of our sources; one that does not tell was empty."""
    begun = Offsets()
    for found in _named(checkpoint, 0):
        first = first_from_json(found) or from_json(found)
        begun = begun.joined(Offsets({(tp.topic, tp.partition): at for tp, at in first.items()}))
    return begun


def committed(checkpoint: Path) -> Offsets:
    """Where the last finished batch of a checkpoint ends; nothing before the first."""
    done = _finished(checkpoint)
    return batch_end(checkpoint, max(done)) if done else Offsets()


def committed_ids(checkpoint: Path) -> dict[str, TopicId]:
    """The ids of the topics that the last finished batch of a checkpoint read, of those that it names one for."""
    done = _finished(checkpoint)
    return batch_ids(checkpoint, max(done)) if done else {}


def batch_ids(checkpoint: Path, batch: int) -> dict[str, TopicId]:
    """The ids of the topics that a batch reads, of those that it names one for."""
    ids: dict[str, TopicId] = {}
    for found in _named(checkpoint, batch):
        ids |= ids_from_json(found)
    return ids


def _named(checkpoint: Path, batch: int) -> Iterator[dict[str, Any]]:
    """The ends of a batch in each source that names topics, as ours does."""
    for text in _sources(checkpoint, batch):
        found = None if text == NO_OFFSET else json.loads(text)
        if isinstance(found, dict) and all(isinstance(ends, dict) for ends in found.values()):
            yield found


def _finished(checkpoint: Path) -> list[int]:
    return [int(path.name) for path in (checkpoint / "commits").glob("*") if path.name.isdigit()]


def planned(checkpoint: Path) -> Offsets:
    """Where the last batch that was begun ends; nothing before the first."""
    begun = [int(path.name) for path in (checkpoint / "offsets").glob("*") if path.name.isdigit()]
    return batch_end(checkpoint, max(begun)) if begun else Offsets()


def batches(checkpoint: Path) -> int:
    """How many batches were begun."""
    return max((int(path.name) + 1 for path in (checkpoint / "offsets").glob("*") if path.name.isdigit()), default=0)


def unfinished(checkpoint: Path) -> bool:
    """Whether a batch was planned whose end is not noted: its rows may be written or not."""
    planned, done = (
        {int(path.name) for path in (checkpoint / kind).glob("*") if path.name.isdigit()}
        for kind in ("offsets", "commits")
    )
    return bool(planned - done) and max(planned) > max(done, default=-1)


def query_id(checkpoint: Path) -> str:
    """The name Spark gave the query for as long as its checkpoint lives."""
    found: str = read_json(checkpoint / "metadata")["id"]
    return found
