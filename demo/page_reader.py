"""A reader of server-sent events that does what a browser's EventSource does, for machines without a browser.

    python -m demo.page_reader http://127.0.0.1:8000/?stream=http%3A%2F%2F127.0.0.1%3A8082%2Fv1%2Fstream%2Fa

It reads the stream that the page's address names, and says to the page's server what it has seen.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
import time
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

REPORT_SECONDS = 0.4


class EventReader:
    """Events of one address, over lost connections. last_id: of the last event that came whole."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url)
        self.last_id = ""
        self.pause_seconds = 1.0
        self.breaks = 0

    def events(self) -> Iterator[tuple[str, str]]:
        """Name and data of each event, for ever."""
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                yield from self._connection()
            self.breaks += 1
            time.sleep(self.pause_seconds)
            while not self._is_there():
                time.sleep(self.pause_seconds)

    def _is_there(self) -> bool:
        try:
            connection = http.client.HTTPConnection(self._address.netloc, timeout=5)
            connection.connect()
        except OSError:
            return False
        connection.close()
        return True

    def _connection(self) -> Iterator[tuple[str, str]]:
        connection = http.client.HTTPConnection(self._address.netloc, timeout=60)
        headers = {"accept": "text/event-stream", **({"last-event-id": self.last_id} if self.last_id else {})}
        connection.request("GET", f"{self._address.path}?{self._address.query}", headers=headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise SystemExit(f"{answer.status}: {answer.read().decode(errors='replace')}")
        name, event_id, data = "message", None, list[str]()
        while line := answer.readline():
            text = line.decode().rstrip("\n")
            field, _, value = text.partition(":")
            value = value.removeprefix(" ")
            if text == "":
                if event_id is not None:
                    self.last_id = event_id
                if data:
                    yield name, "\n".join(data)
                name, event_id, data = "message", None, []
            elif field == "event":
                name = value
            elif field == "data":
                data.append(value)
            elif field == "id":
                event_id = value
            elif field == "retry":
                self.pause_seconds = int(value) / 1000


def follow(page: str) -> None:
    """Until the stream is closed."""
    address = urlsplit(page)
    stream = parse_qs(address.query)["stream"][0]
    reader = EventReader(f"{stream}?offset=-1&live=sse")
    rows: list[int] = []
    reported = 0.0
    for name, data in reader.events():
        over = name == "control" and json.loads(data).get("streamClosed", False)
        if name == "data":
            rows += [each["row"] for each in json.loads(data)]
        if over or time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            connection = http.client.HTTPConnection(address.netloc, timeout=10)
            connection.request("POST", "/seen", json.dumps({"rows": rows, "breaks": reader.breaks, "over": over}))
            connection.getresponse().read()
            connection.close()
        if over:
            return


if __name__ == "__main__":
    follow(sys.argv[1])
