"""The source's options as the Markdown tables of docs/internals/spark-source.md; `python -m` prints them."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from duramen.spark.kafka_settings import INERT_PREFIXES, KAFKA_SETTINGS, REFUSED_PREFIXES
from duramen.spark.options import BATCH, OPTIONS, STREAM

_QUERIES = {(BATCH, STREAM): "both", (BATCH,): "batch", (STREAM,): "streaming"}


def lines() -> Iterator[str]:
    """Both tables, line by line."""
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
