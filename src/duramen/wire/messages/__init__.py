"""Every API that Duramen declares, by key; each is one module here, imported when it is first asked for.

Kafka's keep their keys; those from OWN_KEYS on are ours, and foreign clients never ask for them.

`API[0].request` and `messages.produce.ProduceRequest` are the same value.
"""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import Any

from duramen.wire.schema import Message


class ApiMessage:
    """One API: its key, its name and its two messages."""

    def __init__(self, key: int, name: str, module: str) -> None:
        self.key = key
        self.name = name
        self._module = module

    def __repr__(self) -> str:
        return f"<API {self.key} {self.name}>"

    @cached_property
    def request(self) -> Message:
        """The request, e.g. ProduceRequest."""
        return self._message("Request")

    @cached_property
    def response(self) -> Message:
        """The response, e.g. ProduceResponse."""
        return self._message("Response")

    @cached_property
    def min_version(self) -> int:
        """Lowest version of Kafka 4.3.1."""
        return self.request.min_version

    @cached_property
    def max_version(self) -> int:
        """Highest version of Kafka 4.3.1."""
        return self.request.max_version

    @cached_property
    def flexible_from(self) -> int | None:
        """First version with tagged fields, None if there is none (KIP-482)."""
        return self.request.flexible_from

    def _message(self, kind: str) -> Message:
        module = import_module(f"{__name__}.{self._module}")
        message: Message = getattr(module, self.name + kind)
        return message


OWN_KEYS = 10_000
"""First key of the APIs that Kafka does not have (docs/protocol.md)."""

_MODULES = {
    0: ("Produce", "produce"),
    1: ("Fetch", "fetch"),
    2: ("ListOffsets", "list_offsets"),
    3: ("Metadata", "metadata"),
    8: ("OffsetCommit", "offset_commit"),
    9: ("OffsetFetch", "offset_fetch"),
    10: ("FindCoordinator", "find_coordinator"),
    11: ("JoinGroup", "join_group"),
    12: ("Heartbeat", "heartbeat"),
    13: ("LeaveGroup", "leave_group"),
    14: ("SyncGroup", "sync_group"),
    15: ("DescribeGroups", "describe_groups"),
    16: ("ListGroups", "list_groups"),
    17: ("SaslHandshake", "sasl_handshake"),
    18: ("ApiVersions", "api_versions"),
    19: ("CreateTopics", "create_topics"),
    20: ("DeleteTopics", "delete_topics"),
    21: ("DeleteRecords", "delete_records"),
    22: ("InitProducerId", "init_producer_id"),
    23: ("OffsetForLeaderEpoch", "offset_for_leader_epoch"),
    24: ("AddPartitionsToTxn", "add_partitions_to_txn"),
    25: ("AddOffsetsToTxn", "add_offsets_to_txn"),
    26: ("EndTxn", "end_txn"),
    27: ("WriteTxnMarkers", "write_txn_markers"),
    28: ("TxnOffsetCommit", "txn_offset_commit"),
    29: ("DescribeAcls", "describe_acls"),
    30: ("CreateAcls", "create_acls"),
    31: ("DeleteAcls", "delete_acls"),
    32: ("DescribeConfigs", "describe_configs"),
    33: ("AlterConfigs", "alter_configs"),
    34: ("AlterReplicaLogDirs", "alter_replica_log_dirs"),
    35: ("DescribeLogDirs", "describe_log_dirs"),
    36: ("SaslAuthenticate", "sasl_authenticate"),
    37: ("CreatePartitions", "create_partitions"),
    42: ("DeleteGroups", "delete_groups"),
    43: ("ElectLeaders", "elect_leaders"),
    44: ("IncrementalAlterConfigs", "incremental_alter_configs"),
    45: ("AlterPartitionReassignments", "alter_partition_reassignments"),
    46: ("ListPartitionReassignments", "list_partition_reassignments"),
    47: ("OffsetDelete", "offset_delete"),
    48: ("DescribeClientQuotas", "describe_client_quotas"),
    50: ("DescribeUserScramCredentials", "describe_user_scram_credentials"),
    52: ("Vote", "vote"),
    53: ("BeginQuorumEpoch", "begin_quorum_epoch"),
    54: ("EndQuorumEpoch", "end_quorum_epoch"),
    55: ("DescribeQuorum", "describe_quorum"),
    56: ("AlterPartition", "alter_partition"),
    57: ("UpdateFeatures", "update_features"),
    58: ("Envelope", "envelope"),
    59: ("FetchSnapshot", "fetch_snapshot"),
    60: ("DescribeCluster", "describe_cluster"),
    61: ("DescribeProducers", "describe_producers"),
    62: ("BrokerRegistration", "broker_registration"),
    63: ("BrokerHeartbeat", "broker_heartbeat"),
    64: ("UnregisterBroker", "unregister_broker"),
    65: ("DescribeTransactions", "describe_transactions"),
    66: ("ListTransactions", "list_transactions"),
    67: ("AllocateProducerIds", "allocate_producer_ids"),
    68: ("ConsumerGroupHeartbeat", "consumer_group_heartbeat"),
    69: ("ConsumerGroupDescribe", "consumer_group_describe"),
    70: ("ControllerRegistration", "controller_registration"),
    73: ("AssignReplicasToDirs", "assign_replicas_to_dirs"),
    74: ("ListConfigResources", "list_config_resources"),
    75: ("DescribeTopicPartitions", "describe_topic_partitions"),
    80: ("AddRaftVoter", "add_raft_voter"),
    81: ("RemoveRaftVoter", "remove_raft_voter"),
    82: ("UpdateRaftVoter", "update_raft_voter"),
    10000: ("ClaimSinkEpoch", "claim_sink_epoch"),
    10001: ("StageBatch", "stage_batch"),
    10002: ("CommitStaged", "commit_staged"),
    10003: ("DescribeSink", "describe_sink"),
    10004: ("AbortStaged", "abort_staged"),
    10005: ("ReleaseSink", "release_sink"),
    10006: ("ListSinks", "list_sinks"),
    10010: ("DescribeSegments", "describe_segments"),
    10011: ("ExtendSegmentLease", "extend_segment_lease"),
    10020: ("DescribeDamage", "describe_damage"),
    10030: ("OpenWriter", "open_writer"),
    10031: ("ConditionalAppend", "conditional_append"),
}

API = {key: ApiMessage(key, name, module) for key, (name, module) in _MODULES.items()}
"""Declared APIs by key, ascending."""


def __getattr__(name: str) -> Any:
    """Import the module of an API on first use: `messages.list_offsets`."""
    if any(name == module for _, module in _MODULES.values()):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"no API module {name}")
