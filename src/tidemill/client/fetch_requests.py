"""The client's Fetch requests and responses, in the layout of :mod:`tidemill.wire.fetch_layout`.

The records of a response stay in the buffer in which they were received.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import chain
from typing import Final, NamedTuple

from tidemill.model.errors import CorruptMessage, ProtocolError
from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.records.batch import (
    CURRENT_MAGIC,
    LAST_OFFSET_DELTA,
    LENGTH,
    LOG_OVERHEAD,
    MAGIC,
    OLD_ENTRY_BYTES_MIN,
    RECORDS,
)
from tidemill.wire.fetch_layout import (
    BY_ID,
    FLEXIBLE,
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    RequestedPartition,
    read_response,
    write_request,
)
from tidemill.wire.primitives import skip_tag_section

LIMIT_BYTES_MAX: Final = 2**31 - 1
"""The largest limit that a request can have for the bytes of a partition."""

_I64 = struct.Struct(">q")
_I32 = struct.Struct(">i")


class PartitionFetch(NamedTuple):
    """The fetch of one partition in a request."""

    topic: str
    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int
    bytes_max: int


def encode_request(
    version: int,
    items: Iterable[PartitionFetch],
    *,
    wait_ms: int,
    bytes_min: int,
    bytes_max: int,
    committed_only: bool,
    rack: str,
) -> bytes:
    """Encodes the body of a request without a fetch session, for the partitions in ``items``."""
    by_topic: dict[bytes, list[RequestedPartition]] = {}
    for item in items:
        key = item.topic_id if version >= BY_ID else item.topic.encode()
        by_topic.setdefault(key, []).append(
            RequestedPartition(
                key=key,
                index=item.partition,
                leader_epoch=item.leader_epoch,
                offset=item.offset,
                bytes_max=item.bytes_max,
            )
        )
    return write_request(
        FetchRequest(
            version=version,
            partitions=tuple(chain.from_iterable(by_topic.values())),
            wait_ms=wait_ms,
            bytes_min=bytes_min,
            bytes_max=bytes_max,
            isolation=1 if committed_only else 0,
            rack=rack.encode(),
        )
    )


def version_for(highest: int, topic_ids: Iterable[bytes]) -> int:
    """Returns the version to use: topics without an id need version 12 or less, which has topic names."""
    if highest >= BY_ID and any(topic_id == ZERO_ID for topic_id in topic_ids):
        return BY_ID - 1
    return highest


def parse_response(frame: bytes, version: int) -> FetchResponse:
    """Parses a whole response without its size. Raises ProtocolError for an invalid response."""
    try:
        start = skip_tag_section(frame, 4, len(frame)) if version >= FLEXIBLE else 4
        # A partition has more than one byte, so the frame limits how many there are.
        response = read_response(frame, start, len(frame), version, len(frame))
        if version < BY_ID:
            for partition in response.partitions:
                partition.key.decode()
    except (IndexError, UnicodeDecodeError) as problem:
        raise ProtocolError(f"a Fetch response of {len(frame)} bytes is invalid: {problem}") from problem
    return response


def next_offset(data: bytes, start: int, end: int, default: int) -> int:
    """Returns the offset after the last whole batch in ``data[start:end]``; ``default`` if there is none."""
    after = default
    while end - start >= OLD_ENTRY_BYTES_MIN:
        size = _I32.unpack_from(data, start + LENGTH)[0] + LOG_OVERHEAD
        is_old = data[start + MAGIC] < CURRENT_MAGIC
        if size < (OLD_ENTRY_BYTES_MIN if is_old else RECORDS) or size > end - start:
            break
        last = _I64.unpack_from(data, start)[0]
        if not is_old:
            last += _I32.unpack_from(data, start + LAST_OFFSET_DELTA)[0]
        after = max(after, last + 1)
        start += size
    return after


def no_whole_batch(item: TopicPartition, offset: int, response: FetchedPartition) -> CorruptMessage:
    """Returns the error of a response without a whole batch, if the broker does not cut off the first one."""
    return CorruptMessage(
        f"{item} cannot be read from offset {offset} on: a response of {response.end - response.start} bytes "
        "has no whole batch; the length of its first batch is damaged"
    )
