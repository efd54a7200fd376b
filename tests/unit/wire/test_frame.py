"""Frames and headers, both directions, against kio's header codecs and a recorded exchange's layout."""

from __future__ import annotations

import importlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds.message_strategies import few, kio_read, kio_write

from duramen.ports import FileSpan
from duramen.wire import frame, messages
from duramen.wire.errors import DecodeError, EncodeError, UnsupportedVersionError

API = messages.API
EVERY = [(api, version) for api in API.values() for version in range(api.min_version, api.max_version + 1)]
EVERY_API_VERSION = pytest.mark.parametrize(("api", "version"), EVERY, ids=[f"{api.name}-{v}" for api, v in EVERY])


def kio_header(kind: str, version: int) -> type:
    module = importlib.import_module(f"kio.schema.{kind}_header.v{version}.header")
    return getattr(module, f"{kind.title()}Header")  # type: ignore[no-any-return]


def joined(parts: list[object]) -> bytes:
    return b"".join(parts)  # type: ignore[arg-type]


@EVERY_API_VERSION
def test_request_headers_agree_with_kio(api: messages.ApiMessage, version: int) -> None:
    flexible = api.flexible_from is not None and version >= api.flexible_from
    header = kio_header("request", 2 if flexible else 1)

    @few
    @given(st.integers(-(2**31), 2**31 - 1), st.none() | st.text(max_size=300))
    def check(correlation_id: int, client_id: str | None) -> None:
        theirs = kio_write(
            header,
            header(
                request_api_key=api.key,
                request_api_version=version,
                correlation_id=correlation_id,
                client_id=client_id,
            ),
        )
        ours = joined(frame.encode_request(api, version, correlation_id, client_id, api.request.new()))
        assert ours[4 : 4 + len(theirs)] == theirs
        assert frame.read_frame_size(memoryview(ours), 0, 1 << 20) == len(ours) - 4
        parsed = frame.parse_request_header(memoryview(ours)[4:])
        assert parsed == (api.key, version, correlation_id, client_id, len(theirs))
        assert api.request.decode(ours, version, 4 + parsed.body_position) == api.request.new()

    check()


@EVERY_API_VERSION
def test_response_headers_agree_with_kio(api: messages.ApiMessage, version: int) -> None:
    flexible = api.flexible_from is not None and version >= api.flexible_from and api.key != 18
    header = kio_header("response", 1 if flexible else 0)
    response = api.response.new()
    framed = joined(frame.encode_response(api, version, 77, response))
    theirs = kio_write(header, header(correlation_id=77))
    assert framed[4 : 4 + len(theirs)] == theirs
    assert kio_read(header, framed[4 : 4 + len(theirs)]).correlation_id == 77
    assert frame.parse_response(api, version, memoryview(framed)[4:]) == (77, response)


def test_the_parts_of_a_body_are_not_copied() -> None:
    head, batch, span = bytes(5000), memoryview(b"batch"), FileSpan(None, 0, 11)  # type: ignore[arg-type]
    parts = frame.frame_response(API[1], 11, 3, [head, batch, span])
    assert parts[1:] == [head, batch, span]
    assert parts[1] is head
    assert parts[0] == (4 + 5000 + 5 + 11).to_bytes(4, "big") + b"\0\0\0\x03"
    assert frame.frame_response(API[1], 11, 3, []) == [b"\0\0\0\x04\0\0\0\x03"]
    small = frame.frame_response(API[1], 12, 3, [b"head", batch])
    assert small == [b"\0\0\0\x0e\0\0\0\x03\0head", batch]


def test_an_unknown_key_or_version_cannot_be_answered() -> None:
    for key, version in ((5, 0), (999, 0), (-1, 0), (0, 2), (0, 14), (3, -1)):
        data = key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big", signed=True) + bytes(20)
        with pytest.raises(UnsupportedVersionError):
            frame.parse_request_header(memoryview(data))


def test_api_versions_of_an_unknown_version_still_has_a_header() -> None:
    for version in (5, 99, -1):
        data = b"\0\x12" + version.to_bytes(2, "big", signed=True) + b"\0\0\0\x09" + b"\xff" * 9
        header = frame.parse_request_header(memoryview(data))
        assert header == (18, version, 9, None, len(data))


def test_a_client_reads_the_version_0_answer_to_a_version_it_asked_too_high() -> None:
    response = API[18].response
    ranges = [response.ApiVersion(api_key=18, min_version=0, max_version=2)]
    refusal = joined(frame.encode_response(API[18], 0, 4, response.new(error_code=35, api_keys=ranges)))
    for asked in range(5):
        correlation_id, parsed = frame.parse_response(API[18], asked, memoryview(refusal)[4:])
        assert (correlation_id, parsed.error_code, parsed.api_keys) == (4, 35, ranges)


@pytest.mark.parametrize("api", [API[0], API[8], API[47]], ids=lambda api: api.name)
def test_truncated_headers_are_refused(api: messages.ApiMessage) -> None:
    for version in (api.min_version, api.max_version):
        framed = joined(frame.encode_request(api, version, 1, "client", api.request.new()))[4:]
        body = frame.parse_request_header(memoryview(framed)).body_position
        for length in range(body):
            with pytest.raises(DecodeError):
                frame.parse_request_header(memoryview(framed[:length]))
        answer = joined(frame.frame_response(api, version, 1, []))[4:]
        for length in range(len(answer)):
            with pytest.raises(DecodeError):
                frame.parse_response_header(api, version, memoryview(answer[:length]))


def test_unknown_tagged_fields_in_headers_are_skipped() -> None:
    framed = b"\0\x00\0\x09\0\0\0\x01\0\x01c" + b"\x01\x63\x03abc" + b"body"
    assert frame.parse_request_header(memoryview(framed)) == (0, 9, 1, "c", 17)
    assert frame.parse_response_header(API[0], 9, memoryview(b"\0\0\0\x01\x01\x63\x03abcbody")) == (1, 10)


def test_a_client_id_is_utf_8_and_not_negative() -> None:
    for bad in (b"\0\x02\xc3\x28", b"\xff\xfe"):
        with pytest.raises(DecodeError):
            frame.parse_request_header(memoryview(b"\0\x03\0\x00\0\0\0\x01" + bad + bytes(8)))
    with pytest.raises(EncodeError):
        frame.encode_request(API[3], 0, 1, "c" * 40_000, API[3].request.new())


def test_frame_sizes_are_bounded() -> None:
    assert frame.check_frame_size(100, 100) == 100
    for size in (-1, 101, 2**31 - 1):
        with pytest.raises(DecodeError, match="100 are allowed"):
            frame.check_frame_size(size, 100)
        with pytest.raises(DecodeError):
            frame.read_frame_size(memoryview(size.to_bytes(4, "big", signed=True)), 0, 100)
