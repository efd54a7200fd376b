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

EPOCH_MAX: Final = 32_767
SEQ_MAX: Final = 2**53 - 1
NAME_LENGTH_MAX: Final = 1024

_SEQUENCES: Final = 1 << 31
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
        """The batch's sequence: those of the log go on with 0 behind 2^31 - 1."""
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
