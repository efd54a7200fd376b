"""A short version of `make torture`, and the proof that it would notice a broken promise."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.torture.brim import VOLUME_BYTES, Brim
from tests.torture.cuts import PowerCuts
from tests.torture.full_disk import FullDisk, small_volume
from tests.torture.kills import SETTINGS, Torture
from tests.torture.ledger import Audit, Ledger, number_of, value_of
from tests.torture.load import Load
from tests.torture.nodes import ClusterTorture
from tests.torture.replicas import batches, differences
from tests.torture.shadow import apply, first_cut, read
from tests.worlds.served_node import Served, only_duramen

pytestmark = [only_duramen, pytest.mark.slow, pytest.mark.timeout(400)]


def test_kills_under_load_break_no_promise(tmp_path: Path) -> None:
    torture = Torture(tmp_path, seed=4)
    torture.run(kills=3, seconds_max=200, show=False, acknowledged_min=1001)
    assert torture.broken == []
    assert torture.kills >= 3
    assert torture.acknowledged_now() > 1000


def test_a_node_of_three_dies_and_all_copies_are_the_same(tmp_path: Path) -> None:
    """What is compared is noticed, too: a copy that lacks its end, another one's byte, an epoch of its own."""
    torture = ClusterTorture(tmp_path, seed=8, few=True)
    torture.run(faults=1, seconds_max=200)
    assert torture.broken == []
    assert torture.acknowledged_now() > 1000
    assert torture.compared > 100
    directories = [node.data for node in torture.cluster.nodes]
    path = max(directories[1].glob("g0-exact-0/*.log"))
    whole = path.read_bytes()
    name, last = path.parent.name, list(batches(path.parent))[-1]
    for damaged, sign in (
        (whole[: whole.rindex(last.base.to_bytes(8, "big"))], f"{name} ends at"),
        (whole[:200] + bytes([whole[200] ^ 1]) + whole[201:], "is damaged"),
        (whole[:15] + bytes([whole[15] ^ 1]) + whole[16:], f"{name} at "),
    ):
        path.write_bytes(damaged)
        found = differences(directories, "g0-exact")[0]
        assert sign in found[0], found
    path.write_bytes(whole)
    assert differences(directories, "g0-exact")[0] == []


def test_what_was_synced_is_all_it_takes(tmp_path: Path) -> None:
    cuts = PowerCuts(tmp_path, seed=5)
    cuts.run(rounds=1, cuts_per_round=2, seconds_max=200, show=False)
    assert cuts.broken == []
    assert cuts.cuts == 3


def test_a_topic_that_is_deleted_on_a_full_disk_makes_room_and_takes_nothing_with_it(tmp_path: Path) -> None:
    try:
        with small_volume(tmp_path) as volume:
            torture = FullDisk(tmp_path, volume, seed=3)
            torture.run(kills=1)
    except PermissionError as error:
        pytest.skip(str(error))
    assert torture.broken == []
    assert torture.kills == 1
    assert len(torture.acknowledged) > 100


def test_a_disk_that_gets_full_under_many_batches_stores_none_twice_and_gets_room_again(tmp_path: Path) -> None:
    try:
        with small_volume(tmp_path, VOLUME_BYTES) as volume:
            brim = Brim(tmp_path, volume, seed=2)
            brim.run(rounds=1, seconds=3)
    except PermissionError as error:
        pytest.skip(str(error))
    assert brim.broken == []
    assert brim.times_full()
    assert len(brim.acknowledged) == brim.sent


def test_an_answer_before_the_sync_is_noticed(tmp_path: Path) -> None:
    """All that was acknowledged is asked of the state some syncs earlier: what a node without syncs is left with."""
    cuts = PowerCuts(tmp_path, seed=6)
    cuts.node.start()
    load = Load(cuts.node.bootstrap, cuts.ledger, 0, 6, power=True)
    load.start()
    while cuts.ledger.acknowledged() < 2000:
        time.sleep(0.05)
    cuts.node.kill()
    syncs = read(cuts.node.notebook)
    folder = tmp_path / "early"
    apply(syncs[: (first_cut(syncs) + len(syncs)) // 2], folder)
    early = Served(folder, SETTINGS)
    early.start()
    try:
        broken = Audit(early.bootstrap, cuts.ledger, remember=False).run()
    finally:
        early.kill()
        cuts.node.start()
        load.stop()
        cuts.node.kill()
    assert any("was acknowledged" in line for line in broken), broken


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path, SETTINGS)
    served.start()
    yield served
    served.kill()


def test_the_audit_believes_nobody(node: Served) -> None:
    """Each kind of promise, made in the ledger and kept by no node."""
    ledger = Ledger()
    load = Load(node.bootstrap, ledger, 0, 1)
    load.start()
    while ledger.acknowledged() < 500 or min(len(sent.acknowledged) for sent in ledger.sent.values()) < 30:
        time.sleep(0.02)
    load.pause()
    load.stop()
    assert Audit(node.bootstrap, ledger).run() == []
    now = time.monotonic()
    sent = ledger.sent["g0-exact"]
    partition, offset, _ = sent.acknowledged[7]
    sent.acknowledged[7] = (partition, offset + 1, now)
    ledger.created["never-made"] = now
    ledger.deleted["g0-cached"] = now
    ledger.starts["g0-exact", 0].append((5, now))
    ledger.commits["g0-readers", "g0-exact", 0].append((1 << 40, now))
    ledger.read["g0-exact", 1][3] = (-1, now)
    ledger.partitions["g0-packed"] = (99, now)
    for kind in ("latest", "latest-cached", "passing"):
        sent = ledger.sent[f"g0-{kind}"]
        sent.acknowledged[1 << 40] = (0, -1, now)
        sent.keys[1 << 40], sent.made[1 << 40] = b"of " + kind.encode(), now + 600
    broken = "\n".join(Audit(node.bootstrap, ledger, time.monotonic()).run())
    for sign in (
        "7 was acknowledged at", "never-made was created", "g0-cached was deleted", "deleted were 5",
        f"acknowledged {1 << 40}", "at 3 was -1", "given 99 partitions", "b'of latest' was", "b'of latest-cached' was",
        f"[{1 << 40}] are younger",
    ):  # fmt: skip
        assert sign in broken, (sign, broken)


def test_a_changed_byte_in_a_record_is_noticed() -> None:
    value = bytearray(value_of(12345))
    assert number_of(bytes(value)) == 12345
    value[len(value) // 2] ^= 1
    with pytest.raises(ValueError, match="came back changed"):
        number_of(bytes(value))
