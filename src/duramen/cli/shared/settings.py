"""Reading and changing the settings of topics, nodes and groups, for the commands that do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import click
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from duramen.cli.shared.connection import ClusterAccess, call, only, wait

_GROUP_CONFIG: Final = 8
"""Kafka's number for a group's own setting, for which the client library has no name."""


def topic_resource(name: str) -> ConfigResource:
    """A topic, as something that has settings."""
    return ConfigResource(ResourceType.TOPIC, name)


def node_resource(node_id: int) -> ConfigResource:
    """A node, as something that has settings."""
    return ConfigResource(ResourceType.BROKER, str(node_id))


def group_resource(name: str) -> ConfigResource:
    """A group, as something that has settings; it need not be there."""
    return ConfigResource(ResourceType.GROUP, name)


def label(resource: ConfigResource) -> str:
    """What messages call it: a topic by its name, others as `node 1` and `group audit`."""
    kinds = {ResourceType.BROKER: "node ", ResourceType.GROUP: "group "}
    return f"{kinds.get(resource.restype, '')}{resource.name}"


def source_name(entry: ConfigEntry) -> str:
    """Where its value comes from, as `dynamic-topic` or `default`."""
    if _source(entry) == _GROUP_CONFIG:
        return "dynamic-group"
    return str(ConfigSource(entry.source).name).removesuffix("_CONFIG").replace("_", "-").lower()


def is_default(entry: ConfigEntry) -> bool:
    """Whether nobody has set it anywhere."""
    return _source(entry) == int(ConfigSource.DEFAULT_CONFIG.value)


def _source(entry: ConfigEntry) -> int:
    source: Any = entry.source  # what was described has the number
    return int(source.value if isinstance(source, ConfigSource) else source)


def own_of_groups(cluster: ClusterAccess, admin: AdminClient, groups: Iterable[str]) -> dict[str, dict[str, str]]:
    """What is set for each of these groups; nothing where the node knows of no such settings (Kafka before 3.8)."""
    timeout = cluster.timeout
    resources = [group_resource(name) for name in groups]
    futures = call(cluster, "groups", lambda: admin.describe_configs(resources, request_timeout=timeout))
    found: dict[str, dict[str, str]] = {}
    for resource, future in futures.items():
        try:
            entries = future.result(cluster.patience)
        except KafkaException:
            entries = {}
        own = (entry for entry in entries.values() if _source(entry) == _GROUP_CONFIG)
        found[str(resource.name)] = {
            entry.name: entry.value for entry in sorted(own, key=lambda entry: str(entry.name))
        }
    return found


def described(cluster: ClusterAccess, admin: AdminClient, resource: ConfigResource) -> list[ConfigEntry]:
    """All settings of a topic, node or group, sorted by name."""
    timeout = cluster.timeout
    futures = call(cluster, label(resource), lambda: admin.describe_configs([resource], request_timeout=timeout))
    entries = wait(cluster, label(resource), only(futures))
    return [entries[name] for name in sorted(entries)]


def fewest_in_sync(entries: Iterable[ConfigEntry], copies: int) -> int:
    """min.insync.replicas: the topic's own as it is, the cluster's bounded by the number of copies."""
    for entry in entries:
        if entry.name == "min.insync.replicas" and entry.value is not None:
            own = ConfigSource(entry.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
            return int(entry.value) if own else min(int(entry.value), copies)
    return 0


def refuse_unknown(resource: ConfigResource, keys: Iterable[str], entries: Iterable[ConfigEntry]) -> None:
    """End the command when one of the keys is none of the settings that it has."""
    missing = set(keys) - {entry.name for entry in entries}
    if missing:
        shown = "`duramen config describe --all` shows those it has"
        raise click.ClickException(f"{label(resource)} has no setting {min(missing)}; {shown}.")


def alter_settings(
    cluster: ClusterAccess,
    admin: AdminClient,
    resource: ConfigResource,
    changes: Mapping[str, str],
    unset: Iterable[str] = (),
    append: Mapping[str, str] | None = None,
    subtract: Mapping[str, str] | None = None,
) -> None:
    """Change settings of a topic, node or group one by one, leaving the others (IncrementalAlterConfigs).

    unset: a name that it has no setting of is refused here, for nodes take it for done.
    """
    unset = list(dict.fromkeys(unset))
    given = [*changes, *unset, *(append or {}), *(subtract or {})]
    for key in given:
        if given.count(key) > 1:
            raise click.UsageError(f"{key} is to be changed in two ways.")
    if unset:
        refuse_unknown(resource, unset, described(cluster, admin, resource))
    operations = [
        *((key, value, AlterConfigOpType.SET) for key, value in changes.items()),
        *((key, None, AlterConfigOpType.DELETE) for key in unset),
        *((key, value, AlterConfigOpType.APPEND) for key, value in (append or {}).items()),
        *((key, value, AlterConfigOpType.SUBTRACT) for key, value in (subtract or {}).items()),
    ]
    wanted = ConfigResource(
        resource.restype,
        resource.name,
        incremental_configs=[
            ConfigEntry(key, value, incremental_operation=operation) for key, value, operation in operations
        ],
    )
    timeout = cluster.timeout
    futures = call(cluster, label(resource), lambda: admin.incremental_alter_configs([wanted], request_timeout=timeout))
    wait(cluster, label(resource), only(futures))
