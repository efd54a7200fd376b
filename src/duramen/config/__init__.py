"""Configuration: every setting declared once, and what is derived from the declarations.

load_broker_config(file_text, overrides) -> BrokerConfig      one node's settings, typed
TopicConfig(broker_config, overrides)                         one topic's, resolved over the broker's
group_config(broker_config, own) -> GroupConfig               one group's
load_gateway_config(file_text, overrides) -> GatewayConfig    one gateway's
describe_broker, describe_topic, describe_group               the material of DescribeConfigs
SETTINGS, TOPIC, GROUP                                        the declarations, by name
"""

from duramen.config.broker import BrokerConfig, load_broker_config, validate_broker_config
from duramen.config.describe import (
    ConfigEntry,
    ConfigSynonym,
    describe_broker,
    describe_broker_default,
    describe_group,
    describe_topic,
)
from duramen.config.gateway import (
    GATEWAY,
    GatewayConfig,
    HttpAddress,
    gateway_setting,
    load_gateway_config,
    parse_http_address,
)
from duramen.config.group import GROUP, GroupConfig, group_config, group_setting, validate_group_configs
from duramen.config.listeners import ListenerAddress
from duramen.config.properties import parse_properties
from duramen.config.registry import SETTINGS, TOPIC, broker_setting, topic_setting
from duramen.config.setting import ConfigType, Setting
from duramen.config.topic import (
    TopicConfig,
    alter_list,
    list_setting,
    validate_topic_config,
    validate_topic_configs,
)

__all__ = [
    "GATEWAY",
    "GROUP",
    "SETTINGS",
    "TOPIC",
    "BrokerConfig",
    "ConfigEntry",
    "ConfigSynonym",
    "ConfigType",
    "GatewayConfig",
    "GroupConfig",
    "HttpAddress",
    "ListenerAddress",
    "Setting",
    "TopicConfig",
    "alter_list",
    "broker_setting",
    "describe_broker",
    "describe_broker_default",
    "describe_group",
    "describe_topic",
    "gateway_setting",
    "group_config",
    "group_setting",
    "list_setting",
    "load_broker_config",
    "load_gateway_config",
    "parse_http_address",
    "parse_properties",
    "topic_setting",
    "validate_broker_config",
    "validate_group_configs",
    "validate_topic_config",
    "validate_topic_configs",
]
