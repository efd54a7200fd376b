"""The claims about the page can fail, and the reader that plays its part goes on where a browser would."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice

import pytest
from demo.board import Seen, prove
from demo.page_reader import EventReader

ROWS = [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("seen", "stored", "fails"),
    [
        (Seen(ROWS, 1, True), ROWS, ""),
        (Seen([1, 2, 4], 1, True), ROWS, "the page has each"),
        (Seen([1, 2, 2, 3, 4], 1, True), ROWS, "the page has each"),
        (Seen([1, 3, 2, 4], 1, True), ROWS, "the page has each"),
        (Seen(ROWS, 1, True), [1, 2, 3, 3, 4], "the log has each"),
        (Seen(ROWS, 0, True), ROWS, "the page lost"),
    ],
)
def test_a_flaw_is_found_out(seen: Seen, stored: list[int], fails: str) -> None:
    findings = prove(seen, ROWS, stored, 1)
    assert [found.claim[: len(fails)] for found in findings if not found.holds] == ([fails] if fails else [])


@contextmanager
def answers(*bodies: bytes) -> Iterator[tuple[str, list[str | None]]]:
    """A server that gives each connection one of these, and hangs up; with the ids that it was asked to go on from."""
    asked: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers["last-event-id"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(bodies[min(len(asked), len(bodies)) - 1])

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/a?live=sse", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_reader_goes_on_behind_the_last_whole_event() -> None:
    first = b"retry: 10\n\nevent: data\ndata: 1\nid: a\n\nevent: data\ndata: 2\nid: b\n"
    with answers(first, b": still here\n\nevent: data\ndata: 2\ndata:3\nid: b\n\n") as (url, asked):
        reader = EventReader(url)
        assert list(islice(reader.events(), 2)) == [("data", "1"), ("data", "2\n3")]
    assert asked[:2] == [None, "a"]
    assert (reader.breaks, reader.last_id) == (1, "b")
