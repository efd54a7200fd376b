"""Decides changes of settings of topics, brokers and groups (KIP-133, KIP-226, KIP-339)."""

from __future__ import annotations

from collections import Counter
from typing import Final

from duramen.config import (
    BrokerConfig,
    Setting,
    alter_list,
    broker_setting,
    group_setting,
    topic_setting,
    validate_broker_config,
    validate_group_configs,
    validate_topic_configs,
)
from duramen.errors import ConfigError, ErrorCode, KafkaError
from duramen.machines.contract import LogRecord
from duramen.machines.metadata import codec
from duramen.machines.metadata.commands import (
    OK,
    AlterOperation,
    ConfigChange,
    ConfigOperation,
    Result,
    SetConfigs,
)
from duramen.machines.metadata.features import MIN_IN_SYNC
from duramen.machines.metadata.image import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE, MetadataImage
from duramen.machines.metadata.topics import name_problem
from duramen.model import OFFSETS_TOPIC, SINK_TOPICS, TRANSACTIONS_TOPIC

POLICY: Final = "cleanup.policy"
MAX_VALUE_BYTES: Final = 32_767


def set_configs(
    image: MetadataImage, config: BrokerConfig, command: SetConfigs
) -> tuple[list[LogRecord], list[Result]]:
    """Records and one answer per changed resource."""
    times = Counter((change.resource_type, change.resource_name) for change in command.changes)
    records: list[LogRecord] = []
    answers: list[Result] = []
    for change in command.changes:
        try:
            if times[(change.resource_type, change.resource_name)] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            records.extend(_change(image, config, change))
        except ConfigError as error:
            answers.append(Result(ErrorCode.INVALID_CONFIG, str(error)))
        except KafkaError as error:
            answers.append(Result(error.code, error.message))
        else:
            answers.append(OK)
    return ([] if command.validate_only else records), answers


def _change(image: MetadataImage, config: BrokerConfig, change: ConfigChange) -> list[LogRecord]:
    _check_resource(image, change)
    if change.resource_type == TOPIC_RESOURCE and change.resource_name in SINK_TOPICS:
        raise ConfigError(f"{change.resource_name} keeps the settings it was made with: it holds committed batches")
    present = image.config(change.resource_type, change.resource_name)
    wanted = _wanted(config, change, present)
    if change.resource_type == TOPIC_RESOURCE:
        validate_topic_configs(config, wanted)
        _check_policy(change.resource_name, present, wanted)
    elif change.resource_type == GROUP_RESOURCE:
        validate_group_configs(config, wanted, [name for name in wanted if present.get(name) != wanted[name]])
    else:
        altered = {name: value for name, value in wanted.items() if present.get(name) != value}
        fixed = [
            name for name in altered if broker_setting(name).update == "restart" and not broker_setting(name).inert
        ]
        if fixed:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Cannot update these configs dynamically: [{', '.join(fixed)}]; set them in the file and restart",
            )
        for name in altered:
            validate_broker_config(name, None)
        _check_values(altered)
        _check_fewest(change.resource_name, present, wanted)
    for name, value in wanted.items():
        if len(value.encode()) > MAX_VALUE_BYTES:
            raise ConfigError(f"the value of {name} exceeds {MAX_VALUE_BYTES} bytes")
    kind, resource = change.resource_type, change.resource_name
    removed = [codec.config(kind, resource, name, None) for name in present if name not in wanted]
    changed = [
        codec.config(kind, resource, name, value) for name, value in wanted.items() if present.get(name) != value
    ]
    return removed + changed


def _check_values(altered: dict[str, str]) -> None:
    """INVALID_REQUEST for a value that its broker setting cannot have: Kafka's brokers say so (KAFKA-13609)."""
    for name, value in altered.items():
        try:
            validate_broker_config(name, value)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error


def _check_fewest(node: str, present: dict[str, str], wanted: dict[str, str]) -> None:
    """ConfigError where nodes would differ in how many copies count, or would go by their files: one answer for all."""
    if node and wanted.get(MIN_IN_SYNC) not in (None, present.get(MIN_IN_SYNC)):
        raise ConfigError(f"{MIN_IN_SYNC} of one node is not altered: it counts for all of them, or for a topic")
    if not node and MIN_IN_SYNC in present and MIN_IN_SYNC not in wanted:
        raise ConfigError(f"{MIN_IN_SYNC} of the cluster is not removed: give it another value")


def _check_policy(topic: str, present: dict[str, str], wanted: dict[str, str]) -> None:
    """ConfigError where the state of groups or transactions would begin to expire: by the age of a segment."""
    policy = wanted.get(POLICY)
    if topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC) and policy not in ("compact", present.get(POLICY)):
        what = "what groups have committed" if topic == OFFSETS_TOPIC else "transactions that are still needed"
        raise ConfigError(f"{topic}: {POLICY} stays compact, or retention would drop {what}")


def _check_resource(image: MetadataImage, change: ConfigChange) -> None:
    name = change.resource_name
    if change.resource_type == TOPIC_RESOURCE:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        problem = name_problem(name)
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")
        if name not in image.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    elif change.resource_type == BROKER_RESOURCE:
        if not name:
            return
        if not name.isascii() or not name.isdecimal() or name != str(int(name)):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
        if int(name) not in image.brokers:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"No broker with id {name} found.")
    elif change.resource_type == GROUP_RESOURCE:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    else:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported configuration resource type {change.resource_type}.")


def _wanted(config: BrokerConfig, change: ConfigChange, present: dict[str, str]) -> dict[str, str]:
    """All settings the resource would have after the change, as texts."""
    times = Counter(operation.key for operation in change.operations)
    repeated = sorted(key for key, count in times.items() if count > 1)
    if repeated:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Error due to duplicate config keys: {', '.join(repeated)}")
    wanted = {} if change.replace else dict(present)
    for operation in change.operations:
        _operate(config, change, operation, wanted)
    return wanted


def _operate(config: BrokerConfig, change: ConfigChange, operation: ConfigOperation, wanted: dict[str, str]) -> None:
    key, kind, value = operation
    if kind == AlterOperation.DELETE:
        wanted.pop(key, None)  # what nobody knows is not set either: tools clear settings without asking first
        return
    if value is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for: {key}")
    if kind == AlterOperation.SET:
        wanted[key] = value
    elif kind in (AlterOperation.APPEND, AlterOperation.SUBTRACT):
        setting = _setting_of(change.resource_type, key)
        current = wanted.get(key)
        if current is None:
            current = _default_text(config, setting, change.resource_type)
        operation_name = "append" if kind == AlterOperation.APPEND else "subtract"
        wanted[key] = alter_list(setting, current, operation_name, value)
    else:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported config operation {kind} for {key}")


def _setting_of(resource_type: int, name: str) -> Setting:
    if resource_type == GROUP_RESOURCE:
        return group_setting(name)
    return topic_setting(name) if resource_type == TOPIC_RESOURCE else broker_setting(name)


def _default_text(config: BrokerConfig, setting: Setting, resource_type: int) -> str | None:
    if resource_type == TOPIC_RESOURCE:
        return setting.text(config.topic_default(setting.name))
    return setting.text(config.get(setting.fallbacks[0][0] if resource_type == GROUP_RESOURCE else setting.name))
