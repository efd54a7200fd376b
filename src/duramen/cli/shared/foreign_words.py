"""What other command lines for Kafka call things, and what ours does: kafka-*.sh, kcat and rpk.

A letter means one thing in all of our commands, so that some of theirs are none here.
"""

from __future__ import annotations

from typing import Final

_EVERYWHERE: Final = {
    "--bootstrap-server": "--bootstrap HOST:PORT says it",
    "--bootstrap-servers": "--bootstrap HOST:PORT says it",
    "--broker-list": "--bootstrap HOST:PORT says it",
    "--broker": "--bootstrap HOST:PORT says it",
    "--brokers": "--bootstrap HOST:PORT says it",
    "--zookeeper": "there is none; --bootstrap HOST:PORT says where a node is",
    "--command-config": "-X KEY=VALUE sets what the file says, one setting each",
    "--consumer-config": "-X KEY=VALUE sets what the file says, one setting each",
    "--producer-config": "-X KEY=VALUE sets what the file says, one setting each",
    "--consumer.config": "-X KEY=VALUE sets what the file says, one setting each",
    "--producer.config": "-X KEY=VALUE sets what the file says, one setting each",
    "--consumer-property": "-X KEY=VALUE says it",
    "--producer-property": "-X KEY=VALUE says it",
    "--command-property": "-X KEY=VALUE says it",
}
"""Options that every command has there."""

_OFFLINE: Final = {"", "serve", "dev", "log", "completion", "spark"}
"""Commands of ours that ask no node, or not by --bootstrap alone."""
_WITHOUT_X: Final = {"stream", "gateway", "cluster"}
"""Those that take no setting of librdkafka's."""

_A_TOPIC: Final = "the topic stands without an option"
_FULL: Final = "--format full shows it, --json for machines"
_COMPRESSION: Final = "--compression says it"
_A_SETTING: Final = "--config KEY=VALUE says it"
_HOW_MANY: Final = "--partitions N says how many"
_A_FEATURE: Final = "--feature NAME=LEVEL says it"
_A_NODE: Final = "--node ID says it"

_OPTIONS: Final[dict[str, dict[str, str]]] = {
    "consume": {
        "--from-beginning": "--from earliest says it, which is what happens anyway",
        "--earliest": "--from earliest says it, which is what happens anyway",
        "--latest": "--from latest --follow says it",
        "--offset": "--from says where to begin, --until where to stop",
        "-o": "--from says where to begin (end: --from latest --follow; -10: --from -10), --until where to stop",
        "--start": "--from says it",
        "--end": "--until says it",
        "--to": "--until says it",
        "--since": "--from says it, as 10m or 2026-05-01T12:00:00Z",
        "--tail": "--last N says it",
        "--newest": "--last N says it",
        "--head": "--count N says it",
        "--limit": "--count N says it",
        "--max-messages": "--count N says it",
        "--num": "--count N says it",
        "-c": "--count N says it",
        "-e": "consume stops at the end anyway, unless told to --follow",
        "--exit": "consume stops at the end anyway, unless told to --follow",
        "--timeout-ms": "consume stops at the end anyway; --timeout N is in seconds",
        "--topic": _A_TOPIC,
        "--topics": _A_TOPIC,
        "-t": _A_TOPIC,
        "-C": "`duramen consume` reads",
        "-G": "--group NAME says it",
        "--include": "a pattern stands in the topic's place, as 'orders.*'",
        "--whitelist": "a pattern stands in the topic's place, as 'orders.*'",
        "--regex": "a pattern stands in the topic's place, as 'orders.*'",
        "-r": "a pattern stands in the topic's place, as 'orders.*'",
        "--partitions": "--partition N says it, once for each",
        "--property": "--format key-value or full prints more than the value, --key-separator and --null say how",
        "--formatter-property": "--format key-value or full prints more than the value",
        "--formatter": "--format says what is printed",
        "--print-key": "--format key-value says it",
        "--print-headers": _FULL,
        "--print-timestamp": _FULL,
        "-J": "--json says it",
        "--delimiter": "--key-separator says what stands between key and value",
        "-D": "each record ends with a line end; --json keeps those within records apart",
        "-Z": "--null says what stands for a null key or value",
        "--isolation-level": "--isolation says it",
        "--read-committed": "--isolation read_committed says it, which is what happens anyway",
        "--key-deserializer": "keys and values are printed as they are; --json keeps what is no text in base64",
        "--value-deserializer": "keys and values are printed as they are; --json keeps what is no text in base64",
    },
    "produce": {
        "--topic": _A_TOPIC,
        "-t": _A_TOPIC,
        "-P": "`duramen produce` writes",
        "--property": "-K SEPARATOR splits keys from values, --null says what is a null",
        "--reader-property": "-K SEPARATOR splits keys from values, --null says what is a null",
        "--line-reader": "--format says how the input is read",
        "--compression-codec": _COMPRESSION,
        "--compression-type": _COMPRESSION,
        "-Z": "--null says what is a null key or value",
        "-l": "files stand behind the topic",
        "-f": "--format says how the input is read",
        "-a": "--acks says it",
        "--request-required-acks": "--acks says it",
        "--allow-auto-topic-creation": "a topic is made anyway, where the node makes topics",
    },
    "topic": {
        "--create": "`duramen topic create NAME` does it",
        "--list": "`duramen topic list` does it",
        "--describe": "`duramen topic describe NAME` does it",
        "--alter": "`duramen topic alter NAME` does it",
        "--delete": "`duramen topic delete NAME` does it",
    },
    "topic create": {
        "--topic": _A_TOPIC,
        "--replicas": "--replication-factor says it",
        "-r": "--replication-factor says it",
        "--topic-config": _A_SETTING,
        "-c": _A_SETTING,
        "-p": _HOW_MANY,
    },
    "topic alter": {
        "--topic": _A_TOPIC,
        "-p": _HOW_MANY,
        "--config": "--set KEY=VALUE says it",
        "--add-config": "--set KEY=VALUE says it",
        "--delete-config": "--unset KEY says it",
        "--num": "--partitions says how many there shall be",
    },
    "topic describe": {"--topic": _A_TOPIC},
    "topic delete": {"--topic": _A_TOPIC, "--force": "--yes says it"},
    "stream create": {"-c": _A_SETTING, "--set": _A_SETTING},
    "stream read": {
        "--count": "--limit N says it",
        "--max-messages": "--limit N says it",
        "--last": "--from -10 says it for ten",
        "--tail": "--from -10 says it for ten",
        "--from-beginning": "--from start says it, which is what happens anyway",
        "--offset": "--from says where to begin",
        "-o": "--from says where to begin",
        "--format": "--json prints keys, headers and positions, too",
        "--group": "a stream has none; --json prints positions, and --after goes on behind one",
        "-g": "a stream has none; --json prints positions, and --after goes on behind one",
    },
    "stream append": {
        "--key": "`duramen produce` writes keys, to the stream's topic",
        "-k": "`duramen produce` writes keys, to the stream's topic",
        "-K": "`duramen produce` writes keys, to the stream's topic",
        "--header": "`duramen produce` writes headers, to the stream's topic",
        "-H": "`duramen produce` writes headers, to the stream's topic",
        "--file": "the file stands behind the stream",
    },
    "stream delete": {"--force": "--yes says it"},
    "stream namespace set": {"-c": _A_SETTING, "--set": _A_SETTING},
    "gateway": {
        "--port": "--listen http://127.0.0.1:PORT says it",
        "-p": "--listen http://127.0.0.1:PORT says it",
        "--host": "--listen URL says it",
        "--at": "--bootstrap HOST:PORT says which cluster",
    },
    "stream namespace create": {"-c": _A_SETTING},
    "cluster init": {"-t": "--cluster-id ID says it"},
    "group": {
        "--list": "`duramen group list` does it",
        "--describe": "`duramen group describe NAME` does it",
        "--reset-offsets": "`duramen group reset-offsets NAME` does it",
        "--delete": "`duramen group delete NAME` does it",
    },
    "group describe": {"--group": "the group stands without an option"},
    "group alter": {
        "--group": "the group stands without an option",
        "--add-config": "--set KEY=VALUE says it",
        "--delete-config": "--unset KEY says it",
    },
    "group delete": {"--group": "the group stands without an option", "--force": "--yes says it"},
    "group reset-offsets": {
        "--group": "the group stands without an option",
        "--to": "--to-earliest, --to-latest, --to-offset, --to-datetime or --shift-by says where to",
        "--by-duration": "--to-datetime 2h is two hours ago",
        "--topics": "--topic NAME says it, once for each",
    },
    "config": {
        "--describe": "`duramen config describe` does it",
        "--alter": "`duramen config alter` does it",
    },
    "config describe": {
        "--entity-type": "--topic NAME says it; without, it is the node",
        "--entity-name": "--topic NAME or --node ID says it",
        "-n": _A_NODE,
        "-k": "--key KEY says it",
    },
    "config alter": {
        "--entity-type": "--topic NAME says it; without, it is the node",
        "--entity-name": "--topic NAME or --node ID says it",
        "-n": _A_NODE,
        "--add-config": "--set KEY=VALUE says it",
        "--delete-config": "--unset KEY says it",
    },
    "features upgrade": {
        "-f": _A_FEATURE,
        "--metadata": "--feature metadata.version=LEVEL says it",
        "--release-version": "without --feature all are raised to the highest",
    },
    "features downgrade": {
        "-f": _A_FEATURE,
        "--metadata": "--feature metadata.version=LEVEL says it",
        "--release-version": "--feature NAME=LEVEL says it, once for each",
    },
    "truncate": {
        "--topic": _A_TOPIC,
        "--offset-json-file": "--before says it",
        "--offset": "--before says it",
    },
    "status": {
        "--watch": "at a terminal it stays and is drawn anew anyway",
        "--follow": "at a terminal it stays and is drawn anew anyway",
        "-f": "at a terminal it stays and is drawn anew anyway",
        "-w": "at a terminal it stays and is drawn anew anyway",
    },
    "log dump": {
        "--files": "the file, or the partition's directory, stands without an option",
        "--print-data-log": "--records says it",
        "--deep-iteration": "--records says it",
    },
    "serve": {
        "--override": "--set KEY=VALUE says it",
        "--port": "--set listeners=PLAINTEXT://127.0.0.1:PORT says it",
        "--data-dir": "--set log.dirs=FOLDER says it",
        "--data": "--set log.dirs=FOLDER says it",
    },
}
"""Options of each command."""

_ARGUMENTS: Final = {
    "serve": "a file of settings is named by --config FILE",
    "config describe": "a topic is named by --topic NAME, a setting by --key KEY",
    "config alter": "a topic is named by --topic NAME, what is changed by --set KEY=VALUE",
    "truncate": "the offset or the time is named by --before POSITION",
    "topic alter": "what is changed is named by --partitions N or --set KEY=VALUE",
    "group reset-offsets": "a topic is named by --topic NAME",
    "group list": "`duramen group describe NAME` shows one",
    "status": "`duramen topic describe NAME` shows a topic, `duramen group describe NAME` a group",
}
"""What stands without an option elsewhere, and not here."""

_COMMANDS: Final[dict[str, dict[str, str]]] = {
    "": {
        "version": "`duramen --version` prints it",
        "lag": "`duramen group list` shows the lag of every group, `duramen group describe GROUP` each partition's",
        "ls": "`duramen topic list` lists the topics",
        "list": "`duramen topic list` lists the topics, `duramen group list` the groups",
        "create": "`duramen topic create NAME` makes a topic",
        "delete": "`duramen topic delete NAME` deletes a topic",
        "describe": "`duramen topic describe NAME` describes a topic, `duramen group describe NAME` a group",
        "start": "`duramen serve` runs a node",
        "server": "`duramen serve` runs a node",
        "run": "`duramen serve` runs a node, `duramen spark run FILE` a pipeline",
        "stop": "a node stops by Ctrl-C, or SIGTERM",
        "info": "`duramen status` shows the node",
        "health": "`duramen status --once` shows the node",
        "tail": "`duramen consume TOPIC --last 10 --follow` does it",
        "read": "`duramen consume TOPIC` reads",
        "cat": "`duramen consume TOPIC` reads",
        "write": "`duramen produce TOPIC` writes",
        "delete-records": "`duramen truncate TOPIC --before POSITION` does it",
        "trim-prefix": "`duramen truncate TOPIC --before POSITION` does it",
        "verify": "`duramen log verify DIRECTORY` does it",
        "repair": "`duramen log repair DIRECTORY` does it",
        "append": "`duramen stream append STREAM` does it",
        "namespace": "`duramen stream namespace list` lists namespaces",
        "http": "`duramen gateway` serves streams over HTTP",
        "rest": "`duramen gateway` serves streams over HTTP",
        "proxy": "`duramen gateway` serves streams over HTTP",
        "token": "`duramen gateway token NAME` makes one",
    },
    "stream": {
        "ls": "`duramen stream list` lists them",
        "rm": "`duramen stream delete NAME` does it",
        "describe": "`duramen topic describe NAME` does it, with a dot for each / of the name",
        "info": "`duramen topic describe NAME` does it, with a dot for each / of the name",
        "show": "`duramen topic describe NAME` does it, with a dot for each / of the name",
        "alter": "`duramen topic alter NAME` does it, with a dot for each / of the name",
        "write": "`duramen stream append NAME` does it",
        "produce": "`duramen stream append NAME` does it",
        "consume": "`duramen stream read NAME` does it",
        "cat": "`duramen stream read NAME` does it",
        "tail": "`duramen stream read NAME --from -10 --follow` does it",
        "follow": "`duramen stream read NAME --follow` does it",
        "seal": "`duramen stream close NAME` does it",
        "namespaces": "`duramen stream namespace list` lists them",
    },
    "stream namespace": {
        "ls": "`duramen stream namespace list` lists them",
        "rm": "`duramen stream namespace delete NAME` does it",
        "show": "`duramen stream namespace describe NAME` does it",
        "alter": "`duramen stream namespace set NAME --config KEY=VALUE` does it",
    },
    "gateway": {
        "start": "`duramen gateway` runs one",
        "serve": "`duramen gateway` runs one",
        "run": "`duramen gateway` runs one",
        "tokens": "`duramen gateway token NAME` makes one",
    },
    "cluster": {
        "format": "`duramen cluster init` does it",
        "info": "`duramen cluster status` shows it",
        "quorum": "`duramen cluster status` shows it",
    },
    "topic": {
        "ls": "`duramen topic list` lists them",
        "rm": "`duramen topic delete NAME` does it",
        "info": "`duramen topic describe NAME` does it",
        "show": "`duramen topic describe NAME` does it",
        "consume": "`duramen consume NAME` reads",
        "produce": "`duramen produce NAME` writes",
        "add-partitions": "`duramen topic alter NAME --partitions N` does it",
        "alter-config": "`duramen topic alter NAME --set KEY=VALUE` does it",
        "set": "`duramen topic alter NAME --set KEY=VALUE` does it",
        "trim-prefix": "`duramen truncate NAME --before POSITION` does it",
    },
    "group": {
        "ls": "`duramen group list` lists them",
        "rm": "`duramen group delete NAME` does it",
        "lag": "`duramen group describe NAME` shows it",
        "show": "`duramen group describe NAME` does it",
        "seek": "`duramen group reset-offsets NAME` does it",
        "reset": "`duramen group reset-offsets NAME` does it",
    },
    "features": {
        "list": "`duramen features describe` shows them",
        "disable": "`duramen features downgrade --feature NAME=0` does it",
        "finalize": "`duramen features upgrade` does it",
    },
    "config": {
        "get": "`duramen config describe --key KEY` shows a setting; with --topic NAME, a topic's",
        "show": "`duramen config describe` shows the settings; with --topic NAME, a topic's",
        "list": "`duramen config describe` shows the settings; with --topic NAME, a topic's",
        "set": "`duramen config alter --set KEY=VALUE` changes a setting; with --topic NAME, a topic's",
        "delete": "`duramen config alter --unset KEY` returns a setting to its default",
        "unset": "`duramen config alter --unset KEY` returns a setting to its default",
    },
}
"""Commands of each group of commands, and of the program."""


def our_option(command: str, option: str) -> str | None:
    """What an option of others is here; None where nobody would mean anything by it. command: as `topic create`."""
    first = command.split(" ")[0]
    everywhere = None if first in _OFFLINE else _EVERYWHERE.get(option)
    if everywhere is not None and first in _WITHOUT_X and "-X" in everywhere:
        everywhere = None
    return _OPTIONS.get(command, {}).get(option) or everywhere


def our_argument(command: str) -> str | None:
    """What somebody meant who gave a command more arguments than it has."""
    return _ARGUMENTS.get(command)


def our_command(group: str, command: str) -> str | None:
    """What a command of others is here; None where nobody would mean anything by it. group: empty, or as `topic`."""
    return _COMMANDS.get(group, {}).get(command)
