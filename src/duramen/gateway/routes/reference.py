"""docs/http.md, written from the table of routes.

python -m duramen.gateway.routes.reference > docs/http.md
"""

from __future__ import annotations

import sys

from duramen.gateway.confluent.rest_errors import error_number, version_of
from duramen.gateway.routes.errors import ERRORS
from duramen.gateway.routes.route import KNOWN, LISTED, OPEN, RouteRow
from duramen.gateway.routes.table import ROUTES

_INTRODUCTION = """\
# HTTP reference

*This page is generated from the table of routes in `src/duramen/gateway/routes/`; `python -m
duramen.gateway.routes.reference` prints it.* A running gateway gives the same as `/openapi.json`. How streams are
used is told in [streams over HTTP](streams.md); `/v1/stream/` follows the open protocol *Durable Streams* 1.0.

A request that is refused gets a problem (RFC 9457, `application/problem+json`): `type` is `urn:duramen:<code>`,
`detail` says what to do, `kafka_error` is the cluster's own code where there is one, and `retriable` says whether the
same request may succeed later.

A query parameter that a route below `/v1` does not have is refused: 400, which names those that it has. Clients of
Durable Streams may bring parameters of their own: at `/v1/stream/{path}` itself one is ignored, unless a single edit
makes it one that is known, as `ofset`.

Below `/v3`, `/topics`, `/brokers` and `/consumers` is [Confluent's REST API](rest.md): a refusal is
`{"error_code": …, "message": …}` there, and the names of codes below are explanations. An `error_code` of five digits
has the status in its first three; 400 is 40002 where the cluster itself refused.

Where logins are served (`gateway.tokens.file`), each route needs the right that it names on the stream, topic,
namespace or group of its path, and on everything where the path names none: [who may ask](streams.md#who-may-ask).
Lists have what the token may read, on full pages.
"""


def page() -> str:
    """The whole page as Markdown."""
    parts = [_INTRODUCTION]
    parts += [_route(row) for row in ROUTES]
    parts.append("## Problems\n")
    parts.append("| status | code | meaning |\n|---|---|---|")
    parts[-1] += "".join(f"\n| {status} | `{code}` | {meaning} |" for code, (status, meaning) in ERRORS.items())
    return "\n".join(parts).rstrip() + "\n"


def _route(row: RouteRow) -> str:
    needs = {
        OPEN: "Open to everybody",
        KNOWN: "Needs a token, where logins are served",
        LISTED: "Needs a token, where logins are served, and has the names that it may read",
    }
    needed = needs.get(row.right, f"Needs the right `{row.right}`")
    lines = [f"## {row.method} {row.path}\n"]
    lines.append(f"{row.summary}. Operation `{row.operation}` on {row.resource}. {needed}.\n")
    if row.parameters:
        lines += ["| parameter | in | meaning |", "|---|---|---|"]
        for parameter in row.parameters:
            required = " (required)" if parameter.required else ""
            lines.append(f"| `{parameter.name}` | {parameter.place} | {parameter.meaning}{required} |")
        lines.append("")
    if row.body:
        lines.append(f"Body: {row.body[0].lower()}{row.body[1:]}.\n")
    lines += ["| answer | meaning | headers |", "|---|---|---|"]
    for answer in row.answers:
        lines.append(f"| {answer.status} | {answer.meaning} | {', '.join(f'`{name}`' for name in answer.headers)} |")
    codes = sorted(row.all_errors, key=lambda code: (ERRORS[code][0], code))
    version = version_of(row.path)
    shown = [f"{_number(version, code)} `{code}`" for code in codes]
    lines.append(f"\n{'Errors' if version else 'Problems'}: " + ", ".join(shown) + ".\n")
    return "\n".join(lines)


def _number(version: int, code: str) -> int:
    status = ERRORS[code][0]
    return error_number(version, code, status) if version else status


if __name__ == "__main__":
    sys.stdout.write(page())
