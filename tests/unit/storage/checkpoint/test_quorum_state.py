"""`quorum-state`: byte for byte Kafka's first line, Kafka's files of both versions, and every flipped bit refused."""

from __future__ import annotations

from base64 import urlsafe_b64decode

import pytest

from duramen.errors import StorageError
from duramen.ports import Disk
from duramen.sim.world.disk import CrashDisk
from duramen.storage.checkpoint.quorum_state import (
    NO_DIRECTORY,
    QuorumState,
    QuorumStateFile,
    WriteQuorumStateJob,
    decode_quorum_state,
    encode_quorum_state,
)

DIRECTORY = urlsafe_b64decode("J8aAPcfLQt2bqs1JT_rMgQ==")
UNKNOWN = QuorumState(-1, 7, -1)
VOTED = QuorumState(-1, 9, 3, DIRECTORY)
KAFKA = {
    UNKNOWN: b'{"leaderId":-1,"leaderEpoch":7,"votedId":-1,'
    b'"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}',
    VOTED: b'{"leaderId":-1,"leaderEpoch":9,"votedId":3,"votedDirectoryId":"J8aAPcfLQt2bqs1JT_rMgQ","data_version":1}',
}
"""What Kafka 4.3.1 writes; it reads one line of its file, ours too."""
KAFKA_0 = (
    b'{"clusterId":"","leaderId":3,"leaderEpoch":9,"votedId":-1,"appliedOffset":0,'
    b'"currentVoters":[{"voterId":1},{"voterId":2},{"voterId":3}],"data_version":0}'
)


@pytest.mark.parametrize("state", KAFKA)
def test_its_first_line_is_kafkas(state: QuorumState) -> None:
    assert encode_quorum_state(state).split(b"\n")[0] == KAFKA[state]
    assert decode_quorum_state(encode_quorum_state(state), "f") == state
    assert decode_quorum_state(KAFKA[state], "f") == state


def test_a_file_from_before_directories_had_ids_is_read() -> None:
    assert decode_quorum_state(KAFKA_0, "f") == QuorumState(3, 9, -1, NO_DIRECTORY)


@pytest.mark.parametrize("state", KAFKA)
def test_no_flipped_bit_and_no_lost_end_passes(state: QuorumState) -> None:
    content = encode_quorum_state(state)
    for place in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        try:
            assert decode_quorum_state(bytes(damaged), "f") == state, f"bit {place}"
        except StorageError:
            continue
    for length in range(len(KAFKA[state])):
        with pytest.raises(StorageError):
            decode_quorum_state(content[:length], "f")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        bytes(104),
        KAFKA[VOTED].replace(b"data_version", b"version"),
        KAFKA[VOTED].replace(b'version":1', b'version":2'),
        KAFKA[VOTED].replace(b"J8aAPcfLQt2bqs1JT_rMgQ", b"J8aA"),
        KAFKA[VOTED].replace(b"9", b"true"),
        KAFKA[VOTED].replace(b"9", b"-1"),
        KAFKA[VOTED].replace(b"3", b"-2"),
    ],
)
def test_what_is_no_quorum_state_is_refused_with_the_remedy(content: bytes) -> None:
    with pytest.raises(StorageError, match=r"/d/quorum-state is damaged.*only voter, remove the file"):
        decode_quorum_state(content, "/d/quorum-state")


def test_it_is_replaced_whole_and_read_again() -> None:
    disk = CrashDisk()
    disk.make_directories("/d")
    disk.sync_directory("/")
    file = QuorumStateFile(disk, "/d")
    assert file.read() is None
    for state in (UNKNOWN, VOTED):
        WriteQuorumStateJob(disk, "/d", state).run()
        assert file.read() == state
    assert disk.list_directory("/d") == ["quorum-state"]


def test_what_cannot_be_read_is_not_taken_for_missing() -> None:
    class Failing(CrashDisk):
        def open(self, path: str, *, create: bool = False, write: bool = False) -> object:  # type: ignore[override]
            raise OSError(5, "Input/output error", path)

    disk: Disk = Failing()  # type: ignore[assignment]
    with pytest.raises(StorageError, match="cannot be read"):
        QuorumStateFile(disk, "/d").read()
