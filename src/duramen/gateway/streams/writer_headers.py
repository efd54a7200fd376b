"""Headers by which a writer is known: Producer-Id, Producer-Epoch and Producer-Seq. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from duramen.gateway.edge.problem import bad_request
from duramen.model import named_producer_id

ID: Final = "producer-id"
EPOCH: Final = "producer-epoch"
SEQ: Final = "producer-seq"
EXPECTED_SEQ: Final = "producer-expected-seq"
RECEIVED_SEQ: Final = "producer-received-seq"

WRITER: Final = "stream-writer"
WRITER_SEQ: Final = "stream-writer-seq"
NEXT_SEQ: Final = "stream-writer-next-seq"

EPOCH_MAX: Final = 32_767
SEQ_MAX: Final = 2**53 - 1
NAME_LENGTH_MAX: Final = 1024

_SEQUENCES: Final = 1 << 31
_BEHIND: Final = 1 << 30
_NUMBER = re.compile(r"0|[1-9][0-9]{0,15}", re.ASCII)


class NamedWriter(NamedTuple):
    """Who writes, in which epoch, and the number of the request in it (from 0)."""

    name: str
    epoch: int
    sequence: int

    @property
    def producer_id(self) -> int:
        return named_producer_id(self.name)

    @property
    def base_sequence(self) -> int:
        """The batch's sequence: those of the log go on with 0 after 2^31 - 1."""
        return self.sequence % _SEQUENCES

    def expected(self, base_sequence: int) -> int:
        """The number of the request that has to come next, after a gap: `base_sequence` is how the log counts it."""
        return max(0, self.sequence - (self.sequence - base_sequence) % _SEQUENCES)

    def accepted(self, base_sequence: int) -> int:
        """The last number that was accepted, of a duplicate: `base_sequence` comes next, as the log counts."""
        return self.sequence + (base_sequence - 1 - self.sequence) % _SEQUENCES

    def headers(self, accepted: int | None = None) -> dict[str, str]:
        """Of an answer that it was accepted; accepted: the last of this epoch, if that is a later one."""
        return {EPOCH: str(self.epoch), SEQ: str(self.sequence if accepted is None else accepted)}


class OpenedWriter(NamedTuple):
    """The exclusive writer, by the producer id of its opening. sequence: the number of the request's first record, from
    0 since the opening; it counts records as Kafka's idempotent producers do.
    """

    producer_id: int
    sequence: int = 0

    @property
    def epoch(self) -> int:
        """Each opening has a new id, and never another epoch."""
        return 0

    @property
    def token(self) -> str:
        """Of the header Stream-Writer."""
        return str(self.producer_id)

    @property
    def base_sequence(self) -> int:
        """The batch's sequence: those of the log go on with 0 after 2^31 - 1."""
        return self.sequence % _SEQUENCES

    def next(self, base_sequence: int) -> int:
        """The number that has to come next: `base_sequence` is how the log counts it."""
        ahead = (base_sequence - self.sequence) % _SEQUENCES
        return self.sequence + (ahead if ahead < _BEHIND else ahead - _SEQUENCES)


def opened_writer(headers: Mapping[str, str], *, has_records: bool) -> OpenedWriter | None:
    """The exclusive writer that a request is of, if it says so. Problem 400."""
    producer_id = opened_writer_id(headers)
    if producer_id is None:
        if WRITER_SEQ in headers:
            raise bad_request(WRITER_SEQ, "it belongs to Stream-Writer, which is missing")
        return None
    if ID in headers:
        raise bad_request(WRITER, "a request is of the exclusive writer or of a named one (Producer-Id)")
    if not has_records:
        return OpenedWriter(producer_id)
    if WRITER_SEQ not in headers:
        raise bad_request(WRITER_SEQ, "it is missing; Stream-Writer-Next-Seq of the answer before says which it is")
    return OpenedWriter(producer_id, _number(headers, WRITER_SEQ, SEQ_MAX))


def opened_writer_id(headers: Mapping[str, str]) -> int | None:
    """What Stream-Writer says. Problem 400."""
    return None if WRITER not in headers else _number(headers, WRITER, SEQ_MAX)


def named_writer(headers: Mapping[str, str]) -> NamedWriter | None:
    """The writer that a request names, if it names one. Problem 400."""
    given = [name for name in (ID, EPOCH, SEQ) if name in headers]
    if not given:
        return None
    if len(given) < 3:
        raise bad_request(given[0], "Producer-Id, Producer-Epoch and Producer-Seq belong together")
    name = headers[ID]
    if not name.strip() or len(name) > NAME_LENGTH_MAX:
        raise bad_request(ID, f"it is empty, or longer than {NAME_LENGTH_MAX} characters")
    return NamedWriter(name, _number(headers, EPOCH, EPOCH_MAX), _number(headers, SEQ, SEQ_MAX))


def _number(headers: Mapping[str, str], name: str, most: int) -> int:
    text = headers[name]
    if not _NUMBER.fullmatch(text) or int(text) > most:
        raise bad_request(name, f"it is not a whole number from 0 to {most}")
    return int(text)
