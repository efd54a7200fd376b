"""A sink in a simulation: drivers that die between stage and commit, their successors, and what readers may see of it.

A batch is made anew by every attempt, under values that name the attempt. Whatever happens: of each batch that a driver
knows to be committed, the records of one attempt are in every partition, all of them, once, in the order of the
handles, and batch after batch; of attempts whose commit nobody asked for, nothing is ever seen.
"""

from __future__ import annotations

from typing import Any

from duramen.client.loop.node_client import NodeRequest, call
from duramen.errors import ErrorCode
from duramen.model import TopicPartition
from duramen.sim.check.invariants import InvariantViolated
from duramen.sim.workload.scripts import Script, Steps
from duramen.sim.workload.workload import LATEST, RETRY_S, Scene, create_topic, decoded, fetch, list_offset, unexpected
from duramen.wire.batch import build_batch

SUNK = "sunk"
SINK_ID = "sink"
LATE = "late"
"""Topic, and id, of the sink that commits long after it staged."""
PARTITIONS = 2
NAME = "StagedOnce"
"""The invariant, as it is named when it breaks."""
Attempt = tuple[int, int]
"""(batch id, number of the attempt)"""


class Sunk:
    """What a sink's drivers have done, and whether what is read of it can be."""

    def __init__(self, *, stable: bool, topic: str = SUNK) -> None:
        self.stable = stable
        self.topic = topic
        self.asked: dict[Attempt, list[list[bytes]]] = {}
        """Values by partition, in order, of the attempts whose commit was asked for."""
        self.known = -1
        """The last batch that a driver knows to be committed."""
        self.chosen: dict[int, int] = {}
        """The attempt that was seen of a batch."""

    def check(self, partition: int, values: list[bytes], known: int) -> None:
        """Judge one reading of a partition, begun when batches up to `known` were known to be committed."""
        position = batch_id = 0
        while position < len(values):
            batch_id, attempt = _attempt(values[position])
            expected = self._expected(batch_id, attempt, partition)
            found = values[position : position + len(expected)]
            if found != expected[: len(found)]:
                raise InvariantViolated(
                    NAME, f"partition {partition}, batch {batch_id}: {found[:5]}, not {expected[:5]}"
                )
            position += len(found)
            if len(found) < len(expected) and (position < len(values) or batch_id <= known):
                raise InvariantViolated(
                    NAME, f"partition {partition}: batch {batch_id} ends after {len(found)} records"
                )
        seen = [_attempt(value)[0] for value in values]
        if seen != sorted(seen):
            raise InvariantViolated(NAME, f"partition {partition}: batches are out of order")
        for wanted in range(max(known + 1, batch_id)):
            if wanted not in seen and self._has_records(wanted, partition):
                raise InvariantViolated(NAME, f"partition {partition}: batch {wanted} is committed, and not there")

    def _has_records(self, batch_id: int, partition: int) -> bool:
        """Whether the batch has some there, whichever of its attempts was committed."""
        chosen = self.chosen.get(batch_id)
        possible = [
            lists for (number, attempt), lists in self.asked.items() if number == batch_id and chosen in (None, attempt)
        ]
        return bool(possible) and all(lists[partition] for lists in possible)

    def committed(self, batch_id: int, attempt: int) -> None:
        """The attempt that took effect is known."""
        if self.chosen.setdefault(batch_id, attempt) != attempt:
            raise InvariantViolated(
                NAME, f"batch {batch_id}: attempt {attempt} was committed, {self.chosen[batch_id]} seen"
            )

    def _expected(self, batch_id: int, attempt: int, partition: int) -> list[bytes]:
        lists = self.asked.get((batch_id, attempt))
        if lists is None:
            raise InvariantViolated(NAME, f"attempt {attempt} of batch {batch_id} was never committed, and is seen")
        if self.chosen.setdefault(batch_id, attempt) != attempt:
            raise InvariantViolated(NAME, f"batch {batch_id}: attempts {self.chosen[batch_id]} and {attempt} are seen")
        return lists[partition]


def _attempt(value: bytes) -> Attempt:
    batch_id, attempt, _ = value.split(b":", 2)
    return int(batch_id), int(attempt)


class Driver:
    """Runs of one sink's program, one after the other: each dies somewhere, the next goes on with the same batch."""

    def __init__(self, scene: Scene, sunk: Sunk, batches: int, sink_id: str = SINK_ID) -> None:
        self.scene = scene
        self.sink_id = sink_id
        self.sunk = sunk
        self.batches = batches
        self.run = 0
        self.epoch = -1
        self.attempts = 0

    def script(self) -> Script:
        """Make the topic, then commit batch after batch."""
        scene = self.scene
        configs = {"internal.segment.bytes": scene.random.choice(("3000", "10000"))}
        configs["duramen.ack.durability"] = "stable" if self.sunk.stable else "page-cache"
        yield from create_topic(scene, self.sunk.topic, PARTITIONS, configs)
        yield from self._claim()
        batch_id = 0
        while batch_id < self.batches:
            done = yield from self._attempt(batch_id)
            if done:
                self.sunk.known = batch_id
                batch_id += 1
                yield scene.random.uniform(0.0, 0.3)
            else:
                yield from self._succeed(batch_id)

    def _claim(self) -> Script:
        """A new run: the sink is its from now on."""
        self.run += 1
        while True:
            response = yield call("ClaimSinkEpoch", 0, sink_id=self.sink_id, run_id=f"run {self.run}", ephemeral=False)
            if response is not None and response.error_code == ErrorCode.NONE:
                if response.epoch < self.epoch or response.last_batch_id < self.sunk.known:
                    raise InvariantViolated(NAME, f"epoch {response.epoch} after {self.epoch}: the sink was forgotten")
                self.epoch = response.epoch
                self.scene.note(f"run {self.run} has epoch {self.epoch}")
                return
            _check_retriable("claim", response)
            yield RETRY_S

    def _succeed(self, batch_id: int) -> Script:
        """The next run; what the last one may still send is refused."""
        old = self.epoch
        yield from self._claim()
        if self.epoch <= old:
            raise InvariantViolated(NAME, f"run {self.run} has the epoch of the one before it")
        response = yield self._commit(batch_id, [], epoch=old)
        if response is not None and response.error_code == ErrorCode.NONE:
            raise InvariantViolated(NAME, f"epoch {old} was superseded, and committed")

    def _attempt(self, batch_id: int) -> Steps[bool]:
        """Stage and commit; False where the driver dies or the coordinator knows nothing of a handle."""
        scene, random = self.scene, self.scene.random
        self.attempts += 1
        lists: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        handles: list[int] = []
        for task in range(random.choice((0, 1, 2, 4))):
            partition = random.randrange(PARTITIONS)
            values = self._values(batch_id, task)
            handle = yield from self._stage(batch_id, partition, values)
            if handle is None:
                return (yield from self._finish(batch_id, []))
            if random.random() < 0.8:  # else a task that was run a second time
                handles.append(handle)
                lists[partition] += values
        if random.random() < 0.1:
            scene.coverage.hit("a driver died between stage and commit")
            return False
        self.sunk.asked[(batch_id, self.attempts)] = lists
        if random.random() < 0.1:
            yield self._commit(batch_id, handles)
            scene.coverage.hit("a driver died without knowing whether it had committed")
            return False
        return (yield from self._finish(batch_id, handles))

    def _values(self, batch_id: int, task: int) -> list[bytes]:
        random = self.scene.random
        prefix = b"%d:%d:%d:" % (batch_id, self.attempts, task)
        padding = b"." * random.choice((0, 100, 2000))
        return [
            prefix + b"%d:%d" % (number, random.randrange(1000)) + padding for number in range(random.randint(1, 6))
        ]

    def _stage(self, batch_id: int, partition: int, values: list[bytes]) -> Steps[int | None]:
        """The handle; None when the batch is committed already."""
        while True:
            response = yield self._stage_request(batch_id, partition, values)
            if response is not None and response.error_code == ErrorCode.NONE:
                if response.already_committed:
                    return None
                entry = response.topics[0].partitions[0]
                if entry.error_code == ErrorCode.NONE:
                    return int(entry.handle)
                if not ErrorCode(entry.error_code).retriable:
                    raise unexpected("stage", entry.error_code)
            else:
                _check_retriable("stage", response)
            yield RETRY_S

    def _stage_request(self, batch_id: int, partition: int, values: list[bytes]) -> NodeRequest:
        random, now = self.scene.random, self.scene.clock.wall_ms()
        cut = random.randint(0, len(values))
        data = b"".join(
            bytes(build_batch([(b"k", value, [], now) for value in part]))
            for part in (values[:cut], values[cut:])
            if part
        )
        wanted = call(
            "StageBatch",
            0,
            sink_id=self.sink_id,
            epoch=self.epoch,
            batch_id=batch_id,
            task=f"{self.attempts}",
            timeout_ms=5000,
        )
        kinds = wanted.api.request
        piece = kinds.StagePartition(index=partition, records=data)
        wanted.request.topics.append(kinds.StageTopic(name=self.sunk.topic, partitions=[piece]))
        return wanted

    def _commit(self, batch_id: int, handles: list[int], epoch: int | None = None) -> NodeRequest:
        return call(
            "CommitStaged", 0, sink_id=self.sink_id, epoch=self.epoch if epoch is None else epoch, batch_id=batch_id,
            handles=handles, metadata=b"%d" % batch_id, timeout_ms=5000,
        )  # fmt: skip

    def _finish(self, batch_id: int, handles: list[int]) -> Steps[bool]:
        """Ask for the commit until it has taken effect."""
        while True:
            response = yield self._commit(batch_id, handles)
            code = None if response is None else response.error_code
            self.scene.note(f"commit of batch {batch_id}: {code}")
            if code == ErrorCode.NONE:
                if response.already_committed:
                    self.scene.coverage.hit("a commit that was repeated")
                else:
                    self.sunk.committed(batch_id, self.attempts)
                return True
            if code == ErrorCode.RESOURCE_NOT_FOUND:
                return False
            _check_retriable("commit", response)
            yield RETRY_S


class Latecomer(Driver):
    """A driver of another sink that stages at the start and commits when everybody else has long been done."""

    def __init__(self, scene: Scene, sunk: Sunk, others: Sunk, until: int) -> None:
        """until: the last batch of `others`."""
        super().__init__(scene, sunk, 1, LATE)
        self.others = others
        self.until = until

    def script(self) -> Script:
        """Stage, wait, commit: what was staged is there."""
        scene = self.scene
        yield from create_topic(scene, LATE, PARTITIONS, {"duramen.ack.durability": "stable"})
        yield from self._claim()
        self.attempts += 1
        lists: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        handles: list[int] = []
        for task in range(scene.random.choice((1, 3))):
            partition = scene.random.randrange(PARTITIONS)
            values = self._values(0, task)
            handle = yield from self._stage(0, partition, values)
            if handle is None:
                raise InvariantViolated(NAME, "a batch is committed that nobody committed")
            handles.append(handle)
            lists[partition] += values
        while self.others.known < self.until:
            yield scene.random.uniform(0.2, 1.0)
        self.sunk.asked[(0, self.attempts)] = lists
        done = yield from self._finish(0, handles)
        if not done:
            raise InvariantViolated(NAME, "what was staged and could be committed was dropped")
        self.sunk.known = 0
        scene.coverage.hit("a commit long after the staging")


def _check_retriable(what: str, response: Any) -> None:
    if response is not None and not ErrorCode(response.error_code).retriable:
        raise unexpected(f"{what} ({response.error_message})", response.error_code)


def read_sunk(scene: Scene, sunk: Sunk, *, final: bool = False) -> Script:
    """Read every partition once and ask for the verdict; final: nothing is under way or lost any more."""
    for partition in range(PARTITIONS):
        tp = TopicPartition(sunk.topic, partition)
        known = sunk.known
        end = yield from list_offset(scene, tp, LATEST)
        values: list[bytes] = []
        while len(values) < end:
            response = yield fetch(tp, len(values))
            answer = response.responses[0].partitions[0] if response is not None else None
            if answer is not None and answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and not sunk.stable:
                return
            if answer is None or answer.error_code != ErrorCode.NONE:
                if answer is not None and not ErrorCode(answer.error_code).retriable:
                    raise unexpected(f"fetch {tp} at {len(values)}", answer.error_code)
                yield RETRY_S
                continue
            values += [value for _, _, value in decoded(tp, answer.records, len(values))]
            if not answer.records and not sunk.stable:
                break
        scene.note(f"{tp}: {len(values)} records of batches up to {known} and more")
        sunk.check(partition, values, known if sunk.stable or final else -1)


def watch_sink(scene: Scene, sunk: Sunk) -> Script:
    """Read again and again while the scene lasts."""
    while sunk.known < 0 and scene.reading_on:
        yield RETRY_S
    while scene.reading_on:
        yield from read_sunk(scene, sunk)
        yield scene.random.uniform(0.05, 0.5)


def check_event(event: str, fields: dict[str, Any], *, excused: bool) -> None:
    """A node whose disk tells the truth never finds that a partition lost what it had of a sink."""
    if event == "sink-records-missing" and not excused:
        raise InvariantViolated(NAME, f"a partition lost what it had of a sink: {fields}")
