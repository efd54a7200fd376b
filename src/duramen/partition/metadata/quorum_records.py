"""Control records of the metadata quorum: who leads an epoch, who votes (KIP-595, KIP-853)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from duramen.machines.contract import LogRecord
from duramen.machines.metadata.image import MetadataImage
from duramen.machines.raft.voters import ReplicaKey, Voter, VoterEndpoint, Voters
from duramen.partition.host.replay import bytes_of
from duramen.storage import Log
from duramen.wire.batch import BatchHeader, batches, check_crc, records
from duramen.wire.records import control
from duramen.wire.records.control import ControlType

MAX_RECORD_BYTES = 1 << 20
KRAFT_VERSION = 1
"""Voters are in the log, with their directories."""


def opening_records(
    local: ReplicaKey, voters: Voters, granted: Iterable[int], recorded: Voters | None
) -> list[LogRecord]:
    """What a new leader begins its epoch with: LeaderChange, and the voters where the log does not name just these."""
    kind = control.LeaderChangeMessage.Voter
    who = [kind(voter_id=voter.id) for voter in voters]
    gave = set(granted)
    opening = control.LeaderChangeMessage.new(
        version=0,  # Kafka's dump tool reads every one as of this version, which has no directory ids
        leader_id=local.id,
        voters=who,
        granting_voters=[voter for voter in who if voter.voter_id in gave],
    )
    found = [_record(ControlType.LEADER_CHANGE, opening)]
    if recorded != voters:
        version = control.KRaftVersionRecord.new(version=0, k_raft_version=KRAFT_VERSION)
        found.append(_record(ControlType.KRAFT_VERSION, version))
        found.append(_record(ControlType.KRAFT_VOTERS, voters_message(voters)))
    return found


def voters_message(voters: Voters) -> object:
    """A VotersRecord."""
    message = control.VotersRecord
    return message.new(
        version=0,
        voters=[
            message.Voter(
                voter_id=voter.id,
                voter_directory_id=voter.directory_id,
                endpoints=[message.Endpoint(name=name, host=host, port=port) for name, host, port in voter.endpoints],
                k_raft_version_feature=message.KRaftVersionFeature(
                    min_supported_version=0, max_supported_version=KRAFT_VERSION
                ),
            )
            for voter in voters
        ],
    )


def voters_of(record: LogRecord) -> Voters | None:
    """The voters that a control record names; None of one that names none."""
    if record.key is None or record.value is None or control.decode_key(record.key) != ControlType.KRAFT_VOTERS:
        return None
    _, message = control.decode(record.key, record.value)
    return Voters(
        Voter(
            voter.voter_id,
            bytes(voter.voter_directory_id),
            tuple(VoterEndpoint(each.name, each.host, each.port) for each in voter.endpoints),
        )
        for voter in message.voters
    )


def voters_of_image(image: MetadataImage) -> Voters | None:
    """The voters that the newest control record in an image names."""
    record = image.quorum.get(ControlType.KRAFT_VOTERS)
    return None if record is None else voters_of(record)


def voters_in(view: memoryview, header: BatchHeader) -> Iterator[Voters]:
    """The voters that a batch names."""
    if header.is_control:
        for record in records(view, header, max_bytes=MAX_RECORD_BYTES):
            named = voters_of(LogRecord(record.key, record.value))
            if named is not None:
                yield named


def latest_voters(log: Log, offset: int, known: Voters | None) -> Voters | None:
    """Those whom the log names last, committed or not, from `offset` on. CorruptLogError, OSError."""
    while offset < log.end_offset:
        found = log.read(offset, 1 << 20, log.end_offset, at_least_one=True)
        data = memoryview(b"".join(map(bytes_of, found.parts)))
        position = offset
        for start, header in batches(data):
            view = data[start : start + header.size]
            position = header.next_offset
            if header.is_control and check_crc(view, header):
                for named in voters_in(view, header):
                    known = named
        if position <= offset:
            break
        offset = position
    return known


def _record(kind: ControlType, message: object) -> LogRecord:
    return LogRecord(control.encode_key(kind), control.encode_value(kind, message))
