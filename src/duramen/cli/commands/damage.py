"""What the nodes of a running cluster know to be damaged, and how far their scrubbers are: asked of each node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from duramen.cli.shared.connection import ClusterAccess
from duramen.cli.shared.node_look import KnownNode, asked
from duramen.cli.shared.output import human_bytes, plural
from duramen.cli.shared.position import iso
from duramen.client.blocking.connection import BlockingConnection
from duramen.errors import ErrorCode
from duramen.wire.messages import API

DESCRIBE_DAMAGE = 10020
_SECONDS = 5.0
"""For a node to answer: it walks all that is damaged."""
_RANGES_SHOWN = 20


class NodeDamage(NamedTuple):
    """What one node says; directories: DescribeDamage's. trouble: why it says nothing, although it could."""

    node: int
    directories: list[Any]
    trouble: str | None = None


def ask_nodes(cluster: ClusterAccess, nodes: Iterable[KnownNode]) -> list[NodeDamage]:
    """Every node's answer, asked at once. Brokers that are not ours, and so do not know the question, are left out."""
    known = list(nodes)
    able = [node for node in known if node.trouble is None]
    told = asked([node.address for node in able], min(cluster.timeout, _SECONDS), _ask)
    answers = {node.id: answer for node, answer in zip(able, told, strict=True)}
    found = []
    for node in known:
        answer = answers.get(node.id) if node.trouble is None else node.trouble
        if answer is not None:
            found.append(NodeDamage(node.id, [], answer) if isinstance(answer, str) else NodeDamage(node.id, answer))
    return found


def _ask(connection: BlockingConnection, until: float) -> list[Any] | str | None:
    if not connection.versions.serves(DESCRIBE_DAMAGE):
        return "its version is older than this command" if connection.versions.is_duramen else None
    answer = connection.call(DESCRIBE_DAMAGE, API[DESCRIBE_DAMAGE].request.new(), until)
    if answer.error_code:
        return f"it refuses to say: {ErrorCode(answer.error_code).name}"
    return list(answer.directories)


def lines(nodes: list[NodeDamage]) -> list[str]:
    """For people: one line per directory, then what is wrong in it."""
    told = []
    for node in nodes:
        told += _of_node(node)
        for directory in node.directories:
            told += _of_directory(node, directory)
    return told


def wrong_and_sound(nodes: list[NodeDamage]) -> tuple[list[str], list[str]]:
    """The lines about what is wrong, and those about directories where nothing is."""
    wrong: list[str] = []
    sound: list[str] = []
    for node in nodes:
        wrong += _of_node(node)
        for directory in node.directories:
            ill = directory.error_code or directory.error_message or directory.damage or directory.offline
            (wrong if ill else sound).extend(_of_directory(node, directory))
    return wrong, sound


def _of_node(node: NodeDamage) -> list[str]:
    return [] if node.trouble is None else [f"node {node.node}: cannot ask for damage: {node.trouble}"]


def _of_directory(node: NodeDamage, directory: Any) -> list[str]:
    first = f"node {node.node}, {directory.log_dir}: {_scrubbed(directory)}; {_verdict(directory)}"
    return [first, *_details(directory)]


def _scrubbed(directory: Any) -> str:
    if not directory.scrub_bytes_per_second:
        return "the scrubber is off"
    if directory.scrub_started_ms < 0:
        return "not scrubbed yet"
    began = iso(directory.scrub_started_ms)
    share = 100 * min(1.0, directory.scrub_round_bytes / directory.sealed_bytes) if directory.sealed_bytes else 100.0
    checked = f"{human_bytes(directory.scrub_round_bytes)} of {human_bytes(directory.sealed_bytes)}"
    if directory.scrub_under_way:
        return f"scrubbing since {began}, {checked} ({share:.0f} %)"
    return f"last scrubbed from {began} on, {human_bytes(directory.scrub_round_bytes)}"


def _verdict(directory: Any) -> str:
    wrong = []
    if directory.error_code:
        wrong.append(f"FAILED ({directory.error_message}): no writes until a restart")
    elif directory.error_message:
        wrong.append(f"FULL ({directory.error_message}): no writes until there is room")
    if directory.damage:
        wrong.append(f"{plural(len(directory.damage), 'damaged range')}; stop the node and run `duramen log verify`")
    if directory.offline:
        wrong.append(f"{plural(len(directory.offline), 'partition')} offline")
    return "; ".join(wrong) or "no damage known"


def _details(directory: Any) -> list[str]:
    told = []
    for each in directory.damage[:_RANGES_SHOWN]:
        offsets = ""
        if each.first_offset >= 0:
            last = "?" if each.last_offset < 0 else each.last_offset
            offsets = f", offsets {each.first_offset}..{last}"
        where = f" bytes {each.start}..{each.end}" if each.end else ""
        told.append(f"  damage: {each.path}{where}: {each.what}{offsets}")
    if len(directory.damage) > _RANGES_SHOWN:
        told.append(f"  and {len(directory.damage) - _RANGES_SHOWN} more; --json shows them")
    told += [f"  offline: {each.topic}-{each.partition_index}: {each.what}" for each in directory.offline]
    return told


def as_json(node: NodeDamage) -> dict[str, Any]:
    """For machines."""
    return {
        "node": node.node,
        "trouble": node.trouble,
        "directories": [
            {
                "path": directory.log_dir,
                "failed": directory.error_message if directory.error_code else None,
                "full": None if directory.error_code else directory.error_message,
                "scrub": {
                    "bytes_per_second": directory.scrub_bytes_per_second,
                    "rounds": directory.scrub_rounds,
                    "under_way": directory.scrub_under_way,
                    "started_ms": directory.scrub_started_ms,
                    "round_bytes": directory.scrub_round_bytes,
                    "sealed_bytes": directory.sealed_bytes,
                },
                "damage_found": directory.damage_found,
                "damage": [_range_as_json(each) for each in directory.damage],
                "offline": [
                    {"topic": each.topic, "partition": each.partition_index, "what": each.what}
                    for each in directory.offline
                ],
            }
            for directory in node.directories
        ],
    }


def _range_as_json(each: Any) -> dict[str, Any]:
    return {
        "topic": each.topic or None,
        "partition": each.partition_index,
        "path": each.path,
        "start": each.start,
        "end": each.end,
        "first_offset": each.first_offset,
        "last_offset": each.last_offset,
        "what": each.what,
    }
