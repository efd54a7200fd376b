"""`quorum-state` as a write path: a node votes, epoch after epoch, while the log in the same folder grows.

Whatever a crash leaves, the file says what the last job that ended wrote, or what one that had begun was to write:
never an older vote, never nothing again, and never half of it.
"""

from __future__ import annotations

from typing import NamedTuple, cast

from tests.crash.explore import check_storage
from tests.crash.promises import Promises, require
from tests.crash.session import DATA, Session, open_directory
from tests.crash.states import State
from tests.crash.tape import Tape, TapeDisk

from duramen.storage.checkpoint.quorum_state import QuorumState, QuorumStateFile, WriteQuorumStateJob

FOLDER = f"{DATA}/topic1-0"


class Promised(NamedTuple):
    """What the logs have to keep, and what the file may say."""

    promises: Promises
    states: tuple[QuorumState | None, ...]


def quorum_state(seed: int) -> tuple[Tape, int]:
    """Adopts epochs, votes in them and follows who was elected; returns the tape and where that begins."""
    session = Session(seed)
    session.start()
    session.create(1)
    session.commit()
    session.begin()
    known: QuorumState | None = None
    for epoch in range(seed, seed + 4):
        directory = session.random.randbytes(16)
        for state in (
            QuorumState(-1, epoch, -1),
            QuorumState(-1, epoch, 2 + epoch % 2, directory),
            QuorumState(2 + epoch % 2, epoch, 2 + epoch % 2, directory),
        ):
            _mark(session, known, state)
            WriteQuorumStateJob(session.disk, FOLDER, state).run()
            known = state
            _mark(session, known)
        session.put(1, 200)
        session.run_groups()
        _mark(session, known)
    return session.disk.tape, session.first_step


def _mark(session: Session, *states: QuorumState | None) -> None:
    promises = {topic_id: promise.snapshot() for topic_id, promise in session.promises.items()}
    session.disk.mark(Promised(promises, states))


def check_quorum_state(state: State) -> None:
    """The file says what it may, also behind a start, which leaves nothing beside it and every log as promised."""
    if not isinstance(state.promised, Promised):
        return
    promised = cast(Promised, state.promised)
    disk = TapeDisk(state.tree)
    found = QuorumStateFile(disk, FOLDER).read()
    require(found in promised.states, f"it says {found}, it may say {promised.states}")
    open_directory(disk, promised.promises).close(clean=state.key[0] % 2 == 0)
    require(QuorumStateFile(disk, FOLDER).read() == found, "a start changed it")
    check_storage(state._replace(promised=promised.promises))
