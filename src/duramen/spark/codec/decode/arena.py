"""The records of many batches, inflated one behind the other into one buffer that is used again.

Whoever decodes takes copies of what it wants to keep. Batches that are not compressed are read where they lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from duramen.errors import ErrorCode, KafkaError
from duramen.spark.codec.decode.batches import Headers
from duramen.spark.codec.decode.varints import Bytes, Ints
from duramen.wire.batch import HEADER_SIZE
from duramen.wire.compression import decompress_into

CHUNK_BYTES: Final = 4 << 20
"""Inflated bytes that are decoded together: many batches go in lock-step, and the columns still fit a cache or two."""
_ROOM_BYTES: Final = CHUNK_BYTES + (4 << 20)
_WORTH_BYTES: Final = 1 << 20
"""From here on a run of uncompressed batches is read in place; a shorter one is copied beside its neighbours."""


_Packed = tuple[int, int, int, int]
"""Of one batch: where its records begin and end in what was fetched, their codec, and its base offset."""


class ArenaChunk(NamedTuple):
    """Some batches and where their records lie: payload i is `arena[starts[i]:ends[i]]`."""

    headers: Headers
    arena: Bytes
    starts: Ints
    ends: Ints


class Arena:
    """A buffer that grows to the largest batch it met; one per reading task."""

    def __init__(self, max_batch_bytes: int) -> None:
        self.max_batch_bytes = max_batch_bytes
        self._buffer = np.empty(0, np.uint8)

    def chunks(self, headers: Headers, data: memoryview) -> Iterator[ArenaChunk]:
        """All the batches, some at a time; a chunk is valid until the next one is asked for.

        Raises KafkaError MESSAGE_TOO_LARGE for a batch that inflates beyond `max_batch_bytes`, INVALID_RECORD for one
        that does not inflate.
        """
        total = len(headers.position)
        plain_until = _ends_of_plain_runs(headers)
        packed = _packed(headers)
        first = 0
        while first < total:
            behind = plain_until[first]
            size = (
                int(headers.position[behind - 1] + headers.size[behind - 1] - headers.position[first]) if behind else 0
            )
            if behind > first and (size >= _WORTH_BYTES or behind - first == total):
                behind = self._cut(headers, first, behind)
                chosen = headers.only(slice(first, behind))
                starts = chosen.position + HEADER_SIZE
                yield ArenaChunk(chosen, np.frombuffer(data, np.uint8), starts, chosen.position + chosen.size)
            else:
                behind, starts, ends = self._inflate(packed, data, first)
                yield ArenaChunk(headers.only(slice(first, behind)), self._buffer, starts, ends)
            first = behind

    def _cut(self, headers: Headers, first: int, behind: int) -> int:
        limit = int(headers.position[first]) + CHUNK_BYTES
        return max(first + 1, first + int(np.searchsorted(headers.position[first:behind], limit)))

    def _inflate(self, packed: list[_Packed], data: memoryview, first: int) -> tuple[int, Ints, Ints]:
        """Fill the buffer from batch `first` on: (batch behind the last, starts, ends)."""
        if not len(self._buffer):
            self._buffer = np.empty(min(_ROOM_BYTES, max(self.max_batch_bytes, 1)), np.uint8)
        room = memoryview(self._buffer.data)
        places = [0]
        index = first
        while index < len(packed) and places[-1] < CHUNK_BYTES:
            begin, end, codec, base_offset = packed[index]
            free = room[places[-1] : places[-1] + self.max_batch_bytes]
            try:
                places.append(places[-1] + decompress_into(codec, data[begin:end], free))
            except KafkaError as error:
                if error.code is not ErrorCode.MESSAGE_TOO_LARGE or len(free) == self.max_batch_bytes:
                    raise _named(error, base_offset) from None
                if index > first:
                    break  # it goes to the front of the next chunk
                self._buffer = np.empty(min(len(self._buffer) * 2, self.max_batch_bytes), np.uint8)
                room = memoryview(self._buffer.data)
                continue
            index += 1
        bounds = np.array(places, np.int64)
        return index, bounds[:-1], bounds[1:]


def _packed(headers: Headers) -> list[_Packed]:
    begin = (headers.position + HEADER_SIZE).tolist()
    end = (headers.position + headers.size).tolist()
    return list(zip(begin, end, headers.codec.tolist(), headers.base_offset.tolist(), strict=True))


def _ends_of_plain_runs(headers: Headers) -> list[int]:
    """For each batch: the index behind the run of uncompressed ones that it is in; its own index when compressed."""
    codecs = headers.codec.tolist()
    ends = list(range(len(codecs)))
    behind = len(codecs)
    for index in range(len(codecs) - 1, -1, -1):
        if codecs[index]:
            behind = index
        else:
            ends[index] = behind
    return ends


def _named(error: KafkaError, base_offset: int) -> KafkaError:
    return KafkaError(error.code, f"the batch at offset {base_offset}: {error.message}")
