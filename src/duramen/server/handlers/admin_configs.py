"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources.

Describing lists every setting with value, source and synonyms, because tools read, modify and write back (KIP-133,
KIP-226, KIP-569). Resource types: 2 topic, 4 broker ("" for the cluster-wide default), 8 broker logger, 16 client
metrics, 32 group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duramen.config import ConfigEntry, describe_broker, describe_broker_default, describe_group, describe_topic
from duramen.errors import DuramenError, ErrorCode, KafkaError
from duramen.machines.metadata.commands import AlterOperation, ConfigChange, ConfigOperation, SetConfigs
from duramen.machines.metadata.image import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE
from duramen.machines.metadata.topics import name_problem
from duramen.server.api.authorizer import CLUSTER_NAME
from duramen.server.net.steps import STEP, Steps
from duramen.wire.messages.alter_configs import AlterConfigsResponse
from duramen.wire.messages.describe_configs import DescribeConfigsResponse
from duramen.wire.messages.incremental_alter_configs import IncrementalAlterConfigsResponse
from duramen.wire.messages.list_config_resources import ListConfigResourcesResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

BROKER_LOGGER_RESOURCE = 8
CLIENT_METRICS_RESOURCE = 16


def handle_describe(request: Request) -> None:
    """Settings of topics, brokers and groups. Versions 1-4 (v3 adds types and documentation)."""
    request.reply_in_steps(_descriptions(request))


def _descriptions(request: Request) -> Steps:
    results = []
    done = 0
    # Once each: the request may repeat a resource for five bytes, the reply for thousands.
    distinct = {(wanted.resource_type, wanted.resource_name): wanted for wanted in request.body.resources}
    for wanted in distinct.values():
        result = DescribeConfigsResponse.DescribeConfigsResult(
            resource_type=wanted.resource_type, resource_name=wanted.resource_name, error_message=None, configs=[]
        )
        try:
            if CLUSTER_NAME in request.denied:
                raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            entries = _entries(request, wanted.resource_type, wanted.resource_name)
            names = set(wanted.configuration_keys or ())
            result.configs = [_config(request, entry) for entry in entries if not names or entry.name in names]
        except KafkaError as error:
            result.error_code = int(error.code)
            result.error_message = error.message
        results.append(result)
        done += 1 + len(result.configs)
        if done >= STEP:
            done = 0
            yield
    return DescribeConfigsResponse.new(results=results)


def _entries(request: Request, resource_type: int, name: str) -> list[ConfigEntry]:
    services = request.services
    if resource_type == TOPIC_RESOURCE:
        problem = name_problem(name)
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if services.image.topic(name) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic is called {name}")
        return describe_topic(services.config, services.image.topic_config(name))
    if resource_type == BROKER_RESOURCE:
        if name == "":
            return describe_broker_default(services.config)
        if name != str(services.node.id):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"this is broker {services.node.id}, not {name!r}")
        return describe_broker(services.config)
    if resource_type == BROKER_LOGGER_RESOURCE:
        if name != str(services.node.id):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"this is broker {services.node.id}, not {name!r}")
        return []
    if resource_type == GROUP_RESOURCE:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        return describe_group(services.config, services.image.group_config(name))
    if resource_type == CLIENT_METRICS_RESOURCE:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
        return []
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"resource type {resource_type} has no configuration")


def _config(request: Request, entry: ConfigEntry) -> Any:
    body = request.body
    return DescribeConfigsResponse.DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[
            DescribeConfigsResponse.DescribeConfigsSynonym(name=s.name, value=s.value, source=s.source)
            for s in entry.synonyms
        ]
        if body.include_synonyms
        else [],
        config_type=int(entry.type),
        documentation=entry.documentation if request.version >= 3 and body.include_documentation else None,
    )


def handle_alter(request: Request) -> None:
    """Replace the whole configuration of resources. Versions 0-2 (deprecated in favour of the incremental API)."""
    changes = [
        ConfigChange(
            resource.resource_type,
            resource.resource_name,
            tuple(ConfigOperation(entry.name, AlterOperation.SET, entry.value) for entry in resource.configs),
            replace=True,
        )
        for resource in request.body.resources
    ]
    _alter(request, changes, AlterConfigsResponse)


def handle_incremental(request: Request) -> None:
    """Set, delete, append to and subtract from settings (KIP-339). Versions 0-1."""
    changes = [
        ConfigChange(
            resource.resource_type,
            resource.resource_name,
            tuple(ConfigOperation(entry.name, entry.config_operation, entry.value) for entry in resource.configs),
        )
        for resource in request.body.resources
    ]
    _alter(request, changes, IncrementalAlterConfigsResponse)


def _alter(request: Request, changes: list[ConfigChange], message: Any) -> None:
    def answered(results: Any) -> None:
        if isinstance(results, DuramenError):
            outcomes = [(results.code, str(results))] * len(changes)
        else:
            outcomes = [(result.error, result.message) for result in results]
        request.reply(
            message.new(
                responses=[
                    message.AlterConfigsResourceResponse(
                        error_code=int(code),
                        error_message=text if code else None,
                        resource_type=change.resource_type,
                        resource_name=change.resource_name,
                    )
                    for change, (code, text) in zip(changes, outcomes, strict=True)
                ]
            )
        )

    if CLUSTER_NAME in request.denied:
        answered(KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
        return
    services = request.services
    services.controller.decide(SetConfigs(tuple(changes), request.body.validate_only), answered, makes_room=True)


def handle_list(request: Request) -> None:
    """Resources that have a configuration, by type. Version 0 knows client metrics only (KIP-714, KIP-1142)."""
    services = request.services
    kinds = request.body.resource_types if request.version >= 1 else [CLIENT_METRICS_RESOURCE]
    supported = {TOPIC_RESOURCE, BROKER_RESOURCE, BROKER_LOGGER_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE}
    if CLUSTER_NAME in request.denied:
        request.reply(
            ListConfigResourcesResponse.new(error_code=int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED), config_resources=[])
        )
        return
    if any(kind not in supported for kind in kinds):
        request.reply(
            ListConfigResourcesResponse.new(error_code=int(ErrorCode.UNSUPPORTED_VERSION), config_resources=[])
        )
        return
    chosen = set(kinds) or supported
    found = []
    if TOPIC_RESOURCE in chosen:
        found += [(name, TOPIC_RESOURCE) for name in services.image.names()]
    for kind in (BROKER_RESOURCE, BROKER_LOGGER_RESOURCE):
        if kind in chosen:
            found += [(str(node.id), kind) for node in services.image.serving_brokers()]
    if GROUP_RESOURCE in chosen:
        found += sorted(resource[::-1] for resource in services.image.configs if resource[0] == GROUP_RESOURCE)
    request.reply(
        ListConfigResourcesResponse.new(
            config_resources=[
                ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=kind)
                for name, kind in found
            ]
        )
    )
