"""The configuration of one node: defaults, the file, overrides and dynamic changes, resolved into typed values."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from duramen.config.listeners import (
    ListenerAddress,
    OpenedListeners,
    advertised_controllers,
    advertised_listeners,
    opened_listeners,
    parse_host_port,
    parse_listener,
    parse_protocol_map,
    share_port,
)
from duramen.config.mistakes import NotReadableError, mistakes_of, raise_all
from duramen.config.properties import parse_properties
from duramen.config.registry import SETTINGS, TOPIC, broker_setting, passed_over
from duramen.config.setting import Setting, Value
from duramen.errors import ConfigError

_VARIABLE = re.compile(r"\$\{|(^|/)\$\w+(/|$)")
"""In a path: what a shell would put a variable's value for."""

_COMMENT = re.compile(r"\s[#;]")

_BOUNDED_OF_CONSUMER_GROUPS = ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms")

LAYERS = ("dynamic-broker", "dynamic-default", "static", "default")
"""Where a value can come from, strongest first (KIP-226)."""


def _with_both_ids(static: Mapping[str, str]) -> dict[str, str]:
    """As in Kafka, who sets one of node.id and broker.id has set both."""
    texts = dict(static)
    for name, other in (("node.id", "broker.id"), ("broker.id", "node.id")):
        if name not in texts and texts.get(other, "-1").strip() != "-1":
            texts[name] = texts[other]
    return texts


class BrokerConfig:
    """Every broker setting's value and where it came from. Immutable: a change makes a new one.

    Values are given as texts and were checked by `load_broker_config` or `with_dynamic`.
    """

    def __init__(
        self,
        static: Mapping[str, str],
        dynamic: Mapping[str, str] | None = None,
        dynamic_default: Mapping[str, str] | None = None,
        unreadable: Collection[str] = (),
    ) -> None:
        """unreadable: settings that stand somewhere with a text that is none of their type; nobody gets a value."""
        self._unreadable = unreadable
        self.texts: dict[str, Mapping[str, str]] = {
            "dynamic-broker": dict(dynamic or {}),
            "dynamic-default": dict(dynamic_default or {}),
            "static": _with_both_ids(static),
        }
        self._values: dict[str, Value] = {}
        for layer in reversed(LAYERS[:-1]):
            for name, text in self.texts[layer].items():
                if name in SETTINGS:
                    self._values[name] = broker_setting(name).parse(text)
        self._resolve_older_names()
        self._topic_defaults: dict[str, Value] = {}

    def _resolve_older_names(self) -> None:
        """log.dirs from log.dir, where only that was given; broker.id is what node.id is, also where neither is set."""
        if "log.dirs" not in self._values and "log.dir" in self._values:
            self._values["log.dirs"] = self._values["log.dir"]
        if self._values.get("broker.id", -1) == -1 and "node.id" not in self._unreadable:
            self._values["broker.id"] = self.integer("node.id")

    def get(self, name: str) -> Value:
        """The typed value; the default where nothing else was said. ConfigError for an unknown name."""
        if name in self._values:
            return self._values[name]
        if name in self._unreadable:
            raise NotReadableError(f"{name} cannot be read")
        return broker_setting(name).default_value

    def integer(self, name: str) -> int:
        """The value of a short, int or long setting that is set."""
        value = self.get(name)
        if not isinstance(value, int):
            raise ConfigError(f"{name} is not a whole number")
        return value

    def boolean(self, name: str) -> bool:
        """The value of a boolean setting."""
        value = self.get(name)
        if not isinstance(value, bool):
            raise ConfigError(f"{name} is not a boolean")
        return value

    def number(self, name: str) -> float:
        """The value of a double setting."""
        value = self.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ConfigError(f"{name} is not a number")
        return float(value)

    def string(self, name: str) -> str:
        """The value of a string setting, "" when it is unset."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{name} is not a string")
        return value or ""

    def strings(self, name: str) -> list[str]:
        """The value of a list setting, empty when it is unset."""
        value = self.get(name)
        if value is not None and not isinstance(value, list):
            raise ConfigError(f"{name} is not a list")
        return value or []

    def source(self, name: str) -> str:
        """The layer the value comes from: dynamic-broker, dynamic-default, static or default."""
        broker_setting(name)
        return next((layer for layer in LAYERS[:-1] if name in self.texts[layer]), "default")

    @property
    def inert(self) -> list[tuple[str, str]]:
        """Keys of the file or the command line that have no effect here, each with the reason; sorted."""
        found = []
        for name in sorted(self.texts["static"]):
            setting = SETTINGS.get(name)
            reason = setting.inert if setting is not None else passed_over(name)
            if reason:
                found.append((name, reason))
        return found

    @property
    def overruled(self) -> list[tuple[str, str | None]]:
        """Keys of the file or the command line that a stored setting overrules, each with what holds; sorted."""
        found = []
        for name in sorted(self.texts["static"]):
            if name in SETTINGS and self.source(name) != "static":
                setting, value = broker_setting(name), self._values[name]
                if value != setting.parse(self.texts["static"][name]):
                    found.append((name, None if setting.sensitive else setting.text(value)))
        return found

    def with_dynamic(self, changes: Mapping[str, str], *, cluster_default: bool = False) -> BrokerConfig:
        """This configuration with its dynamic settings replaced by `changes`, which are what the metadata log holds.

        cluster_default: the changes are the defaults for every broker rather than this one's own. What cannot change
        dynamically here is left out: `validate_broker_config` refuses it in requests, so another server wrote it.
        """
        known = {name: text for name, text in changes.items() if _is_dynamic(name)}
        own = self.texts["dynamic-broker"] if cluster_default else known
        default = known if cluster_default else self.texts["dynamic-default"]
        return BrokerConfig(self.texts["static"], own, default)

    @property
    def listeners(self) -> tuple[ListenerAddress, ...]:
        """The addresses to listen on for clients and other brokers."""
        return self._opened.broker

    @property
    def inter_broker_listener(self) -> str:
        """Name of the listener on which brokers reach each other."""
        name = self.string("inter.broker.listener.name").upper()
        return name or next((listener.name for listener in self.listeners), "")

    @property
    def controller_listeners(self) -> tuple[ListenerAddress, ...]:
        """The addresses to listen on for other controllers, for brokers, and for tools that ask a controller."""
        return self._opened.controller

    @property
    def _opened(self) -> OpenedListeners:
        protocols = parse_protocol_map("listener.security.protocol.map", self.string("listener.security.protocol.map"))
        names = self.strings("controller.listener.names")
        if self.source("listener.security.protocol.map") == "default":
            for name in names:
                protocols.setdefault(name.upper(), "PLAINTEXT")
        return opened_listeners(self.strings("listeners"), protocols, names, self.strings("process.roles"))

    @property
    def advertised_listeners(self) -> tuple[ListenerAddress, ...]:
        """What clients are told, one address for each of `listeners`, in their order."""
        return advertised_listeners(self.listeners, self._advertised, self.strings("controller.listener.names"))

    @property
    def advertised_controller_listeners(self) -> tuple[ListenerAddress, ...]:
        """What is told of the controller's, one address for each of `controller_listeners`, in their order."""
        return advertised_controllers(self.controller_listeners, self._advertised)

    @property
    def _advertised(self) -> list[str] | None:
        return self.strings("advertised.listeners") if self.get("advertised.listeners") is not None else None

    @property
    def directories(self) -> list[str]:
        """Every log directory of the node: those of log.dirs, and behind them that of the metadata log."""
        return list(dict.fromkeys([*self.strings("log.dirs"), self.metadata_directory]))

    @property
    def metadata_directory(self) -> str:
        """Where the metadata log is made, as log.dirs has it if that does."""
        paths = self.strings("log.dirs")
        named = self.string("metadata.log.dir")
        same = [path for path in paths if posixpath.normpath(path) == posixpath.normpath(named)]
        return (same or ([named] if named else paths))[0]

    @property
    def metrics_listener(self) -> tuple[str, int] | None:
        """Host and port of the metrics endpoint; None when it is off."""
        text = self.string("metrics.listener")
        return parse_host_port("metrics.listener", text) if text else None

    def topic_default(self, name: str) -> Value:
        """The value a topic's setting has when the topic itself says nothing."""
        if name not in self._topic_defaults:
            self._topic_defaults[name] = self._topic_default(TOPIC[name])
        return self._topic_defaults[name]

    def _topic_default(self, setting: Setting) -> Value:
        for broker_name, factor in setting.fallbacks:
            value = self.get(broker_name)
            if value is None:
                continue
            if factor != 1 and isinstance(value, int):
                value *= factor
            if setting.name == "retention.ms" and isinstance(value, int) and value < 0:
                return -1
            return value
        return setting.default_value

    def _check_topic_defaults(self) -> None:
        """A broker setting that topics take over must be legal for a topic."""
        raise_all(mistakes_of(partial(self._check_topic_default, setting) for setting in TOPIC.values()))

    def _check_topic_default(self, setting: Setting) -> None:
        value = self.topic_default(setting.name)
        if setting.name == "retention.ms" and value == 0:
            raise ConfigError("log.retention.ms, .minutes or .hours must be -1 or at least 1")
        if isinstance(value, int) and setting.low is not None and value < setting.low and not setting.also:
            names = " or ".join(name for name, _ in setting.fallbacks)
            raise ConfigError(f"{names}: {value} is out of bounds; it must be {setting.bounds}")

    def check(self) -> None:
        """The rules that concern several settings at once; ConfigError says which are broken, a line each."""
        rules: tuple[Callable[[], Any], ...] = (
            self._check_roles,
            self._check_ids,
            self._check_voters,
            self._check_bootstrap_servers,
            self._check_joining,
            self._check_access_control,
            self._check_directories,
            self._check_topic_defaults,
            self._check_broker_sessions,
            self._check_group_sessions,
            self._check_consumer_groups,
            self._check_queued_bytes,
            self._check_journal_parts,
            self._check_compaction_lags,
            lambda: self.listeners,
            self._check_inter_broker_listener,
            self._check_advertised_texts,
            lambda: self.advertised_listeners,
            self._check_metrics_listener,
        )
        raise_all(mistakes_of(rules))

    def _check_metrics_listener(self) -> None:
        """Its syntax, and a port that no other listener has: the start would take that for a stranger's."""
        endpoint = self.metrics_listener
        if endpoint is None:
            return
        try:
            opened = self._opened
        except ConfigError:
            return  # told by itself
        for listener in (*opened.broker, *opened.controller):
            if share_port(endpoint, (listener.host, listener.port)):
                text = self.string("metrics.listener")
                raise ConfigError(
                    f"metrics.listener={text} has the port of {listener} in listeners; choose another one"
                )

    def _check_inter_broker_listener(self) -> None:
        name = self.inter_broker_listener
        try:
            known = [listener.name for listener in self.listeners]
        except ConfigError:
            return  # told by itself
        if name and known and name not in known:
            raise ConfigError(
                f"inter.broker.listener.name={name} is none of the listeners of brokers and clients: {', '.join(known)}"
            )

    def _check_advertised_texts(self) -> None:
        """Each by itself: what is wrong with `listeners` need not be mended first."""
        texts = self.strings("advertised.listeners")
        raise_all(mistakes_of(partial(parse_listener, "advertised.listeners", text) for text in texts))

    def _check_roles(self) -> None:
        roles = self.strings("process.roles")
        if not roles:
            raise ConfigError("process.roles must name broker, controller or both")
        if set(roles) != {"broker", "controller"} and not self.strings("controller.quorum.bootstrap.servers"):
            raise ConfigError(
                f"process.roles={','.join(roles)} needs others: name the controllers, as host:port, in "
                "controller.quorum.bootstrap.servers"
            )

    def _check_ids(self) -> None:
        node, broker = self.integer("node.id"), self.integer("broker.id")
        if broker not in (-1, node):
            raise ConfigError(f"broker.id={broker} and node.id={node} differ; keep node.id")

    def _check_voters(self) -> None:
        node = self.integer("node.id")
        voters = self.strings("controller.quorum.voters")
        if voters and [voter.partition("@")[0] for voter in voters] != [str(node)]:
            raise ConfigError(
                f"controller.quorum.voters={','.join(voters)} names other nodes than this one, {node}. Voters are kept "
                "in the log, not in the file: remove it, name the controllers in controller.quorum.bootstrap.servers, "
                "and format each node by `duramen cluster init`"
            )

    def _check_bootstrap_servers(self) -> None:
        key = "controller.quorum.bootstrap.servers"
        servers = self.strings(key)
        raise_all(mistakes_of(partial(_check_server, key, server) for server in servers))

    def _check_joining(self) -> None:
        if self.boolean("controller.quorum.auto.join.enable"):
            raise ConfigError("controller.quorum.auto.join.enable: voters do not change in this release; remove it")

    def _check_access_control(self) -> None:
        if self.string("authorizer.class.name"):
            raise ConfigError("authorizer.class.name: access control is not served yet; remove it to let everyone in")

    def _check_directories(self) -> None:
        key = "log.dir" if self.source("log.dirs") == "default" and self.source("log.dir") != "default" else "log.dirs"
        directories = self.strings("log.dirs")
        if not all(directories) or not directories:
            raise ConfigError(f"{key} names no directory")
        same = Counter(map(posixpath.normpath, directories))
        twice = [ConfigError(f"{key} names {path} twice") for path, count in same.items() if count > 1]
        metadata = self.string("metadata.log.dir")
        mistakes = [partial(_check_directory, key, path) for path in dict.fromkeys(directories)]
        if metadata:
            mistakes.append(partial(_check_directory, "metadata.log.dir", metadata))
        raise_all([*twice, *mistakes_of(mistakes)])

    def _check_broker_sessions(self) -> None:
        if 2 * self.integer("broker.heartbeat.interval.ms") > self.integer("broker.session.timeout.ms"):
            raise ConfigError("broker.heartbeat.interval.ms is above half of broker.session.timeout.ms")

    def _check_group_sessions(self) -> None:
        if self.integer("group.min.session.timeout.ms") > self.integer("group.max.session.timeout.ms"):
            raise ConfigError("group.min.session.timeout.ms is above group.max.session.timeout.ms")

    def _check_consumer_groups(self) -> None:
        raise_all(mistakes_of(partial(self._check_within_bounds, name) for name in _BOUNDED_OF_CONSUMER_GROUPS))
        if self.integer("group.consumer.heartbeat.interval.ms") >= self.integer("group.consumer.session.timeout.ms"):
            raise ConfigError("group.consumer.heartbeat.interval.ms must be below group.consumer.session.timeout.ms")
        if not self.strings("group.consumer.assignors"):
            raise ConfigError("group.consumer.assignors names none")
        if "classic" not in self.strings("group.coordinator.rebalance.protocols"):
            raise ConfigError("group.coordinator.rebalance.protocols must have classic")

    def _check_within_bounds(self, name: str) -> None:
        low, high = f"group.consumer.min.{name}", f"group.consumer.max.{name}"
        value, least, most = self.integer(f"group.consumer.{name}"), self.integer(low), self.integer(high)
        if least > most:
            raise ConfigError(f"{low} is above {high}")
        if not least <= value <= most:
            raise ConfigError(f"group.consumer.{name} must be from {low} ({least}) to {high} ({most})")

    def _check_queued_bytes(self) -> None:
        queued, largest = self.integer("queued.max.request.bytes"), self.integer("socket.request.max.bytes")
        if 0 < queued < largest:
            raise ConfigError(f"queued.max.request.bytes must be -1 or at least socket.request.max.bytes ({largest})")

    def _check_journal_parts(self) -> None:
        if self.integer("duramen.journal.part.bytes") * 2 > self.integer("duramen.journal.max.bytes"):
            raise ConfigError("duramen.journal.part.bytes: the journal must hold at least two parts")

    def _check_compaction_lags(self) -> None:
        if self.integer("log.cleaner.min.compaction.lag.ms") > self.integer("log.cleaner.max.compaction.lag.ms"):
            raise ConfigError("log.cleaner.min.compaction.lag.ms is above log.cleaner.max.compaction.lag.ms")


def _check_server(key: str, text: str) -> None:
    host, port = parse_host_port(key, text)
    if not host or not port:
        raise ConfigError(f"{key}: {text!r} names no {'port' if host else 'host'} to connect to")


def _check_directory(key: str, path: str) -> None:
    """A path as it stands in the file; one that begins with ./ or / is what it says, whatever follows."""
    if path.startswith(("~", "$")) or _VARIABLE.search(path):
        raise ConfigError(f"{key} names {path}, which only a shell expands; write the whole path")
    if path.startswith(("'", '"')):
        raise ConfigError(f"{key} names {path}: quotes would belong to the name; write it without")
    if _COMMENT.search(path):
        raise ConfigError(f"{key} names {path}: a comment needs a line of its own")
    if path.startswith("file:"):
        raise ConfigError(f"{key} names {path}, which is a URL; write the path alone")


def _is_dynamic(name: str) -> bool:
    setting = SETTINGS.get(name)
    return setting is not None and setting.update != "restart"


def validate_broker_config(name: str, value: str | None) -> None:
    """Whether a dynamic change of a broker setting is acceptable; ConfigError says why not (None removes it)."""
    setting = broker_setting(name)
    if setting.inert and setting.update == "restart":
        raise ConfigError(f"{name} has no effect here: {setting.inert}")
    if setting.update == "restart":
        raise ConfigError(f"{name} cannot be changed while the node runs; set it in its file and restart")
    if value is not None:
        BrokerConfig({}, {name: value}).check()


def load_broker_config(file_text: str | None, overrides: Mapping[str, str] | None = None) -> BrokerConfig:
    """The configuration from a .properties file's text and `--set` overrides; overrides win.

    Raises ConfigError for unknown keys (naming the nearest), ill-typed values and contradictions, a line each,
    all at once; what only follows from a value that cannot be read is left out.
    Keys of other releases and vendors are passed over (`inert`) where the node is as safe without them.
    """
    static = parse_properties(file_text) if file_text is not None else {}
    static.update(overrides or {})
    errors: list[ConfigError] = []
    unreadable = set()
    for name, text in static.items():
        try:
            if not passed_over(name):
                broker_setting(name).parse(text)
        except ConfigError as error:
            errors.append(error)
            unreadable.add(name)
    readable = {name: text for name, text in static.items() if name not in unreadable}
    config = BrokerConfig(readable, unreadable=unreadable)
    raise_all([*errors, *mistakes_of([config.check])])
    return config
