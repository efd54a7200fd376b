"""A transactional program: it copies records from one topic to another, with its positions in the same transactions.

    python -m tests.torture.copier BOOTSTRAP FROM TO GROUP TRANSACTIONAL_ID --seed 7 --aborts 0.1 --protocol classic

As confluent-kafka's documentation has it: consume, begin, produce, the positions, commit; after a failure abort, and
begin again where the group stands. Some transactions it aborts by itself: their values are marked, so that who is
given one can tell. It ends with FENCED when another program has its id, with STUCK when a call does not return, and is
started again.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import signal
import sys
import threading
import time
from types import FrameType

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

FENCED, STUCK = 3, 4
"""Exit statuses: what it began goes on elsewhere; the library did not come back from a call."""
STUCK_SECONDS = 40
"""Longer than any call may take."""
ABORTED = b"aborted "
"""What the values of a transaction begin with that is aborted on purpose."""
ATTEMPT_SECONDS = 10.0
BATCH = 100
QUIET = {
    "log_level": 0, "error_cb": lambda error: None, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200,
    # As it comes (rebootstrap), librdkafka forgets its coordinators with the last broker that it lost, looks for them
    # for seconds, and may then never send a TxnOffsetCommit.
    "metadata.recovery.strategy": "none",
}  # fmt: skip


class Watch:
    """Ends the process when nothing has moved for long, by its own seconds: those of a pause do not count."""

    def __init__(self) -> None:
        self.seconds = 0
        threading.Thread(target=self._count, daemon=True).start()

    def moved(self) -> None:
        self.seconds = 0

    def _count(self) -> None:
        while self.seconds < STUCK_SECONDS:
            time.sleep(1)
            self.seconds += 1
        print(f"{time.time():.3f} stuck", flush=True)
        faulthandler.dump_traceback()
        os._exit(STUCK)


class Copier:
    """One of them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.random = random.Random(f"{options.seed} {options.transactional_id} {time.time_ns()}")
        self.ended = False
        self.watch = Watch()
        group: dict[str, object] = {"group.protocol": options.protocol}
        if options.protocol == "classic":
            group |= {"session.timeout.ms": options.session_ms, "heartbeat.interval.ms": 500}
        self.consumer = Consumer(
            {
                "bootstrap.servers": options.bootstrap, "group.id": options.group, "enable.auto.commit": False,
                "auto.offset.reset": "earliest", "isolation.level": "read_committed", "fetch.wait.max.ms": 100,
                **group, **QUIET,
            }
        )  # fmt: skip
        self.producer = Producer(
            {
                "bootstrap.servers": options.bootstrap, "transactional.id": options.transactional_id, "linger.ms": 2,
                "transaction.timeout.ms": options.timeout_ms, "message.timeout.ms": options.timeout_ms, **QUIET,
            }
        )  # fmt: skip

    def run(self) -> None:
        self._until_done(lambda: self.producer.init_transactions(ATTEMPT_SECONDS))
        self.consumer.subscribe([self.options.source])
        while not self.ended:
            self.watch.moved()
            messages = [each for each in self.consumer.consume(self.random.randint(1, BATCH), 0.1) if not each.error()]
            if messages:
                self._transaction(messages)
        self.consumer.close()

    def _transaction(self, messages: list[Message]) -> None:
        aborts = self.random.random() < self.options.aborts
        try:
            self.producer.begin_transaction()
            for message in messages:
                value = message.value() or b""
                self._produce(message, ABORTED + value if aborts else value)
            if aborts:
                if self.random.random() < 0.5:
                    self.producer.flush(ATTEMPT_SECONDS)
                self._abort()
                return
            behind: dict[int, TopicPartition] = {}
            for message in messages:
                partition = message.partition()
                behind[partition] = TopicPartition(self.options.source, partition, message.offset() + 1)
            member = self.consumer.consumer_group_metadata()
            positions = list(behind.values())
            self._until_done(lambda: self.producer.send_offsets_to_transaction(positions, member, ATTEMPT_SECONDS))
            self._until_done(lambda: self.producer.commit_transaction(ATTEMPT_SECONDS))
        except KafkaException as error:
            print(f"{time.time():.3f} {error}", flush=True)
            if not error.args[0].txn_requires_abort():
                raise
            self._abort()

    def _produce(self, message: Message, value: bytes) -> None:
        while True:
            try:
                self.producer.produce(self.options.target, value, message.key(), message.partition())
                return
            except BufferError:
                self.producer.poll(0.1)

    def _abort(self) -> None:
        """Nothing of it has happened, so the next records are those where the group stands."""
        self._until_done(lambda: self.producer.abort_transaction(ATTEMPT_SECONDS))
        while not self.ended:
            self.watch.moved()
            try:
                for place in self.consumer.committed(self.consumer.assignment(), ATTEMPT_SECONDS):
                    if place.error is not None:
                        raise KafkaException(place.error)
                    place.offset = max(place.offset, 0)
                    self.consumer.seek(place)
                return
            except KafkaException as error:
                # A partition that was taken away meanwhile is another one's to go on with.
                if error.args[0].code() in (KafkaError._STATE, KafkaError._UNKNOWN_PARTITION):
                    return
                print(f"{time.time():.3f} where does the group stand: {error}", flush=True)
                time.sleep(0.05)

    def _until_done(self, step: object) -> None:
        """A step whose answer did not come in time is asked for again, as the library wants it."""
        assert callable(step)
        while True:
            self.watch.moved()
            try:
                step()
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
                print(f"{time.time():.3f} again: {error}", flush=True)
                time.sleep(0.02)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.torture.copier", description=__doc__)
    for name in ("bootstrap", "source", "target", "group", "transactional_id"):
        parser.add_argument(name)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--aborts", type=float, default=0.1, help="part of the transactions that it aborts by itself")
    parser.add_argument("--protocol", choices=("classic", "consumer"), default="classic")
    parser.add_argument("--timeout-ms", type=int, default=10_000, help="of a transaction")
    parser.add_argument("--session-ms", type=int, default=6_000)
    copier = Copier(parser.parse_args())

    def end(number: int, frame: FrameType | None) -> None:
        copier.ended = True

    signal.signal(signal.SIGTERM, end)
    try:
        copier.run()
    except KafkaException as error:
        print(f"{time.time():.3f} ended: {error}", flush=True)
        fenced = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
        if error.args[0].fatal() or error.args[0].code() in fenced:
            return FENCED
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
