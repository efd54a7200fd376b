"""`quorum-state`: the epoch that a node of the quorum knows, and the vote that it gave in it.

Kafka's file, in the folder of the metadata log: one line of JSON without blanks (KIP-595, and KIP-853 for the directory
of the vote). Kafka reads only that line. Ours is followed by one with the line's CRC-32C, for a flipped bit in an epoch
or in a vote would be a second vote in one epoch. A file of Kafka's has no second line.

It is replaced whole and is on the disk, name included, when a job has run: before that no vote may be answered.
"""

from __future__ import annotations

import json
import posixpath
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import Final, NamedTuple

from duramen.errors import StorageError
from duramen.ports import Disk
from duramen.storage.files.atomic import read_file, replace_file
from duramen.storage.files.crc_lines import decode_lines, encode_lines

QUORUM_STATE: Final = "quorum-state"
NO_DIRECTORY: Final = bytes(16)
"""Kafka's id of no directory: nobody was voted for, or by a node that knew none."""

QUORUM_STATE_LANE: Final = "quorum-state"
"""Of the Executor, for this file alone: a vote waits for no data."""

REMEDY_OF_QUORUM_STATE: Final = (
    "It keeps which vote this node gave, and without it the node could vote twice in one epoch. Where this node is the "
    "only voter, remove the file and start again. Otherwise put back no copy of it, for it may be from before a vote: "
    "take this node out of the voters, format its metadata directory anew and add it again"
)
"""What to do about a file that nobody can read. Also of one that is missing beside a log with other voters."""


class QuorumState(NamedTuple):
    """What has to be known after a crash, by the names of the quorum's ElectionState. -1: no leader, or no vote."""

    leader_id: int
    leader_epoch: int
    voted_id: int
    voted_directory_id: bytes = NO_DIRECTORY


def encode_quorum_state(state: QuorumState) -> bytes:
    """The file, data_version 1."""
    directory = urlsafe_b64encode(state.voted_directory_id).rstrip(b"=").decode()
    content = {
        "leaderId": state.leader_id,
        "leaderEpoch": state.leader_epoch,
        "votedId": state.voted_id,
        "votedDirectoryId": directory,
        "data_version": 1,
    }
    return encode_lines([json.dumps(content, separators=(",", ":"))])


def decode_quorum_state(content: bytes, path: str) -> QuorumState:
    """Inverse of `encode_quorum_state`, for Kafka's files of both versions, too; StorageError says what to do."""
    try:
        return _decode(content)
    except (ValueError, TypeError, KeyError) as error:
        raise StorageError(f"{path} is damaged ({_why(error)}). {REMEDY_OF_QUORUM_STATE}") from error


def _decode(content: bytes) -> QuorumState:
    if b"\n" in content.rstrip(b"\n"):
        lines = decode_lines(content, "{")
        if lines is None or len(lines) != 1:
            raise ValueError("its CRC is wrong")
        content = lines[0].encode()
    told = json.loads(content)
    if not isinstance(told, dict):
        raise TypeError("it is no JSON object")
    version = _number(told, "data_version")
    if version not in (0, 1):
        raise ValueError(f"data_version {version} is not known, 0 and 1 are")
    directory = NO_DIRECTORY
    if version == 1:
        directory = urlsafe_b64decode(told["votedDirectoryId"] + "==")
        if len(directory) != 16:
            raise ValueError("votedDirectoryId is no UUID")
    state = QuorumState(_number(told, "leaderId"), _number(told, "leaderEpoch"), _number(told, "votedId"), directory)
    if state.leader_epoch < 0 or min(state.leader_id, state.voted_id) < -1:
        raise ValueError("a number in it is below what it can be")
    return state


def _number(told: dict[str, object], key: str) -> int:
    value = told[key]
    if type(value) is not int:
        raise TypeError(f"{key} is no number")
    return value


def _why(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)


@dataclass(slots=True)
class QuorumStateFile:
    """The file of one metadata log. folder: the log's."""

    disk: Disk
    folder: str

    @property
    def path(self) -> str:
        return posixpath.join(self.folder, QUORUM_STATE)

    def read(self) -> QuorumState | None:
        """What it says, None where there is none. StorageError where it is damaged or cannot be read."""
        try:
            content = read_file(self.disk, self.path)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be read ({error}). {REMEDY_OF_QUORUM_STATE}") from error
        return None if content is None else decode_quorum_state(content, self.path)


@dataclass(slots=True)
class WriteQuorumStateJob:
    """Replaces the file; `run` on any thread, one job at a time: see QUORUM_STATE_LANE."""

    disk: Disk
    folder: str
    state: QuorumState

    def run(self) -> None:
        """The state is durable. OSError: it may be the old one or the new one; NoRoomError: the old one."""
        replace_file(self.disk, posixpath.join(self.folder, QUORUM_STATE), encode_quorum_state(self.state))
