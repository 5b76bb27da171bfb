"""Reads the subscriptions and assignments of the consumer protocol, for the coordinator and the client.

Both are messages of :mod:`tidemill.wire.messages.consumer_protocol` after an INT16 version. A later version
only appends fields, so that the known fields of an unknown version are read. Some clients announce a version
and omit its fields (Sarama accepts that as well): the fields that they send are read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Final, TypeVar

from tidemill.model.errors import ProtocolError
from tidemill.wire.codec import VERSION_BYTES, decode_in_slices, decode_prefix, version_of
from tidemill.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from tidemill.wire.schema import Struct, parse_versions

SUBSCRIPTION_TOPICS_MAX: Final = 100_000
"""As the elements of a client's request: :data:`tidemill.wire.decoding.REQUEST_ELEMENTS_MAX`."""

Message = TypeVar("Message", bound=Struct)


def subscribed_topics_in_slices(data: bytes) -> Generator[None, None, list[str]]:
    """Decodes the topics of a subscription, and its other fields of version 0, which every version has.

    Raises ProtocolError, also for more than :data:`SUBSCRIPTION_TOPICS_MAX` topics.
    """
    count = int.from_bytes(data[VERSION_BYTES : VERSION_BYTES + 4], "big")
    if count > SUBSCRIPTION_TOPICS_MAX:
        raise ProtocolError(f"a subscription has {count} topics, more than {SUBSCRIPTION_TOPICS_MAX}")
    message, _ = yield from decode_in_slices(ConsumerProtocolSubscription, 0, data, VERSION_BYTES, len(data))
    return message.topics


def decode_message(kind: type[Message], data: bytes) -> Message:
    """Decodes a subscription or an assignment. Raises ProtocolError if ``data`` holds none."""
    version = min(version_of(data), parse_versions(kind.versions_)[1])
    try:
        return decode_prefix(kind, version, data, VERSION_BYTES, len(data))[0]
    except ProtocolError:
        for earlier in range(version - 1, -1, -1):
            with contextlib.suppress(ProtocolError):
                message, end = decode_prefix(kind, earlier, data, VERSION_BYTES, len(data))
                if end == len(data):
                    return message
        raise
