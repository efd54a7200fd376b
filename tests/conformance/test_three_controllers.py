"""Three controllers as real processes: Kafka's tools read the quorum, a setting outlives its leader, and who may not
vote says so.

The usual run takes what costs seconds; DURAMEN_ALL_TOOLS=1 has the rest.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from benchmarks.kafka_peer import CONFIGS, DUMP_LOG, tool
from tests.worlds.controller_trio import ControllerTrio, ServedController
from tests.worlds.served_node import only_duramen

from duramen.client.blocking.connection import MAX_FRAME_BYTES, BlockingConnection
from duramen.partition.metadata.formation import new_id
from duramen.storage import SystemEntropy
from duramen.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest

QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
EVERY_NODE = ("--entity-type", "brokers", "--entity-default")
ALTER_CONFIGS = 44
BROKER_RESOURCE = 4
ALL = os.environ.get("DURAMEN_ALL_TOOLS") == "1"
ELECTION_SECONDS = 10.0
RESIGNED_SECONDS = 15.0
NO_LEADER_SECONDS = 3.0
"""An election takes less: time-outs are two to three seconds at most, and a vote none."""
SMALL = {
    "metadata.log.max.record.bytes.between.snapshots": "2048",
    "metadata.max.retention.bytes": "4096",
}

pytestmark = [only_duramen, pytest.mark.timeout(300)]


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Callable[..., ControllerTrio]]:
    """Makes one, and kills what is left of it."""
    made: list[ControllerTrio] = []

    def make(settings: dict[str, str] | None = None, *, has_broker: bool = True) -> ControllerTrio:
        made.append(ControllerTrio(tmp_path / f"trio-{len(made)}", settings, has_broker=has_broker))
        return made[-1]

    yield make
    for each in made:
        each.kill()


def asked(node: ServedController, classname: str, *words: str) -> str:
    """What one of Kafka's tools says, of this controller alone."""
    return tool(classname, "--bootstrap-controller", node.address, *words, timeout=90).stdout


def alter(node: ServedController, key: str, value: str) -> None:
    """A setting of every node, by way of the leader."""
    kind = IncrementalAlterConfigsRequest
    config = kind.AlterableConfig(name=key, config_operation=0, value=value)
    resource = kind.AlterConfigsResource(resource_type=BROKER_RESOURCE, resource_name="", configs=[config])
    until = time.monotonic() + 30
    connection = BlockingConnection(*node.controller, "test", until, MAX_FRAME_BYTES)
    try:
        answer = connection.call(ALTER_CONFIGS, kind.new(resources=[resource], validate_only=False), until)
    finally:
        connection.close()
    assert [each.error_code for each in answer.responses] == [0], answer


def no_leader(cluster: ControllerTrio) -> bool:
    """Whether nobody leads any more (who hears of no majority resigns), and nobody will."""
    until = time.monotonic() + RESIGNED_SECONDS
    while cluster.look().leader is not None and time.monotonic() < until:
        time.sleep(0.1)
    until = time.monotonic() + NO_LEADER_SECONDS
    leaders = []
    while time.monotonic() < until:
        leaders.append(cluster.look().leader)
        time.sleep(0.1)
    return not any(leaders)


@pytest.mark.skipif(not ALL, reason="DURAMEN_ALL_TOOLS=1 runs it")
@pytest.mark.usefixtures("kafka_jars")
def test_kafkas_tools_and_a_leader_that_dies(trio: Callable[..., ControllerTrio]) -> None:
    cluster = trio()
    cluster.form()
    cluster.launch()
    first = cluster.caught_up()
    leader = cluster.node(first.leader_id)

    status = asked(cluster.node(1), QUORUM, "describe", "--status")
    assert re.search(rf"ClusterId: +{cluster.cluster_id}\nLeaderId: +{leader.id}\n", status), status
    for node in cluster.nodes:
        voter = (
            f'{{"id": {node.id}, "directoryId": "{node.directory_id}", "endpoints": ["CONTROLLER://{node.address}"]}}'
        )
        assert voter in status, status
    assert re.search(r"CurrentObservers: +\[\]", status)
    replication = asked(cluster.node(2), QUORUM, "describe", "--replication")
    for node in cluster.nodes:
        role = "Leader" if node is leader else "Follower"
        assert re.search(rf"\n{node.id}\s+{node.directory_id}\s+\d+\s+0\s.*{role}", replication), replication

    asked(cluster.node(3), CONFIGS, "--alter", *EVERY_NODE, "--add-config", "message.max.bytes=999999")
    leader.kill()
    began = time.monotonic()
    second = cluster.leader(lambda answer: answer.leader_id != leader.id)
    assert time.monotonic() - began < ELECTION_SECONDS
    assert second.leader_epoch > first.leader_epoch
    described = asked(cluster.node(second.leader_id), CONFIGS, "--describe", *EVERY_NODE)
    assert "message.max.bytes=999999" in described
    leader.launch()
    assert cluster.caught_up().leader_epoch >= second.leader_epoch
    kraft = r"Feature: kraft\.version\s+SupportedMinVersion: 0\s+SupportedMaxVersion: 1\s+FinalizedVersionLevel: 1\s"
    assert re.search(kraft, asked(leader, FEATURES, "describe"))

    cluster.caught_up()
    cluster.kill()
    dumps = [dumped(node) for node in cluster.nodes]
    assert "isvalid: true" in dumps[0]
    assert '"type":"CONFIG_RECORD"' in dumps[0]
    shortest = min(dump.count("baseOffset") for dump in dumps)
    assert shortest >= 4
    same = [dump.split("baseOffset")[: shortest + 1] for dump in dumps]
    assert same[0] == same[1] == same[2]


def dumped(node: ServedController) -> str:
    """What kafka-dump-log says of its log, without the name of the file."""
    log = node.log_folder / "00000000000000000000.log"
    text = tool(DUMP_LOG, "--cluster-metadata-decoder", "--files", str(log), timeout=90).stdout
    return text.replace(str(log), "")


@pytest.mark.skipif(not ALL, reason="DURAMEN_ALL_TOOLS=1 runs it")
def test_a_node_that_was_away_while_the_log_was_cut(trio: Callable[..., ControllerTrio]) -> None:
    cluster = trio(SMALL)
    cluster.form()
    cluster.launch()
    leader = cluster.node(cluster.caught_up().leader_id)
    away = next(node for node in cluster.nodes if node is not leader)
    away.kill()
    end = cluster.leader().high_watermark
    number = 0
    until = time.monotonic() + 60
    while number < 100 or (leader.log_folder / "00000000000000000000-0000000000.checkpoint").exists():
        for _ in range(50):
            number += 1
            alter(leader, "message.max.bytes", str(100_000 + number))
        assert time.monotonic() < until, sorted(each.name for each in leader.log_folder.iterdir())
    away.launch()
    assert cluster.caught_up().high_watermark > end
    away.says("snapshot-loaded")
    # It is a voter as before: with the leader gone it makes a majority with the third one.
    leader.kill()
    cluster.leader(lambda answer: answer.leader_id != leader.id)


def test_who_has_lost_what_it_voted_by_does_not_vote(trio: Callable[..., ControllerTrio]) -> None:
    cluster = trio()
    cluster.form()
    cluster.launch()
    leader = cluster.node(cluster.caught_up().leader_id)
    lame = next(node for node in cluster.nodes if node is not leader)

    lame.stop()
    (lame.log_folder / "quorum-state").unlink()
    lame.launch()
    assert lame.ends() == 1
    lame.says("duramen: quorum-state is missing beside a log that has other voters")
    lame.says("Restore the file, or move the metadata directory away and format it by `duramen cluster init`")

    shutil.rmtree(lame.metadata)
    shutil.rmtree(lame.data)
    lame.launch()
    assert lame.ends() == 1
    lame.says(f"duramen: {lame.metadata} is not formatted, and controller.quorum.bootstrap.servers=")
    lame.says("Where it had a directory that is lost, with --no-initial-controllers")

    lame.directory_id = new_id(SystemEntropy())
    lame.init(*cluster.founding())
    lame.launch()
    assert lame.ends() == 1
    lame.says(f"its cluster began with 1:{cluster.leader().voters[0].directory_id}")


@pytest.mark.skipif(not ALL, reason="DURAMEN_ALL_TOOLS=1 runs it")
def test_a_wiped_disk_that_joins_again_follows_and_does_not_vote(trio: Callable[..., ControllerTrio]) -> None:
    cluster = trio()
    cluster.form()
    cluster.launch()
    leader = cluster.node(cluster.caught_up().leader_id)
    lame, other = (node for node in cluster.nodes if node is not leader)
    lame.stop()
    shutil.rmtree(lame.metadata)
    shutil.rmtree(lame.data)
    lame.init("--cluster-id", cluster.cluster_id, "--no-initial-controllers")
    lame.launch()
    lame.says("quorum-not-a-voter")
    lame.says("this node follows and does not vote")
    cluster.leader(lambda answer: any(each.id == lame.id and each.lag == 0 for each in answer.observers))
    other.kill()
    assert no_leader(cluster), "a wiped disk is not the voter that it was"
    other.launch()
    cluster.caught_up([leader.id, other.id])


def test_two_inits_that_differ_are_not_one_cluster(trio: Callable[..., ControllerTrio]) -> None:
    cluster = trio()
    lame = cluster.node(1)
    lame.init(*cluster.founding())
    lame.directory_id = new_id(SystemEntropy())
    for node in cluster.nodes[1:]:
        node.init(*cluster.founding())
        node.launch()
    assert cluster.leader().leader_id != lame.id
    lame.launch()
    assert lame.ends() == 1
    lame.says("this node was formatted with the voters 1:")
    lame.launch()  # what it was told in its first life is not stored
    assert lame.ends() == 1, "it is no member by its second start either"


@pytest.mark.skipif(not ALL, reason="DURAMEN_ALL_TOOLS=1 runs it")
def test_three_inits_of_clusters_of_their_own(trio: Callable[..., ControllerTrio]) -> None:
    cluster = trio()
    for node in cluster.nodes:
        cluster.cluster_id = new_id(SystemEntropy())
        node.init(*cluster.founding())
    cluster.launch()
    for node in cluster.nodes:
        node.says("is ready")
    assert no_leader(cluster)


@pytest.mark.skipif(not ALL, reason="DURAMEN_ALL_TOOLS=1 runs it")
def test_controllers_without_brokers(trio: Callable[..., ControllerTrio]) -> None:
    cluster = trio(has_broker=False)
    cluster.form()
    cluster.launch()
    first = cluster.caught_up()
    cluster.node(first.leader_id).kill()
    second = cluster.leader(lambda answer: answer.leader_id != first.leader_id)
    assert second.leader_epoch > first.leader_epoch
    cluster.stop()
