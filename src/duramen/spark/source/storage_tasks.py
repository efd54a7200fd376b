"""A task's reading of sealed segments: from their files while that works, and a note of where the broker takes over."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Final

import numpy as np

from duramen.client import READ_COMMITTED, Cluster
from duramen.client.blocking.sealed_segments import SealedReader
from duramen.client.blocking.segment_plans import extend_leases
from duramen.errors import CorruptLogError, DuramenError, SegmentGoneError, StorageError, UnreachableStorageError
from duramen.spark.codec.decode import Decoder
from duramen.spark.codec.decode.batches import read_headers
from duramen.spark.source.plan import Split
from duramen.spark.source.settings import SourceSettings
from duramen.spark.source.storage_plan import LEASE_MS, STORAGE
from duramen.wire.batch import TRANSACTIONAL

_CHUNK_BYTES: Final = 8 << 20
_log = logging.getLogger("duramen.spark")


class _NeedsBrokerError(Exception):
    """Only the broker knows which transactions were aborted."""


def stored_bytes(cluster: Cluster, split: Split, settings: SourceSettings, decoder: Decoder) -> Iterator[memoryview]:
    """Whole batches of the split's sealed segments, in order; ends early where the broker has to go on.

    The caller decodes each before it asks for the next. With readFrom=storage a file that cannot be reached is an
    UnreachableStorageError, and bytes that differ from their seal are a CorruptLogError; otherwise the broker is asked.
    """
    lease = _Lease(cluster, split)
    for piece in split.pieces:
        try:
            lease.keep()
            with SealedReader(piece.segment) as reader:
                for chunk in reader.read(piece.start, piece.stop, _CHUNK_BYTES):
                    if chunk.next_offset <= decoder.next_offset:
                        continue
                    _check_transactions(chunk.data, settings.isolation)
                    yield chunk.data
                    lease.keep()
        except (UnreachableStorageError, CorruptLogError) as error:
            if settings.read_from == STORAGE:
                raise
            _log.warning("%s goes on with the broker from offset %d: %s", split.tp, decoder.next_offset, error)
            return
        except (SegmentGoneError, StorageError, OSError, _NeedsBrokerError) as error:
            _log.info("%s goes on with the broker from offset %d: %s", split.tp, decoder.next_offset, error)
            return
        if piece.end_offset > decoder.next_offset and piece.stop is None:
            decoder.skip_to(piece.end_offset)  # nothing is left in between: compaction, or markers


def _check_transactions(data: memoryview, isolation: int) -> None:
    if isolation == READ_COMMITTED and np.any(read_headers(data).attributes & TRANSACTIONAL):
        raise _NeedsBrokerError("there are transactions in the segment")


class _Lease:
    """The plan's leases, prolonged while a task reads."""

    def __init__(self, cluster: Cluster, split: Split) -> None:
        self._cluster = cluster
        self._leases = list(split.leases)
        self._until = 0.0

    def keep(self) -> None:
        """Prolong them when a third of their time is gone. Raises SegmentGoneError when they do not hold any more."""
        if not self._leases or time.monotonic() < self._until:
            return
        try:
            self._leases = extend_leases(self._cluster, self._leases, LEASE_MS)
        except SegmentGoneError:
            raise
        except DuramenError as error:
            raise SegmentGoneError(f"the lease could not be prolonged: {error}") from error
        shortest = min(lease.lease_ms for lease in self._leases)
        self._until = time.monotonic() + shortest / 3000
