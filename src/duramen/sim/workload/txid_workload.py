"""Writers of streams whose records have transaction ids: their own, of which some step back, and their leaders'."""

from __future__ import annotations

from typing import Final

from duramen.errors import ErrorCode
from duramen.machines.contract import ProducerEpoch
from duramen.model import TopicPartition, named_producer_id
from duramen.sim.check.stream_book import Sent
from duramen.sim.workload.scripts import Script
from duramen.sim.workload.stream_stage import StreamStage, Told
from duramen.sim.workload.workload import RETRY_S, unexpected

MORE_WHILE_FAULTS: Final = 5
SPOILT: Final = 0.2
"""Share of the batches with an id below one before it."""
REFUSED: Final = (ErrorCode.TXID_OUT_OF_ORDER, ErrorCode.INVALID_TIMESTAMP)
"""What answers ids that step back: an append of ours, and a Produce."""


class TxidWriter:
    """Writes ids from the last one on that it knows of. is_named: each batch again until it is answered."""

    def __init__(self, stage: StreamStage, name: str, tp: TopicPartition, total: int, *, is_named: bool) -> None:
        self.stage = stage
        self.name = name
        self.tp = tp
        self.total = total
        self.producer = ProducerEpoch(named_producer_id(name), 0) if is_named else None
        self._last = 0
        self._made = 0

    def script(self) -> Script:
        """Until so many batches are taken."""
        random, scene, stage = self.stage.random, self.stage.scene, self.stage
        stored = 0
        while stored < self.total or (scene.faults_on and stored < self.total * MORE_WHILE_FAULTS):
            sent = self._batch(stored)
            by_produce = random.random() < 0.3
            while True:
                (told,) = yield from stage.append(self.name, self.tp, sent, by_produce=by_produce)
                if not told.is_open or (self.producer is None and random.random() < 0.5):
                    break
                yield RETRY_S * random.uniform(0.5, 1.5)
                if self.producer is None:
                    sent = self._batch(stored)  # the other one may be stored
            if told.code == ErrorCode.NONE:
                stored += 1
                self._last = max(self._last, *sent.txids)
            elif told.code in REFUSED:
                scene.coverage.hit("transaction id below the last refused")
                # A Produce is not told the last one.
                self._last = told.last_txid if told.last_txid >= 0 else self._last + random.randint(0, 20)
            elif not self._is_meant(told):
                assert told.code is not None
                raise unexpected(f"{self.name} append", told.code)
            elif self.producer is not None and told.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                return  # power failed, and took what precedes
            yield random.choice((0.0, 0.05, 0.4)) * random.random()

    def _is_meant(self, told: Told) -> bool:
        forgotten = told.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not self.stage.scene.is_stable(self.tp)
        return told.is_open or forgotten

    def _batch(self, sequence: int) -> Sent:
        random = self.stage.random
        count = random.choice((1, 1, 2, 4))
        txids = [max(1, self._last + random.choice((0, 0, 1, 7)))]
        for _ in range(count - 1):
            txids.append(txids[-1] + random.choice((0, 1, 3)))
        if random.random() < SPOILT:
            place = random.randrange(count)
            txids[place] = max(1, (txids[place - 1] if place else self._last) - random.choice((1, 2, 50)))
        values = tuple(f"{self.name}:{self._made}:{at}".encode() for at in range(count))
        self._made += 1
        return Sent(values, self.producer, -1 if self.producer is None else sequence, txids=tuple(txids))


class StampedWriter:
    """Writes to a stream whose leader gives the ids."""

    def __init__(self, stage: StreamStage, name: str, tp: TopicPartition, total: int) -> None:
        self.stage = stage
        self.name = name
        self.tp = tp
        self.total = total

    def script(self) -> Script:
        """Until so many batches are sent."""
        random, scene = self.stage.random, self.stage.scene
        made = 0
        while made < self.total or (scene.faults_on and made < self.total * MORE_WHILE_FAULTS):
            sent = Sent(tuple(f"{self.name}:{made}:{at}".encode() for at in range(random.choice((1, 1, 3)))))
            made += 1
            (told,) = yield from self.stage.append(self.name, self.tp, sent, by_produce=random.random() < 0.3)
            if told.code != ErrorCode.NONE and not told.is_open:
                assert told.code is not None
                raise unexpected(f"{self.name} append", told.code)
            yield random.choice((0.05, 0.2, 1.0)) * random.random()
