"""What a batch says of its producer; a marker that rolls back is recorded in the `.txnindex` of its segment."""

from __future__ import annotations

from duramen.ports import Buffer
from duramen.storage.segment.producer_state import ProducerStates
from duramen.storage.segment.segment import Segment
from duramen.wire.batch import BatchHeader, read_marker


def track_producer(producers: ProducerStates, segment: Segment, data: Buffer, header: BatchHeader) -> None:
    """Remember what the batch says, as it is appended or read again. data: of a control batch; of others it may be
    empty. OSError, where `.txnindex` finds no room: nothing has changed.
    """
    if not header.is_control:
        producers.update(header)
        return
    if header.producer_id < 0:
        producers.take_control(data, header)
        return
    marker = read_marker(data, header)
    if marker is not None:
        aborted = producers.rolled_back(header, marker)
        if aborted is not None and aborted not in segment.aborted():
            segment.add_aborted(aborted)
        producers.end_transaction(header, marker)
