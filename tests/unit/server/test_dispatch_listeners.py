"""What a broker's listener serves, and what a controller's: each knows nothing of the other's APIs."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.worlds.broker_world import CONTROLLER, CONTROLLER_PORT, PORT, InProcess

from duramen.errors import ErrorCode
from duramen.machines.metadata.features import OFFERED
from duramen.server.dispatch import ROWS, TABLES
from duramen.server.net.listener_type import ListenerType
from duramen.wire.messages import API, OWN_KEYS

# API, lowest and highest version, and listeners (b broker, c controller) of Apache Kafka 4.3.1.
KAFKA = {
    0: ("Produce", 3, 13, "b"),
    1: ("Fetch", 4, 18, "bc"),
    2: ("ListOffsets", 1, 11, "b"),
    3: ("Metadata", 0, 13, "b"),
    8: ("OffsetCommit", 2, 10, "b"),
    9: ("OffsetFetch", 1, 10, "b"),
    10: ("FindCoordinator", 0, 6, "b"),
    11: ("JoinGroup", 0, 9, "b"),
    12: ("Heartbeat", 0, 4, "b"),
    13: ("LeaveGroup", 0, 5, "b"),
    14: ("SyncGroup", 0, 5, "b"),
    15: ("DescribeGroups", 0, 6, "b"),
    16: ("ListGroups", 0, 5, "b"),
    17: ("SaslHandshake", 0, 1, "bc"),
    18: ("ApiVersions", 0, 4, "bc"),
    19: ("CreateTopics", 2, 7, "bc"),
    20: ("DeleteTopics", 1, 6, "bc"),
    21: ("DeleteRecords", 0, 2, "b"),
    22: ("InitProducerId", 0, 5, "b"),
    23: ("OffsetForLeaderEpoch", 2, 4, "b"),
    24: ("AddPartitionsToTxn", 0, 5, "b"),
    25: ("AddOffsetsToTxn", 0, 4, "b"),
    26: ("EndTxn", 0, 5, "b"),
    27: ("WriteTxnMarkers", 1, 2, "b"),
    28: ("TxnOffsetCommit", 0, 5, "b"),
    29: ("DescribeAcls", 1, 3, "bc"),
    30: ("CreateAcls", 1, 3, "bc"),
    31: ("DeleteAcls", 1, 3, "bc"),
    32: ("DescribeConfigs", 1, 4, "bc"),
    33: ("AlterConfigs", 0, 2, "bc"),
    34: ("AlterReplicaLogDirs", 1, 2, "b"),
    35: ("DescribeLogDirs", 1, 5, "b"),
    36: ("SaslAuthenticate", 0, 2, "bc"),
    37: ("CreatePartitions", 0, 3, "bc"),
    38: ("CreateDelegationToken", 1, 3, "bc"),
    39: ("RenewDelegationToken", 1, 2, "bc"),
    40: ("ExpireDelegationToken", 1, 2, "bc"),
    41: ("DescribeDelegationToken", 1, 3, "bc"),
    42: ("DeleteGroups", 0, 2, "b"),
    43: ("ElectLeaders", 0, 2, "bc"),
    44: ("IncrementalAlterConfigs", 0, 1, "bc"),
    45: ("AlterPartitionReassignments", 0, 1, "bc"),
    46: ("ListPartitionReassignments", 0, 0, "bc"),
    47: ("OffsetDelete", 0, 0, "b"),
    48: ("DescribeClientQuotas", 0, 1, "b"),
    49: ("AlterClientQuotas", 0, 1, "bc"),
    50: ("DescribeUserScramCredentials", 0, 0, "bc"),
    51: ("AlterUserScramCredentials", 0, 0, "bc"),
    52: ("Vote", 0, 2, "c"),
    53: ("BeginQuorumEpoch", 0, 1, "c"),
    54: ("EndQuorumEpoch", 0, 1, "c"),
    55: ("DescribeQuorum", 0, 2, "bc"),
    56: ("AlterPartition", 2, 3, "c"),
    57: ("UpdateFeatures", 0, 2, "bc"),
    58: ("Envelope", 0, 0, "c"),
    59: ("FetchSnapshot", 0, 1, "c"),
    60: ("DescribeCluster", 0, 2, "bc"),
    61: ("DescribeProducers", 0, 0, "b"),
    62: ("BrokerRegistration", 0, 4, "c"),
    63: ("BrokerHeartbeat", 0, 2, "c"),
    64: ("UnregisterBroker", 0, 0, "bc"),
    65: ("DescribeTransactions", 0, 0, "b"),
    66: ("ListTransactions", 0, 2, "b"),
    67: ("AllocateProducerIds", 0, 0, "c"),
    68: ("ConsumerGroupHeartbeat", 0, 1, "b"),
    69: ("ConsumerGroupDescribe", 0, 1, "b"),
    70: ("ControllerRegistration", 0, 0, "c"),
    71: ("GetTelemetrySubscriptions", 0, 0, "b"),
    72: ("PushTelemetry", 0, 0, "b"),
    73: ("AssignReplicasToDirs", 0, 0, "c"),
    74: ("ListConfigResources", 0, 1, "b"),
    75: ("DescribeTopicPartitions", 0, 0, "b"),
    76: ("ShareGroupHeartbeat", 1, 1, "b"),
    77: ("ShareGroupDescribe", 1, 1, "b"),
    78: ("ShareFetch", 1, 2, "b"),
    79: ("ShareAcknowledge", 1, 2, "b"),
    80: ("AddRaftVoter", 0, 1, "bc"),
    81: ("RemoveRaftVoter", 0, 0, "bc"),
    82: ("UpdateRaftVoter", 0, 0, "c"),
    83: ("InitializeShareGroupState", 0, 0, "b"),
    84: ("ReadShareGroupState", 0, 0, "b"),
    85: ("WriteShareGroupState", 0, 1, "b"),
    86: ("DeleteShareGroupState", 0, 0, "b"),
    87: ("ReadShareGroupStateSummary", 0, 1, "b"),
    88: ("StreamsGroupHeartbeat", 0, 0, "b"),
    89: ("StreamsGroupDescribe", 0, 0, "b"),
    90: ("DescribeShareGroupOffsets", 0, 1, "b"),
    91: ("AlterShareGroupOffsets", 0, 0, "b"),
    92: ("DeleteShareGroupOffsets", 0, 0, "b"),
}
TO_COME = {
    73: "c",
    **dict.fromkeys((38, 39, 40, 41, 49, 51), "bc"),
    **dict.fromkeys((71, 72, *range(76, 80), *range(83, 93)), "b"),
}
"""Not served yet, and where."""
MIN_ADVERTISED = {0: 0}
"""Versions that are advertised and not served: see `dispatch`."""
PORTS = {"b": PORT, "c": CONTROLLER_PORT}


@pytest.fixture(scope="module")
def node() -> InProcess:
    return InProcess(**CONTROLLER)


def apis(node: InProcess, port: int, version: int = 4) -> Any:
    named = {"client_software_name": "s", "client_software_version": "1"} if version >= 3 else {}
    return node.connect(port).call(18, version, **named)


@pytest.mark.parametrize("letter", "bc")
@pytest.mark.parametrize("version", range(5))
def test_each_listener_advertises_what_kafka_serves_there(node: InProcess, letter: str, version: int) -> None:
    told = {api.api_key: (api.min_version, api.max_version) for api in apis(node, PORTS[letter], version).api_keys}
    expected = {
        key: (MIN_ADVERTISED.get(key, low), high)
        for key, (_, low, high, listeners) in KAFKA.items()
        if letter in listeners and letter not in TO_COME.get(key, "")
    }
    assert {key: told[key] for key in told if key < OWN_KEYS} == expected
    assert any(key >= OWN_KEYS for key in told) == (letter == "b"), "our own APIs are for clients"


def test_no_api_has_two_rows_for_one_listener() -> None:
    for listener in ListenerType:
        keys = [row.api.key for row in ROWS if listener in row.listeners]
        assert len(keys) == len(set(keys))
        assert set(keys) == set(TABLES[listener])


@pytest.mark.parametrize(
    ("port", "key"),
    [(CONTROLLER_PORT, key) for key in sorted(TABLES[ListenerType.BROKER].keys() - TABLES[ListenerType.CONTROLLER])]
    + [(PORT, key) for key in sorted(TABLES[ListenerType.CONTROLLER].keys() - TABLES[ListenerType.BROKER])]
    + [(PORT, 73), (CONTROLLER_PORT, 73)],
)
def test_an_api_of_the_other_listener_is_unknown(node: InProcess, port: int, key: int) -> None:
    line = node.connect(port)
    line.ask(key, API[key].max_version)
    node.run()
    assert line.closed
    version = API[key].max_version
    assert node.events[-1][1]["reason"] == f"API key {key} version {version} is not served"


def test_a_node_that_names_no_controller_listener_opens_none() -> None:
    node = InProcess()
    assert list(node._accept) == [PORT]
    assert node.broker.acceptor.controller_listeners == []
    quorum = described_quorum(node, PORT)
    assert [(n.node_id, [(e.name, e.port) for e in n.listeners]) for n in quorum.nodes] == [(1, [("PLAINTEXT", PORT)])]


# ---- DescribeCluster (KIP-919) -----------------------------------------------------------------------------------


def described(node: InProcess, port: int, version: int, **fields: Any) -> Any:
    return node.connect(port).call(60, version, **fields)


@pytest.mark.parametrize("version", [1, 2])
def test_a_controller_tells_of_controllers(node: InProcess, version: int) -> None:
    told = described(node, CONTROLLER_PORT, version, endpoint_type=2)
    assert (told.error_code, told.endpoint_type, told.controller_id) == (0, 2, 1)
    assert told.cluster_id == node.broker.cluster_id
    assert [(n.broker_id, n.host, n.port, n.rack) for n in told.brokers] == [(1, "127.0.0.1", CONTROLLER_PORT, None)]
    told = described(node, CONTROLLER_PORT, version, endpoint_type=2, include_cluster_authorized_operations=True)
    assert told.cluster_authorized_operations > 0


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_broker_tells_of_brokers(node: InProcess, version: int) -> None:
    told = described(node, PORT, version)
    assert (told.error_code, told.controller_id) == (0, 1)
    assert [(n.broker_id, n.port) for n in told.brokers] == [(1, PORT)]
    assert told.endpoint_type == 1


@pytest.mark.parametrize(
    ("port", "version", "wanted", "code", "words"),
    [
        (PORT, 1, 2, ErrorCode.MISMATCHED_ENDPOINT_TYPE, "type BROKER, but we wanted an endpoint of type CONTROLLER"),
        (PORT, 2, 2, ErrorCode.MISMATCHED_ENDPOINT_TYPE, "type BROKER, but we wanted an endpoint of type CONTROLLER"),
        (PORT, 2, 3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "Unsupported endpoint type 3"),
        (CONTROLLER_PORT, 1, 1, ErrorCode.MISMATCHED_ENDPOINT_TYPE, "type CONTROLLER, but we wanted .* type BROKER"),
        (CONTROLLER_PORT, 2, 0, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "Unsupported endpoint type 0"),
        (CONTROLLER_PORT, 2, -1, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "Unsupported endpoint type -1"),
        (CONTROLLER_PORT, 0, None, ErrorCode.INVALID_REQUEST, "type CONTROLLER, but we wanted .* type BROKER"),
    ],
)
def test_nodes_of_another_kind_are_refused(
    node: InProcess, port: int, version: int, wanted: int | None, code: ErrorCode, words: str
) -> None:
    told = described(node, port, version, **({} if wanted is None else {"endpoint_type": wanted}))
    assert told.error_code == code
    assert told.brokers == []
    assert re.search(words, told.error_message), told.error_message


# ---- features and quorum -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("port", [PORT, CONTROLLER_PORT])
def test_the_quorum_s_feature_is_told_to_who_understands_it(node: InProcess, port: int) -> None:
    """KAFKA-17011: older clients refuse a feature whose lowest version is 0."""
    names = {
        v: {f.name: (f.min_version, f.max_version) for f in apis(node, port, v).supported_features} for v in (3, 4)
    }
    offered = {name: (low, high) for name, low, high in OFFERED}
    assert names[4] == {**offered, "kraft.version": (0, 1)}
    assert names[3] == {"metadata.version": (7, 30)}
    assert {f.name: f.max_version_level for f in apis(node, port).finalized_features} == {
        **{name: high for name, (_, high) in offered.items()},
        "kraft.version": 1,
    }


def described_quorum(node: InProcess, port: int) -> Any:
    request = API[55].request
    topics = [request.TopicData(topic_name="__cluster_metadata", partitions=[request.PartitionData(partition_index=0)])]
    return node.connect(port).call(55, 2, topics=topics)


@pytest.mark.parametrize("port", [PORT, CONTROLLER_PORT])
def test_the_quorum_is_described_with_the_controllers_addresses(node: InProcess, port: int) -> None:
    quorum = described_quorum(node, port)
    partition = quorum.topics[0].partitions[0]
    assert (quorum.error_code, partition.leader_id, [v.replica_id for v in partition.current_voters]) == (0, 1, [1])
    told = [(n.node_id, [(e.name, e.host, e.port) for e in n.listeners]) for n in quorum.nodes]
    assert told == [(1, [("CONTROLLER", "127.0.0.1", CONTROLLER_PORT)])]


def test_topics_and_settings_change_through_a_controller(node: InProcess) -> None:
    node.connect(CONTROLLER_PORT).create_topic("through-a-controller")
    alter = API[44].request
    line = node.connect(CONTROLLER_PORT)
    changes = [
        alter.AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[alter.AlterableConfig(name=key, config_operation=0, value=value)],
        )
        for kind, name, key, value in (
            (2, "through-a-controller", "retention.ms", "777"),
            (4, "1", "message.max.bytes", "999999"),
        )
    ]
    assert [r.error_code for r in line.call(44, 1, resources=changes).responses] == [0, 0]
    describe = API[32].request
    wanted = [
        describe.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=[key])
        for kind, name, key in ((2, "through-a-controller", "retention.ms"), (4, "1", "message.max.bytes"))
    ]
    assert [r.configs[0].value for r in line.call(32, 4, resources=wanted).results] == ["777", "999999"]
    assert node.connect().produce("through-a-controller", b"x").error_code == 0


# ---- voters ------------------------------------------------------------------------------------------------------

VOTER = {"voter_id": 2, "voter_directory_id": b"d" * 16}


@pytest.mark.parametrize(
    ("port", "key", "version", "fields"),
    [
        *((port, 80, version, {**VOTER, "listeners": []}) for port in (PORT, CONTROLLER_PORT) for version in (0, 1)),
        *((port, 81, 0, VOTER) for port in (PORT, CONTROLLER_PORT)),
        (CONTROLLER_PORT, 82, 0, {**VOTER, "listeners": []}),
    ],
)
def test_voters_do_not_change_in_this_release(
    node: InProcess, port: int, key: int, version: int, fields: dict[str, Any]
) -> None:
    if key == 82:
        kind = API[82].request.KRaftVersionFeature
        fields = {**fields, "k_raft_version_feature": kind(min_supported_version=0, max_supported_version=1)}
    told = node.connect(port).call(key, version, **fields)
    assert told.error_code == ErrorCode.UNSUPPORTED_VERSION
    if key != 82:
        assert "later" in told.error_message


@pytest.mark.parametrize("version", [1, 2])
def test_the_quorum_s_feature_stays_as_it_is(node: InProcess, version: int) -> None:
    kind = API[57].request.FeatureUpdateKey

    def asked(level: int) -> Any:
        one = kind(feature="kraft.version", max_version_level=level, upgrade_type=1)
        return node.connect(CONTROLLER_PORT).call(57, version, feature_updates=[one])

    assert asked(1).error_code == 0
    refused = asked(0)
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "Invalid update version 0 for feature kraft.version" in refused.error_message
    assert "kraft.version" not in node.broker.image.features
