"""A request of a connection that is under way, and how it ends without an answer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tidemill.client.errors import BrokerUnreachable, ClientError
from tidemill.model.errors import ProtocolError
from tidemill.wire.apis import ApiKey
from tidemill.wire.header import decode_response

if TYPE_CHECKING:
    from tidemill.client.connection import Connection


class Request:
    """A request under way. ``frame`` holds the answer without its size once ``done``."""

    __slots__ = (
        "api_key",
        "connection",
        "correlation_id",
        "done",
        "error",
        "expires",
        "frame",
        "sent",
        "tag",
        "version",
    )

    def __init__(
        self,
        connection: Connection,
        api_key: ApiKey,
        version: int,
        correlation_id: int,
        expires: float,
        tag: Any,
    ) -> None:
        self.connection = connection
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.sent = time.monotonic()
        self.expires = expires
        self.tag = tag
        self.done = False
        self.error: ClientError | None = None
        self.frame: bytes = b""

    def response(self) -> Any:
        """The decoded answer; raises what made the connection fail.

        BrokerUnreachable when the bytes are no answer: the connection is closed then.
        """
        if self.error is not None:
            raise self.error
        try:
            return self.decoded()
        except ProtocolError as problem:
            raise self.connection.refuse_answer(problem) from problem

    def decoded(self) -> Any:
        """What ``frame`` holds; ProtocolError when it is no answer."""
        return decode_response(self.api_key, self.version, self.frame)[1]


class Broken(BrokerUnreachable):
    """A connection that ended while somebody waited for an answer."""

    reason: OSError | None = None
