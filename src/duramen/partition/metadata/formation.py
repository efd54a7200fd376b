"""What a cluster begins with: its first voters and features, as `duramen cluster init` writes them.

As Kafka's `kafka-storage format` (KIP-853): the same list of voters is written on every node that gets one, into a
snapshot of the metadata log at offset 0. Nobody fetches that: the first leader appends what is in its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from duramen.config import BrokerConfig
from duramen.config.listeners import ListenerAddress, parse_host_port
from duramen.errors import ConfigError
from duramen.machines.metadata import codec
from duramen.machines.metadata.features import OFFERED
from duramen.model import topic_id_from_text, topic_id_text
from duramen.ports import Disk, Entropy
from duramen.storage import FormattedDirectory, Formatter
from duramen.wire.batch import build_batch
from duramen.wire.records.control import (
    ControlType,
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
    encode_key,
    encode_value,
)

KRAFT_VERSION: Final = 1
"""The voters are in the log."""
_KRAFT_VERSIONS: Final = (0, 1)
"""Least and latest that a voter of ours, as of Kafka's, says it knows."""
_ID = re.compile(r"[A-Za-z0-9_-]{22}", re.ASCII)


Row = tuple[bytes | None, bytes | None, tuple[()], int]


class InitialController(NamedTuple):
    """One of the first voters, as it is written in `--initial-controllers`: id@host:port:directory."""

    id: int
    host: str
    port: int
    directory_id: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.id}@{host}:{self.port}:{self.directory_id}"


def new_id(entropy: Entropy) -> str:
    """A random id as Kafka accepts them: none of the reserved ones, and no dash in front of its text."""
    while True:
        raw = entropy.random_bytes(16)
        text = topic_id_text(raw)
        if any(raw[:15]) and not text.startswith("-"):
            return text


def parse_id(key: str, text: str) -> str:
    """An id as Kafka writes them; ConfigError otherwise."""
    if _ID.fullmatch(text) is None or topic_id_text(topic_id_from_text(text)) != text:
        raise ConfigError(f"{key}: {text!r} is no id; `duramen cluster random-uuid` prints one")
    return text


def parse_controllers(key: str, text: str, *, with_directories: bool = True) -> list[InitialController]:
    """`id@host:port:directory`, separated by commas, or without the directories; ConfigError otherwise."""
    found = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        number, at, address = part.partition("@")
        directory = ""
        if with_directories:
            address, colon, directory = address.rpartition(":")
            at = at and colon
        if not at or not (number.isascii() and number.isdecimal()):
            form = "ID@HOST:PORT:DIRECTORY-ID" if with_directories else "ID@HOST:PORT"
            raise ConfigError(f"{key}: {part!r} is not {form}")
        host, port = parse_host_port(key, address)
        if not host or not port:
            raise ConfigError(f"{key}: {part!r} names no {'port' if host else 'host'} that others could connect to")
        found.append(InitialController(int(number), host, port, parse_id(key, directory) if with_directories else ""))
    for what, values in (
        ("node", [str(each.id) for each in found]),
        ("address", [f"{each.host}:{each.port}" for each in found]),
        ("directory", [each.directory_id for each in found if each.directory_id]),
    ):
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            raise ConfigError(f"{key} names {what} {twice[0]} twice")
    if not found:
        raise ConfigError(f"{key} names no controller")
    return found


class Founding(NamedTuple):
    """How a node begins. controllers: the first voters; None where others tell them, or nobody: see `is_standalone`."""

    controllers: Sequence[InitialController] | None = None
    is_standalone: bool = False


def check_founding(config: BrokerConfig, founding: Founding) -> None:
    """Kafka's rules for what may be asked of which node; ConfigError."""
    node_id = config.integer("node.id")
    if "controller" not in config.strings("process.roles"):
        if founding.controllers is not None or founding.is_standalone:
            raise ConfigError("process.roles has no controller, and only a controller is a voter: give no voters")
        return
    if founding.controllers is None:
        return
    own = [each for each in founding.controllers if each.id == node_id]
    if not own:
        raise ConfigError(
            f"--initial-controllers does not name this node, {node_id}; format a controller that is to join later "
            "by --no-initial-controllers"
        )
    listener = _controller_listener(config)
    if listener is None:
        raise ConfigError(
            "controller.listener.names names none of listeners: the other voters could not reach this one"
        )
    if listener.port not in (0, own[0].port):
        raise ConfigError(
            f"--initial-controllers names port {own[0].port} of this node, {node_id}, and its controller's listener "
            f"has port {listener.port}"
        )


def _controller_listener(config: BrokerConfig) -> ListenerAddress | None:
    """What others are told of the controller's first listener; None without one."""
    return next(iter(config.advertised_controller_listeners), None)


def format_node(
    disk: Disk, entropy: Entropy, config: BrokerConfig, cluster_id: str | None, founding: Founding, now_ms: int
) -> list[FormattedDirectory]:
    """Format this node's log directories. ConfigError, StorageError, DirectoryLockedError, OSError."""
    check_founding(config, founding)
    node_id = config.integer("node.id")
    listener = _controller_listener(config)
    directory_id: str | None = None
    voters: Callable[[str], Iterator[bytearray]] | None = None
    if founding.controllers is not None:
        directory_id = next(each.directory_id for each in founding.controllers if each.id == node_id)
        name = listener.name if listener else "CONTROLLER"
        named = [(each.id, each.directory_id, [(name, each.host, each.port)]) for each in founding.controllers]
        voters = lambda _: first_snapshot(named, now_ms)  # noqa: E731
    elif founding.is_standalone:
        endpoints = [(listener.name, listener.host, listener.port)] if listener is not None and listener.host else []
        voters = lambda own: first_snapshot([(node_id, own, endpoints)], now_ms)  # noqa: E731
    formatting = Formatter(
        disk=disk,
        paths=config.directories,
        metadata=config.metadata_directory,
        node_id=node_id,
        cluster_id=cluster_id,
        directory_id=directory_id,
        new_id=partial(new_id, entropy),
        bootstrap=partial(bootstrap, now_ms),
        voters=voters,
        is_shared=not founding.is_standalone,
    )
    return formatting.run()


Voter = tuple[int, str, Sequence[tuple[str, str, int]]]
"""Node, directory, and (listener, host, port) of its endpoints."""


def first_snapshot(voters: Sequence[Voter], now_ms: int) -> Iterator[bytearray]:
    """The metadata log's snapshot at offset 0: that the voters are in the log, and who they are."""
    lowest, highest = _KRAFT_VERSIONS
    feature = VotersRecord.KRaftVersionFeature(min_supported_version=lowest, max_supported_version=highest)
    named = [
        VotersRecord.Voter(
            voter_id=node_id,
            voter_directory_id=topic_id_from_text(directory_id),
            endpoints=[VotersRecord.Endpoint(name=name, host=host, port=port) for name, host, port in endpoints],
            k_raft_version_feature=feature,
        )
        for node_id, directory_id, endpoints in sorted(voters)
    ]
    rows = [
        _header(now_ms, now_ms),
        _control(ControlType.KRAFT_VERSION, KRaftVersionRecord.new(version=0, k_raft_version=KRAFT_VERSION), now_ms),
        _control(ControlType.KRAFT_VOTERS, VotersRecord.new(version=0, voters=named), now_ms),
    ]
    yield build_batch(rows, leader_epoch=0, control=True)
    yield build_batch([_footer(now_ms)], base_offset=len(rows), leader_epoch=0, control=True)


def bootstrap(now_ms: int) -> Iterator[bytearray]:
    """`bootstrap.checkpoint`: what the first active controller writes first, the levels of features."""
    yield build_batch([_header(0, now_ms)], leader_epoch=0, control=True)
    records = [codec.feature(name, highest) for name, _, highest in OFFERED]
    yield build_batch([(each.key, each.value, (), now_ms) for each in records], base_offset=1, leader_epoch=0)
    yield build_batch([_footer(now_ms)], base_offset=1 + len(records), leader_epoch=0, control=True)


def _header(last_ms: int, now_ms: int) -> Row:
    message = SnapshotHeaderRecord.new(version=0, last_contained_log_timestamp=last_ms)
    return _control(ControlType.SNAPSHOT_HEADER, message, now_ms)


def _footer(now_ms: int) -> Row:
    return _control(ControlType.SNAPSHOT_FOOTER, SnapshotFooterRecord.new(version=0), now_ms)


def _control(kind: ControlType, message: object, now_ms: int) -> Row:
    return encode_key(kind), encode_value(kind, message), (), now_ms
