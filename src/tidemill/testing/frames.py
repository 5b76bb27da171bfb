"""Requests and responses of one proxied Kafka connection: decides which responses become errors.

No I/O. Frames are passed without their size: :meth:`Exchange.request` decides whether a request is forwarded
to the broker, :meth:`Exchange.replace_response` which response the client gets. Responses are sent in the
order of the requests, including the responses built here.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tidemill.model.errors import ErrorCode, KafkaError, ProtocolError
from tidemill.wire.apis import ApiKey
from tidemill.wire.header import (
    RequestHeader,
    decode_request,
    decode_response,
    encode_response,
    parse_request_header,
)
from tidemill.wire.primitives import read_uvarint

UNKNOWN_KEY: Final = -1
"""API key of a frame that is not a valid request; it is forwarded."""
SEQUENCE_MAX: Final = 2**31 - 1
REFUSED_MAX: Final = 10_000
"""Largest number of producers whose refused batches are remembered."""
_LATEST_FIRST: Final = 1 << 30
_PRODUCER: Final = struct.Struct(">qhi")
"""Producer id, epoch and first sequence, as in a batch of format v2."""
_PRODUCER_POSITION: Final = 43
_MAGIC_POSITION: Final = 16
_FORMAT_V2: Final = 2


@dataclass
class Rule:
    """An error for the next responses of an API: for all clients, or for those with a client id."""

    api: ApiKey
    code: ErrorCode
    left: int
    """The number of responses still to be replaced."""
    client_id: str | None
    carried_out: bool = field(kw_only=True)
    """Whether the broker executes the request, and only its response carries an error."""

    def applies_to(self, key: int, client_id: str | None) -> bool:
        """Returns whether the response to such a request is to be replaced."""
        return self.left > 0 and key == self.api and self.client_id in (None, client_id)


class Rules:
    """The rules for the clients of one broker, in order of creation, followed by those of all brokers."""

    def __init__(self, of_all: Rules | None = None) -> None:
        self.rules: dict[int, Rule] = {}
        self._of_all = of_all
        self._number = 0

    def add(self, rule: Rule) -> int:
        """Adds a rule. Returns its number."""
        self._number += 1
        self.rules[self._number] = rule
        return self._number

    def find(self, key: int, client_id: str | None) -> Rule | None:
        """Returns the first rule that applies to a request."""
        for rule in self.rules.values():
            if rule.applies_to(key, client_id):
                return rule
        return None if self._of_all is None else self._of_all.find(key, client_id)


@dataclass(slots=True)
class _PendingRequest:
    """A request whose response has not been sent yet."""

    key: int
    version: int
    client_id: str | None
    is_rewritten: bool = False
    """Whether a rule applied to the request, but no response can be built in the broker's place."""
    response: bytes | None = None
    """A response built here, with its size; it is sent after all responses before it."""


Partitions = dict[tuple[str, bytes], set[int]]


class Exchange:
    """The requests of one connection."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._pending: deque[_PendingRequest] = deque()
        self._fetched: Partitions = {}
        """Partitions of the connection's fetch session, by topic name and id."""
        self._refused: dict[tuple[str, bytes, int, int], tuple[int, int, ErrorCode]] = {}
        """Refused batches by topic, partition and producer id: epoch, sequence, error."""
        self.client_id: str | None = None
        """The client id of the first request."""
        self.seen = False

    def request(self, frame: bytes) -> bool:
        """Handles a request. Returns whether it is forwarded to the broker."""
        try:
            header = parse_request_header(frame)
        except ProtocolError:
            self._pending.append(_PendingRequest(UNKNOWN_KEY, 0, None))
            return True
        if not self.seen:
            self.seen = True
            self.client_id = header.client_id
        pending = _PendingRequest(int(header.api_key), int(header.api_version), header.client_id)
        try:
            is_forwarded = self._inspect(pending, header, frame)
        except (ProtocolError, KafkaError):
            is_forwarded = True  # The broker reports the error in the request.
        if pending.key == ApiKey.PRODUCE and _expects_no_response(header, frame):
            return True
        self._pending.append(pending)
        return is_forwarded

    def _inspect(self, pending: _PendingRequest, header: RequestHeader, frame: bytes) -> bool:
        key = pending.key
        if key == ApiKey.FETCH:
            self._track_fetch(decode_request(header, frame), pending)
        rule = self._rules.find(key, pending.client_id)
        behind = self._refused_before(header, frame) if self._refused and key == ApiKey.PRODUCE else None
        if rule is None and behind is None:
            return True
        request: Any = decode_request(header, frame)
        if key == ApiKey.PRODUCE and request.acks == 0:
            return True
        if behind is None and (rule is None or rule.carried_out):
            return True
        from tidemill.testing.error_responses import CHANGES, refusal

        code = behind if behind is not None else rule.code if rule is not None else ErrorCode.NONE
        if key not in CHANGES:
            pending.is_rewritten = True
            return True
        try:
            message = refusal(ApiKey(key), pending.version, request, code)
            response = encode_response(key, pending.version, int(header.correlation_id), message)
        except (KafkaError, ValueError):
            pending.is_rewritten = True
            return True  # This version has no field for the error.
        pending.response = response
        if behind is None and rule is not None:
            rule.left -= 1
            if key == ApiKey.PRODUCE:
                self._remember_refused(request, rule.code)
        return False

    def ready(self) -> Iterator[bytes]:
        """Yields the responses built here that can be sent now, with their sizes."""
        while self._pending and self._pending[0].response is not None:
            response = self._pending.popleft().response
            if response is not None:
                yield response

    def replace_response(self, frame: bytes) -> bytes | None:
        """Returns the replacement of the broker's next response, with its size; None to forward that."""
        if not self._pending:
            return None
        pending = self._pending.popleft()
        rule = self._rules.find(pending.key, pending.client_id)
        if rule is None:
            return None
        from tidemill.testing.error_responses import CHANGES, failed_fetch, with_error

        if not rule.carried_out and not pending.is_rewritten and rule.api in CHANGES:
            return None  # The request came before the rule, and was executed.
        key, version = pending.key, pending.version
        try:
            correlation_id, response = decode_response(key, version, frame)
            if key == ApiKey.FETCH:
                if not self._fetched:
                    return None
                response = failed_fetch(version, getattr(response, "session_id", 0), self._fetched, rule.code)
            elif not with_error(ApiKey(key), version, response, rule.code):
                return None
            changed = encode_response(key, version, correlation_id, response)
        except (ProtocolError, KafkaError, ValueError):
            return None
        rule.left -= 1
        return changed

    # Fetch sessions: a response contains only partitions that have changed, and an error is a change

    def _track_fetch(self, request: Any, pending: _PendingRequest) -> None:
        if request.session_id == 0 or request.session_epoch <= 0:
            self._fetched = {}
        for topic in request.topics:
            indexes = self._fetched.setdefault((topic.topic, topic.topic_id), set())
            indexes.update(partition.partition for partition in topic.partitions)
        for topic in request.forgotten_topics_data:
            indexes = self._fetched.get((topic.topic, topic.topic_id), set())
            indexes.difference_update(topic.partitions)
            if not indexes:
                self._fetched.pop((topic.topic, topic.topic_id), None)

    # Batches after a refused one: a broker refuses them as well, because their sequences are out of order, or
    # because they would be stored without the first (tidemill.broker.rejected_batches)

    def _remember_refused(self, request: Any, code: ErrorCode) -> None:
        for place, epoch, sequence in _sequences(request):
            if len(self._refused) < REFUSED_MAX:
                self._refused[place] = (epoch, sequence, code)

    def _refused_before(self, header: RequestHeader, frame: bytes) -> ErrorCode | None:
        """Returns the error of an earlier refused batch of the same producer that this request depends on."""
        found = None
        for place, epoch, sequence in _sequences(decode_request(header, frame)):
            refused = self._refused.get(place)
            if refused is None:
                continue
            its_epoch, its_sequence, code = refused
            ahead = (sequence - its_sequence) & SEQUENCE_MAX
            if its_epoch != epoch or not 0 < ahead < _LATEST_FIRST:
                del self._refused[place]  # The batch is retried, or the producer has abandoned it.
            else:
                found = code
        return found


def _sequences(request: Any) -> Iterator[tuple[tuple[str, bytes, int, int], int, int]]:
    """Yields topic, partition, producer id; epoch; first sequence of batches of idempotent producers."""
    for topic in request.topic_data:
        for partition in topic.partition_data:
            records = partition.records or b""
            if len(records) <= _PRODUCER_POSITION + _PRODUCER.size or records[_MAGIC_POSITION] != _FORMAT_V2:
                continue
            producer_id, epoch, sequence = _PRODUCER.unpack_from(records, _PRODUCER_POSITION)
            if producer_id >= 0:
                yield (topic.name, topic.topic_id, partition.index, producer_id), epoch, sequence


def _expects_no_response(header: RequestHeader, frame: bytes) -> bool:
    """Returns whether a Produce has ``acks=0``. The field follows the transactional id, mostly null."""
    position = int(header.body_position)
    version = int(header.api_version)
    if version >= 9:
        try:
            length, position = read_uvarint(frame, position, len(frame))
        except ProtocolError:
            return False  # The broker reports the error.
        position += max(0, length - 1)
    elif version >= 3:
        length = int.from_bytes(frame[position : position + 2], "big", signed=True)
        position += 2 + max(0, length)
    return frame[position : position + 2] == b"\0\0"
