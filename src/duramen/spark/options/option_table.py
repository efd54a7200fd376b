"""The options of source and sink as the Markdown tables of docs/spark.md; `python -m` prints them."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from duramen.spark.options.kafka_settings import INERT_PREFIXES, KAFKA_SETTINGS, REFUSED_PREFIXES
from duramen.spark.options.options import BATCH, OPTIONS, STREAM
from duramen.spark.options.sink_options import INERT as INERT_IN_SINK
from duramen.spark.options.sink_options import INERT_PREFIXES as INERT_IN_SINK_PREFIXES
from duramen.spark.options.sink_options import OPTIONS as SINK_OPTIONS
from duramen.spark.options.sink_options import REFUSED
from duramen.spark.options.sink_options import REFUSED_PREFIXES as REFUSED_BY_SINK

_QUERIES = {(BATCH, STREAM): "both", (BATCH,): "batch", (STREAM,): "streaming"}


def lines() -> Iterator[str]:
    """The part of the page on options, line by line."""
    yield "### The source\n"
    yield from source_lines()
    yield "\n### The sink\n"
    yield from sink_lines()


def sink_lines() -> Iterator[str]:
    """What the sink honours, then what it refuses."""
    yield "| option | default | meaning |"
    yield "|---|---|---|"
    for option in SINK_OPTIONS:
        yield f"| `{option.name}` | {option.default} | {option.meaning} |"
    yield ""
    yield "| setting | | |"
    yield "|---|---|---|"
    for name, reason in REFUSED.items():
        yield f"| `{name}` | refused | {reason} |"
    for prefix, reason in REFUSED_BY_SINK.items():
        yield f"| `{prefix}*` | refused | {reason} |"
    for name, reason in INERT_IN_SINK.items():
        yield f"| `{name}` | no effect | {reason} |"
    for prefix, reason in INERT_IN_SINK_PREFIXES.items():
        yield f"| `{prefix}*` | no effect | {reason} |"


def source_lines() -> Iterator[str]:
    """The source's options, then the settings of Kafka's consumer."""
    yield "| option | default | query | meaning |"
    yield "|---|---|---|---|"
    for option in OPTIONS:
        yield f"| `{option.name}` | {_default(option.default)} | {_QUERIES[option.queries]} | {option.meaning} |"
    yield ""
    yield "| setting | | |"
    yield "|---|---|---|"
    for setting in KAFKA_SETTINGS:
        verdict = "refused" if setting.refused else "no effect" if setting.inert else "honoured"
        yield f"| `kafka.{setting.name}` | {verdict} | {setting.without or setting.meaning} |"
    for prefixes, verdict in ((REFUSED_PREFIXES, "refused"), (INERT_PREFIXES, "no effect")):
        for prefix, reason in prefixes.items():
            yield f"| `kafka.{prefix}*` | {verdict} | {reason} |"


def _default(value: object) -> str:
    if value is None:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    sys.stdout.write("\n".join(lines()) + "\n")
