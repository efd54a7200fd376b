"""The page about every setting, written from the declarations.

python -m duramen.config.document > docs/configuration.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from duramen.config.gateway import GATEWAY
from duramen.config.group import GROUP
from duramen.config.registry import SETTINGS, TOPIC
from duramen.config.setting import LONG_MAX, Setting

_INTRODUCTION = """\
# Configuration

*This page is generated from the declarations in `src/duramen/config/`; `python -m duramen.config.document` prints it.*

`duramen serve --config FILE` reads Kafka's own `.properties` files, and `--set key=value` overrides single keys:

```sh
duramen serve --set listeners=PLAINTEXT://127.0.0.1:19092 --set log.dirs=/var/lib/duramen
```

Every key of Apache Kafka 4.3.1 is known. Most of what one node can obey is obeyed, with Kafka's name, type, bounds and
default. Keys that have no meaning on this node are accepted, named once at start with the reason, and shown read-only
to clients that ask. Anything else, and any value of the wrong type, is an error that names the nearest key.

A topic's setting that the topic does not have itself comes from the broker setting in the column *default from*.
*Changes* says when a new value counts: `restart`, or at once when it is altered through a client, for this broker or
cluster-wide. Only broker settings marked so can be altered while the node runs; topic settings always can. What was
altered is stored and holds after a restart, too, whatever the file says; a key of the file that is overruled so is
named at the start (`setting-overruled`). `min.insync.replicas` is stored at the first start of a cluster, as in Kafka
4.1 and later, and the file does not change it any more: `duramen config alter` does.
"""

_GROUPS = """Of single groups, altered by `duramen group alter GROUP --set KEY=VALUE` or by Kafka's ConfigCommand with
`--entity-type groups`. A value lies between `group.consumer.min.*` and `group.consumer.max.*` of the node that decides,
and a session is longer than the time between heartbeats. A group need not be there to have settings, and they stay when
it is deleted, as in Kafka.
"""


_GATEWAY = """Of `duramen gateway`, from `--config FILE` or `--set KEY=VALUE`; a change counts at its next start.
A node that has `gateway.listener` among its own settings runs a gateway beside itself, with this node as
`bootstrap.servers`, and takes the other settings of this table too.
"""


def page() -> str:
    """The whole page as Markdown."""
    served = [setting for setting in SETTINGS.values() if not setting.inert and not setting.internal]
    ours = [setting for setting in served if _ours(setting)]
    kafkas = [setting for setting in served if not _ours(setting)]
    topic = [setting for setting in TOPIC.values() if not setting.inert and not setting.internal]
    parts = [
        _INTRODUCTION,
        "## Settings that Kafka does not have\n",
        _table(ours, broker=True),
        "## Broker settings\n",
        _table(kafkas, broker=True),
        "## Topic settings\n",
        _table(topic, broker=False),
        "## Group settings\n",
        _GROUPS,
        _table(GROUP.values(), broker=False),
        "## Gateway settings\n",
        _GATEWAY,
        _table(GATEWAY.values(), broker=True),
        "## Accepted without effect\n",
        *_inert(),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _ours(setting: Setting) -> bool:
    return setting.name.startswith("duramen.") or setting.name == "metrics.listener"


def _table(settings: Iterable[Setting], *, broker: bool) -> str:
    last = "changes" if broker else "default from"
    lines = [f"| setting | type | default | legal values | {last} | meaning |", "|---|---|---|---|---|---|"]
    for setting in settings:
        from_broker = ", ".join(f"`{name}`" for name, _ in setting.fallbacks)
        unit = f", {setting.unit}" if setting.unit else ""
        lines.append(
            f"| `{setting.name}` | {setting.kind}{unit} | {_default(setting)} | {_legal(setting)} | "
            f"{setting.update if broker else from_broker} | {setting.doc.replace('|', '/')} |"
        )
    return "\n".join(lines) + "\n"


def _default(setting: Setting) -> str:
    if setting.default is None:
        return "unset"
    if not setting.default:
        return "empty"
    return "no limit" if setting.default == str(LONG_MAX) else f"`{setting.default}`"


def _legal(setting: Setting) -> str:
    return setting.bounds or "any"


def _inert() -> list[str]:
    names: dict[str, list[str]] = {}
    for scope, settings in (("", SETTINGS.values()), (" (topic)", TOPIC.values())):
        for setting in settings:
            if setting.inert and not setting.internal:
                names.setdefault(setting.inert, []).append(f"`{setting.name}`{scope}")
    return [f"**{reason[0].upper()}{reason[1:]}:** {', '.join(found)}.\n" for reason, found in names.items()]


if __name__ == "__main__":
    sys.stdout.write(page())
