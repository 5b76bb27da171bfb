"""The hand-written layout of Fetch against the generated codec, in all versions."""

from __future__ import annotations

from typing import Any

import pytest
from librt.strings import BytesWriter

from tidemill.model.errors import ProtocolError
from tidemill.wire.apis import API, ApiKey
from tidemill.wire.codec import decode, encode
from tidemill.wire.fetch_layout import (
    BYTES_MAX,
    FIRST_VERSION,
    HIGH_WATERMARK_UNKNOWN,
    LAST_VERSION,
    FetchRequest,
    RequestedPartition,
    read_request,
    read_response,
    write_fetched,
    write_request,
    write_response_head,
)
from tidemill.wire.messages import fetch
from tidemill.wire.primitives import TAGS_MAX, encode_uvarint

VERSIONS = range(FIRST_VERSION, LAST_VERSION + 1)
IDS = (bytes(range(16)), bytes(range(16, 32)))
NAMES = (b"one", "żółw".encode())
MANY = 1000


def keys(version: int) -> tuple[bytes, bytes]:
    return IDS if version >= 13 else NAMES


def requested(version: int, replica_id: int) -> FetchRequest:
    """A request with values in all fields of the version."""
    first, second = keys(version)
    partitions = tuple(
        RequestedPartition(
            key=key,
            index=index,
            leader_epoch=index + 4 if version >= 9 else -1,
            offset=index << 33,
            last_fetched_epoch=index + 3 if version >= 12 else -1,
            log_start_offset=index + 1 if version >= 5 else -1,
            high_watermark=index if version >= 18 and index else HIGH_WATERMARK_UNKNOWN,
            bytes_max=1 << 20,
        )
        for key, index in ((first, 0), (first, 7), (second, 1))
    )
    return FetchRequest(
        version=version,
        correlation_id=5,
        replica_id=replica_id,
        replica_epoch=1 << 40 if version >= 15 and replica_id >= 0 else -1,
        wait_ms=500,
        bytes_min=1,
        bytes_max=1 << 24 if version >= 3 else BYTES_MAX,
        isolation=1 if version >= 4 else 0,
        session_id=9 if version >= 7 else 0,
        session_epoch=2 if version >= 7 else -1,
        partitions=partitions,
        forgotten=((first, 3), (second, 4)) if version >= 7 else (),
        rack=b"r" if version >= 11 else b"",
    )


def attributes_of(value: Any) -> Any:
    """The attributes of a request."""
    names = [name for name in dir(value) if not name.startswith("_")]
    found = {name: getattr(value, name) for name in names}
    return {
        name: [attributes_of(one) for one in what] if name == "partitions" else what
        for name, what in found.items()
    }


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("replica_id", [-1, 3])
def test_requests_equal_those_of_the_generated_codec(version: int, replica_id: int) -> None:
    request = requested(version, replica_id)
    body = write_request(request)
    message = decode(fetch.FetchRequest, version, body)
    assert encode(message, version) == body
    assert [
        (topic.topic_id if version >= 13 else topic.topic.encode(), part.partition, part.fetch_offset)
        for topic in message.topics
        for part in topic.partitions
    ] == [(one.key, one.index, one.offset) for one in request.partitions]
    state = message.replica_state.replica_id if version >= 15 else message.replica_id
    assert (state, message.max_wait_ms, message.rack_id) == (replica_id, 500, request.rack.decode())
    assert attributes_of(read_request(version, 5, b"before" + body, 6, 6 + len(body))) == attributes_of(
        request
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_rejects_a_request_truncated_at_any_byte(version: int) -> None:
    body = write_request(requested(version, 3))
    for end in range(len(body)):
        with pytest.raises((IndexError, ProtocolError)):
            read_request(version, 5, body[:end], 0, end)


def response(version: int) -> fetch.FetchResponse:
    """A response with values in all fields of the version."""
    partitions = [
        fetch.PartitionData(
            partition_index=index,
            error_code=index,
            high_watermark=10 + index,
            last_stable_offset=9 + index if version >= 4 else -1,
            log_start_offset=index if version >= 5 else -1,
            aborted_transactions=[fetch.AbortedTransaction(producer_id=7, first_offset=3)] * index
            if version >= 4
            else [],
            preferred_read_replica=index if version >= 11 else -1,
            records=b"r" * index,
        )
        for index in range(3)
    ]
    if version >= 12:
        partitions[1].diverging_epoch = fetch.EpochEndOffset(epoch=4, end_offset=1 << 34)
    topics = []
    for key in keys(version):
        topic = fetch.FetchableTopicResponse(partitions=partitions)
        if version >= 13:
            topic.topic_id = key
        else:
            topic.topic = key.decode()
        topics.append(topic)
    values = {"throttle_time_ms": 5} if version >= 1 else {}
    if version >= 7:
        values |= {"error_code": 6, "session_id": 8}
    return fetch.FetchResponse(responses=topics, **values)


@pytest.mark.parametrize("version", VERSIONS)
def test_parses_responses_like_the_generated_codec(version: int) -> None:
    message = response(version)
    body = encode(message, version)
    data = b"before" + body + b"behind"
    found = read_response(data, 6, 6 + len(body), version, MANY)
    head = (message.throttle_time_ms, message.error_code, message.session_id)
    assert (found.throttle_ms, found.error, found.session_id) == head
    assert [one.key for one in found.partitions] == [key for key in keys(version) for _ in range(3)]
    for one, part in zip(found.partitions[3:], message.responses[1].partitions, strict=True):
        assert (one.index, one.error, one.high_watermark) == (
            part.partition_index,
            part.error_code,
            part.high_watermark,
        )
        assert (one.last_stable_offset, one.log_start_offset) == (
            part.last_stable_offset,
            part.log_start_offset,
        )
        pairs = [(pair.producer_id, pair.first_offset) for pair in part.aborted_transactions or ()]
        assert (one.aborted or [], one.preferred_replica) == (pairs, part.preferred_read_replica)
        assert one.records() == part.records
        diverging = part.diverging_epoch
        if one.diverging_epoch is None:
            assert diverging.end_offset == -1
        else:
            found_epoch = one.diverging_epoch
            assert (found_epoch.epoch, found_epoch.end_offset) == (diverging.epoch, diverging.end_offset)


@pytest.mark.parametrize("version", VERSIONS)
def test_limits_the_items_of_a_response(version: int) -> None:
    body = encode(response(version), version)
    assert len(read_response(body, 0, len(body), version, 6).partitions) == 6
    with pytest.raises(ProtocolError, match="3 more topics or partitions"):
        read_response(body, 0, len(body), version, 5)


@pytest.mark.parametrize("version", [4, 11, 12, 18])
@pytest.mark.parametrize("aborted", [None, [], [(7, 3), (8, 1 << 35)]])
def test_encodes_aborted_transactions_like_the_generated_codec(
    version: int, aborted: list[tuple[int, int]] | None
) -> None:
    out = BytesWriter()
    write_response_head(out, version, 0, 0)
    head = len(out)
    write_fetched(out, version, 1, 0, 5, 4, 3, aborted, -1, 0)
    message = response(version)
    (part,) = message.responses[0].partitions[:1]
    part.partition_index, part.high_watermark, part.last_stable_offset = 1, 5, 4
    part.log_start_offset, part.preferred_read_replica, part.records = (3 if version >= 5 else -1), -1, b""
    part.aborted_transactions = (
        None
        if aborted is None
        else [fetch.AbortedTransaction(producer_id=p, first_offset=o) for p, o in aborted]
    )
    message.responses = message.responses[:1]
    message.responses[0].partitions = [part]
    assert out.getvalue()[head:] in encode(message, version)


def test_all_known_versions_have_a_layout() -> None:
    known = API[ApiKey.FETCH]
    assert (known.version_min, known.version_max) == (FIRST_VERSION, LAST_VERSION)


def tagged(count: int) -> bytes:
    """A section of ``count`` tagged fields without bytes, whose tag is unknown."""
    return encode_uvarint(count) + b"\x63\0" * count


@pytest.mark.parametrize("count", [TAGS_MAX, TAGS_MAX + 1])
def test_limits_the_tagged_fields_of_requests_and_responses(count: int) -> None:
    version = LAST_VERSION
    partition = RequestedPartition(key=IDS[0], index=1)
    body = write_request(FetchRequest(version=version, partitions=(partition,)))
    # The end of the body: tags of the partition, tags of its topic, no forgotten topics, no rack, own tags.
    assert body.endswith(b"\0\0\x01\x01\0")
    of_request = body[:-1] + tagged(count)
    of_partition = body[:-5] + tagged(count) + body[-4:]
    answer = encode(response(version), version)
    assert answer.endswith(b"r\0\0\0")
    of_fetched = answer[:-3] + tagged(count) + answer[-2:]

    def read_all(data: bytes) -> None:
        read_request(version, 5, data, 0, len(data))

    def read_answer(data: bytes) -> None:
        read_response(data, 0, len(data), version, 100)

    for read, data in ((read_all, of_request), (read_all, of_partition), (read_answer, of_fetched)):
        if count <= TAGS_MAX:
            read(data)
        else:
            with pytest.raises(ProtocolError, match=f"{count} tagged fields"):
                read(data)
