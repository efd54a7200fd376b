"""Kafka's tools with --bootstrap-controller (KIP-919): a controller's listener answers them, a broker's sends them off.

As in `test_kafka_tools_all`, the usual run has a few of them; DURAMEN_ALL_TOOLS=1 has all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest
from benchmarks.kafka_peer import CONFIGS, TOPICS, tool
from tests.worlds.served_node import Served, free_port, only_duramen

TOOLS = "org.apache.kafka.tools."
CLUSTER = TOOLS + "ClusterTool"
FEATURES = TOOLS + "FeatureCommand"
QUORUM = TOOLS + "MetadataQuorumCommand"
VERSIONS = TOOLS + "BrokerApiVersionsCommand"
ALL = os.environ.get("DURAMEN_ALL_TOOLS") == "1"
pytestmark = [pytest.mark.usefixtures("kafka_jars"), pytest.mark.timeout(300), only_duramen]

NODE = ("--entity-type", "brokers", "--entity-name", "1")
VOTER = ("--controller-id", "1", "--controller-directory-id", "AAAAAAAAAAAAAAAAAAAAAQ")
CONTROLLER, BROKER = "--bootstrap-controller", "--bootstrap-server"
KRAFT = r"kraft\.version +SupportedMinVersion: 0\s+SupportedMaxVersion: 1\s+FinalizedVersionLevel: [01]"
SHORT = {"features", "endpoints", "quorum status", "a setting"}
CASES: dict[str, tuple[str, tuple[str, ...], int, str]] = {
    "cluster id": (CLUSTER, ("cluster-id",), 0, r"Cluster ID: \S{22}"),
    "endpoints": (CLUSTER, ("list-endpoints",), 0, r"\n1 +127\.0\.0\.1 PORT +null +controller"),
    "features": (FEATURES, ("describe",), 0, KRAFT + r"(.*\n)*.*metadata\.version .*3\.3-IV3.*4\.3-IV0.*4\.3-IV0"),
    "quorum status": (
        QUORUM,
        ("describe", "--status"),
        0,
        r'LeaderId: +1\n(.*\n)*CurrentVoters: +\[\{"id": 1, .*"endpoints": \["CONTROLLER://127\.0\.0\.1:PORT"\]',
    ),
    "quorum replication": (QUORUM, ("describe", "--replication"), 0, r"\n1\s.*Leader"),
    "a setting": (CONFIGS, ("--alter", *NODE, "--add-config", "message.max.bytes=999999"), 0, r"Completed updating"),
    "settings": (CONFIGS, ("--describe", "--all", *NODE), 0, r"log\.retention\.hours=168"),
    "cluster's settings": (
        CONFIGS,
        ("--describe", "--entity-type", "brokers", "--entity-default"),
        0,
        r"min\.insync\.replicas=1",
    ),
    "moves": (TOOLS + "reassign.ReassignPartitionsCommand", ("--list",), 0, r"No partition reassignments found"),
    "a voter less": (QUORUM, ("remove-controller", *VOTER), 1, r"UnsupportedVersionException: .*a later one will"),
    "other voters": (FEATURES, ("upgrade", "--feature", "kraft.version=7"), 1, r"Invalid update version 7"),
}


class Controlled(Served):
    """A node with a listener for its controller, too."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self.controller = f"127.0.0.1:{free_port()}"
        self.settings |= {
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{self.controller}",
            "controller.listener.names": "CONTROLLER",
        }


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    served = Controlled(tmp_path_factory.mktemp("controlled"))
    served.start()
    yield served
    served.kill()


def asked(classname: str, words: tuple[str, ...], *address: str) -> tuple[int, str]:
    """Exit status and what it said."""
    ahead = 1 if classname == CLUSTER else 0
    ran = tool(classname, *words[:ahead], *address, *words[ahead:], timeout=90, check=False)
    return ran.returncode, ran.stdout + ran.stderr


@pytest.mark.parametrize("case", CASES if ALL else [name for name in CASES if name in SHORT])
def test_tool(node: Controlled, case: str) -> None:
    classname, words, status, told = CASES[case]
    code, text = asked(classname, words, CONTROLLER, node.controller)
    assert code == status, text
    assert re.search(told.replace("PORT", node.controller.rpartition(":")[2]), text), text


@pytest.mark.skipif(not ALL, reason="DURAMEN_ALL_TOOLS=1 runs every tool")
def test_brokers_and_controllers_are_not_taken_for_each_other(node: Controlled) -> None:
    code, text = asked(CLUSTER, ("list-endpoints",), CONTROLLER, node.bootstrap)
    assert code == 1
    assert "MismatchedEndpointTypeException: The request was sent to an endpoint of type BROKER" in text
    code, text = asked(TOPICS, ("--list",), BROKER, node.controller)
    assert code == 1
    assert "The node does not support METADATA" in text
    code, text = asked(VERSIONS, (), BROKER, node.bootstrap)
    assert code == 0
    assert node.bootstrap in text
    assert node.controller not in text, "clients are told of brokers only"
    for name in ("Vote(52)", "Envelope(58)", "BrokerHeartbeat(63)", "UpdateRaftVoter(82)"):
        assert name not in text
