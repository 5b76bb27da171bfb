"""Requests and answers of one proxied Kafka connection: which answer is replaced by an error.

No input or output. Frames come without their size, as they pass: :meth:`Exchange.request` says whether a
request goes on to the broker, :meth:`Exchange.answer` what the client gets for an answer. Answers leave in
the order of the requests, those made here too.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
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

UNKNOWN_KEY: Final = -1
"""Of a frame that is no request of the protocol, and is passed on."""
SEQUENCE_MAX: Final = 2**31 - 1
REFUSED_MAX: Final = 10_000
"""Producers whose refused batches are remembered."""
_LATEST_FIRST: Final = 1 << 30
_PRODUCER: Final = struct.Struct(">qhi")
"""Producer id, epoch and first sequence, as a batch of format v2 holds them."""
_PRODUCER_POSITION: Final = 43
_MAGIC_POSITION: Final = 16
_FORMAT_V2: Final = 2


class Rule:
    """An error for the next answers of an API: to all clients, or to those that call themselves so."""

    def __init__(
        self, api: ApiKey, code: ErrorCode, times: int, client_id: str | None, *, carried_out: bool
    ) -> None:
        self.api = api
        self.code = code
        self.left = times
        self.client_id = client_id
        self.carried_out = carried_out
        """Whether the broker executes the request, and only its response carries an error."""

    def fits(self, key: int, client_id: str | None) -> bool:
        """Whether the answer to such a request is to be replaced."""
        return self.left > 0 and key == self.api and self.client_id in (None, client_id)


class Rules:
    """The rules of one broker's clients, in the order in which they were made; then those of all brokers."""

    def __init__(self, of_all: Rules | None = None) -> None:
        self.rules: dict[int, Rule] = {}
        self._of_all = of_all
        self._number = 0

    def add(self, rule: Rule) -> int:
        """Adds a rule; its number."""
        self._number += 1
        self.rules[self._number] = rule
        return self._number

    def find(self, key: int, client_id: str | None) -> Rule | None:
        """The rule for a request."""
        for rule in self.rules.values():
            if rule.fits(key, client_id):
                return rule
        return None if self._of_all is None else self._of_all.find(key, client_id)


class _Awaited:
    """A request whose answer has not left yet."""

    __slots__ = ("answer", "client_id", "is_rewritten", "key", "version")

    def __init__(self, key: int, version: int, client_id: str | None) -> None:
        self.key = key
        self.version = version
        self.client_id = client_id
        self.is_rewritten = False
        """Whether a rule was there when it came, and nobody can refuse it in the broker's place."""
        self.answer: bytes | None = None
        """Made here, with its size in front; it leaves when all before it have left."""


Partitions = dict[tuple[str, bytes], set[int]]


class Exchange:
    """The requests of one connection."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._awaited: deque[_Awaited] = deque()
        self._fetched: Partitions = {}
        """What the connection's fetch session holds, by topic's name and id."""
        self._refused: dict[tuple[str, bytes, int, int], tuple[int, int, ErrorCode]] = {}
        """By topic, partition and producer id the batch that was refused: epoch, sequence, error."""
        self.client_id: str | None = None
        """As the first request had it."""
        self.seen = False

    def request(self, frame: bytes) -> bool:
        """Takes a request; whether it goes on to the broker."""
        try:
            header = parse_request_header(frame)
        except ProtocolError:
            self._awaited.append(_Awaited(UNKNOWN_KEY, 0, None))
            return True
        if not self.seen:
            self.seen = True
            self.client_id = header.client_id
        awaited = _Awaited(int(header.api_key), int(header.api_version), header.client_id)
        try:
            goes_on = self._look_at(awaited, header, frame)
        except (ProtocolError, KafkaError):
            goes_on = True  # The broker says what is wrong with it.
        if awaited.key == ApiKey.PRODUCE and _wants_no_answer(header, frame):
            return True
        self._awaited.append(awaited)
        return goes_on

    def _look_at(self, awaited: _Awaited, header: RequestHeader, frame: bytes) -> bool:
        key = awaited.key
        if key == ApiKey.FETCH:
            self._note_fetch(decode_request(header, frame), awaited)
        rule = self._rules.find(key, awaited.client_id)
        behind = self._refused_before(header, frame) if self._refused and key == ApiKey.PRODUCE else None
        if rule is None and behind is None:
            return True
        request: Any = decode_request(header, frame)
        if key == ApiKey.PRODUCE and request.acks == 0:
            return True
        if behind is None and (rule is None or rule.carried_out):
            return True
        from tidemill.testing.error_responses import refusal

        code = behind if behind is not None else rule.code if rule is not None else ErrorCode.NONE
        message = refusal(ApiKey(key), request, code)
        if message is None:
            awaited.is_rewritten = True
            return True
        try:
            answer = encode_response(key, awaited.version, int(header.correlation_id), message)
        except (KafkaError, ValueError):
            awaited.is_rewritten = True
            return True  # This version has no place for the error there.
        awaited.answer = answer
        if behind is None and rule is not None:
            rule.left -= 1
            if key == ApiKey.PRODUCE:
                self._note_refused(request, rule.code)
        return False

    def ready(self) -> Iterator[bytes]:
        """Answers made here that may leave now, with their sizes."""
        while self._awaited and self._awaited[0].answer is not None:
            answer = self._awaited.popleft().answer
            if answer is not None:
                yield answer

    def answer(self, frame: bytes) -> bytes | None:
        """What the client gets instead of the broker's next answer, with its size; None for that itself."""
        if not self._awaited:
            return None
        awaited = self._awaited.popleft()
        rule = self._rules.find(awaited.key, awaited.client_id)
        if rule is None:
            return None
        from tidemill.testing.error_responses import can_refuse, failed_fetch, with_error

        if not rule.carried_out and not awaited.is_rewritten and can_refuse(rule.api):
            return None  # It came before the rule, and was done.
        key, version = awaited.key, awaited.version
        try:
            correlation_id, response = decode_response(key, version, frame)
            if key == ApiKey.FETCH:
                if not self._fetched:
                    return None
                response = failed_fetch(getattr(response, "session_id", 0), self._fetched, rule.code)
            elif not with_error(ApiKey(key), version, response, rule.code):
                return None
            changed = encode_response(key, version, correlation_id, response)
        except (ProtocolError, KafkaError, ValueError):
            return None
        rule.left -= 1
        return changed

    # Fetch sessions: an answer names only what has changed, and an error is a change

    def _note_fetch(self, request: Any, awaited: _Awaited) -> None:
        if request.session_id == 0 or request.session_epoch <= 0:
            self._fetched = {}
        for topic in request.topics:
            indexes = self._fetched.setdefault((topic.topic, topic.topic_id), set())
            indexes.update(one.partition for one in topic.partitions)
        for topic in request.forgotten_topics_data:
            indexes = self._fetched.get((topic.topic, topic.topic_id), set())
            indexes.difference_update(topic.partitions)
            if not indexes:
                self._fetched.pop((topic.topic, topic.topic_id), None)

    # Batches behind one that was refused: a broker refuses them alike, for by their sequences they are out of
    # order, or would even be stored without the first (tidemill.broker.refusals)

    def _note_refused(self, request: Any, code: ErrorCode) -> None:
        for place, epoch, sequence in _sequences(request):
            if len(self._refused) < REFUSED_MAX:
                self._refused[place] = (epoch, sequence, code)

    def _refused_before(self, header: RequestHeader, frame: bytes) -> ErrorCode | None:
        """The error of a batch of the same producer before one in this request, which waits for it."""
        found = None
        for place, epoch, sequence in _sequences(decode_request(header, frame)):
            refused = self._refused.get(place)
            if refused is None:
                continue
            its_epoch, its_sequence, code = refused
            ahead = (sequence - its_sequence) & SEQUENCE_MAX
            if its_epoch != epoch or not 0 < ahead < _LATEST_FIRST:
                del self._refused[place]  # It comes again, or the producer has given it up.
            else:
                found = code
        return found


def _sequences(request: Any) -> Iterator[tuple[tuple[str, bytes, int, int], int, int]]:
    """Of each batch of an idempotent producer: topic, partition and producer id; epoch; first sequence."""
    for topic in request.topic_data:
        for one in topic.partition_data:
            records = one.records or b""
            if len(records) <= _PRODUCER_POSITION + _PRODUCER.size or records[_MAGIC_POSITION] != _FORMAT_V2:
                continue
            producer_id, epoch, sequence = _PRODUCER.unpack_from(records, _PRODUCER_POSITION)
            if producer_id >= 0:
                yield (topic.name, topic.topic_id, one.index, producer_id), epoch, sequence


def _wants_no_answer(header: RequestHeader, frame: bytes) -> bool:
    """Whether a Produce has ``acks=0``. It stands behind the transactional id, null with nearly everybody."""
    position = int(header.body_position)
    version = int(header.api_version)
    if version >= 9:
        length = 0
        shift = 0
        while position < len(frame):
            byte = frame[position]
            position += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        position += max(0, length - 1)
    elif version >= 3:
        length = int.from_bytes(frame[position : position + 2], "big", signed=True)
        position += 2 + max(0, length)
    return frame[position : position + 2] == b"\0\0"
