"""Keeps fetches under way for a consumer's partitions: the next one while the user works on the last.

A broker has at most one fetch of ours at a time. A partition is asked for again only when what it brought
was given out, so that memory is bounded by ``fetch.max.bytes`` a broker.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Iterable

from tidemill.client import fetching
from tidemill.client.chunks import Chunk
from tidemill.client.cluster import DATA, SLOW_S, Cluster
from tidemill.client.connection import Connection
from tidemill.client.connection_attempts import no_answer
from tidemill.client.errors import NEXT_STEP, ClientError, code_of, error_for
from tidemill.client.offsets import EARLIEST, LATEST
from tidemill.client.request import Request
from tidemill.client.waits import Kind, Wait
from tidemill.client.wake_pipe import WakePipe
from tidemill.model.errors import ErrorCode, ProtocolError
from tidemill.model.types import TopicPartition
from tidemill.model.unpacked_limit import UNPACKED_KEY
from tidemill.wire.apis import ApiKey

LEADER_MOVED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""After these the metadata is read again, and the partition asked for after a pause."""


class Place:
    """Where a consumer stands in a partition. ``offset`` None: to be found out."""

    __slots__ = (
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "offset",
        "paused",
        "replica",
        "replica_until",
        "reset",
        "retry_at",
        "trouble",
        "trouble_reason",
        "trouble_since",
    )

    def __init__(self) -> None:
        self.offset: int | None = None
        self.reset: int | None = None
        self.paused = False
        self.retry_at = 0.0
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.replica = -1
        self.replica_until = 0.0
        self.trouble = ""
        """Why it cannot be read now: the name of an error, and since when, in monotonic seconds."""
        self.trouble_reason = ""
        """The error in words, with the next step."""
        self.trouble_since = 0.0

    def note(self, trouble: str, reason: str, since: float | None = None) -> None:
        """Notes that it cannot be read, ``since`` now unless told (monotonic seconds)."""
        if not self.trouble:
            self.trouble_since = time.monotonic() if since is None else since
        self.trouble = trouble
        self.trouble_reason = reason


def _note_error(place: Place, code: ErrorCode) -> None:
    step = NEXT_STEP.get(code)
    place.note(code.name, f"{code.name}; {step}" if step else code.name)


class Fetcher:
    """The fetches of one consumer. For the polling thread; :meth:`wake` is for any."""

    def __init__(self, cluster: Cluster, places: dict[TopicPartition, Place]) -> None:
        config = cluster.config
        self._cluster = cluster
        self._places = places
        self._wait_ms = config.int("fetch.max.wait.ms")
        self._bytes_min = config.int("fetch.min.bytes")
        self._bytes_max = config.int("fetch.max.bytes")
        self._partition_bytes = config.int("max.partition.fetch.bytes")
        self._rack = config.text("client.rack")
        self._backoff = config.seconds("retry.backoff.ms")
        self._max_age = config.seconds("metadata.max.age.ms")
        self.committed_only = config["isolation.level"] == "read_committed"
        self._check_crcs = config.bool("check.crcs")
        self._unpacked_bytes_max = config.int(UNPACKED_KEY)
        self._policy = config.text("auto.offset.reset")
        self._requests: dict[int, Request] = {}
        self.chunks: deque[Chunk] = deque()
        self._pipe = WakePipe()

    def wake(self) -> None:
        """Ends :meth:`wait` in the polling thread. From any thread."""
        self._pipe.wake()

    def close(self) -> None:
        """Gives the descriptors back."""
        self._pipe.close()

    # -- asking -------------------------------------------------------------------------------------------

    def send(self, ahead: dict[TopicPartition, int] | None = None) -> float:
        """Asks for every partition that has nothing waiting; seconds until it is worth asking again.

        ``ahead`` has offsets behind chunks that are being given out now: those partitions are asked for too.
        """
        now = time.monotonic()
        busy = {chunk.item for chunk in self.chunks}
        for request in self._requests.values():
            busy.update(request.tag)
        by_node: dict[int, list[fetching.Asked]] = {}
        wait = 1.0
        for item, place in self._places.items():
            offset = place.offset if ahead is None else ahead.get(item, place.offset)
            if offset is None or place.paused or item in busy:
                continue
            if place.retry_at > now:
                wait = min(wait, place.retry_at - now)
                continue
            topic = self._cluster.topics.get(item.topic)
            if topic is None or item.partition >= len(topic.partitions):
                self._cluster.request_refresh()
                place.retry_at = now + self._backoff
                wait = min(wait, self._backoff)
                continue
            partition = topic.partitions[item.partition]
            node_id = self._node_for(place, partition.leader, now)
            if node_id < 0:
                _note_error(place, ErrorCode.LEADER_NOT_AVAILABLE)
                self._cluster.request_refresh()
                place.retry_at = now + self._backoff
                wait = min(wait, self._backoff)
                continue
            by_node.setdefault(node_id, []).append(
                fetching.Asked(
                    item.topic,
                    topic.topic_id,
                    item.partition,
                    offset,
                    partition.leader_epoch,
                    self._partition_bytes,
                )
            )
        for node_id, items in by_node.items():
            if node_id not in self._requests:
                wait = min(wait, self._send_to(node_id, items))
        return wait

    def has_leader(self, item: TopicPartition) -> bool:
        """False when the metadata says that nobody can lead the partition; that is noted, and asked again."""
        topic = self._cluster.topics.get(item.topic)
        if topic is None or item.partition >= len(topic.partitions):
            return True
        if topic.partitions[item.partition].leader >= 0:
            return True
        self._cluster.request_refresh()
        if item in self._places:
            _note_error(self._places[item], ErrorCode.LEADER_NOT_AVAILABLE)
        return False

    def _node_for(self, place: Place, leader: int, now: float) -> int:
        """The leader, or for a while the replica that it has named as nearer."""
        if place.replica >= 0 and now < place.replica_until and place.replica in self._cluster.nodes:
            return place.replica
        return leader

    def _send_to(self, node_id: int, items: list[fetching.Asked]) -> float:
        connection = self._cluster.opened(node_id, DATA)
        if connection is None:
            blocked = self._cluster.blocked(node_id)
            if blocked is not None:
                for asked in items:
                    self._note_lost(TopicPartition(asked.topic, asked.partition), blocked[1], blocked[0])
            self._cluster.open_soon(node_id, DATA, self.wake)
            return self._cluster.pause(node_id) or 1.0
        version = fetching.version_for(connection.version(ApiKey.FETCH), [asked.topic_id for asked in items])
        # Whoever came first last time goes last now, so that one full partition starves no other.
        turn = self._cluster.version + int(connection.used * 1000)
        first = turn % len(items)
        message = fetching.fetch_request(
            items[first:] + items[:first],
            wait_ms=self._wait_ms,
            bytes_min=self._bytes_min,
            bytes_max=self._bytes_max,
            committed_only=self.committed_only,
            rack=self._rack,
        )
        tag = {TopicPartition(asked.topic, asked.partition): asked.offset for asked in items}
        try:
            self._requests[node_id] = connection.send(ApiKey.FETCH, message, version=version, tag=tag)
        except ClientError as problem:
            self._lost(node_id, tag, problem)
            return self._backoff
        return 1.0

    def _lost(self, node_id: int, asked: Iterable[TopicPartition], problem: Exception) -> None:
        for item in asked:
            self._note_lost(item, str(problem))
        self._cluster.failed(node_id)
        self._cluster.request_refresh()

    def _note_lost(self, item: TopicPartition, reason: str, since: float | None = None) -> None:
        place = self._places.get(item)
        if place is not None:
            place.note(ErrorCode.NETWORK_EXCEPTION.name, reason, since)

    def waits(self) -> list[Wait]:
        """The partitions that cannot be read now. From any thread."""
        now = time.monotonic()
        found: list[Wait] = []
        late: dict[TopicPartition, tuple[float, str]] = {}
        slow_s = self._wait_ms / 1000 + SLOW_S  # A broker waits for records as long as it was told to.
        for request in list(self._requests.values()):
            if now - request.sent > slow_s and request.connection.unanswered() is request:
                reason = no_answer(request.connection, request.api_key)
                late.update(dict.fromkeys(request.tag, (request.sent, reason)))
        for item, place in list(self._places.items()):
            if place.paused or not (place.trouble or item in late):
                continue
            since, reason = late.get(item, (place.trouble_since, place.trouble_reason))
            found.append(Wait(Kind.READ, str(item), reason, since))
        return found

    # -- receiving ----------------------------------------------------------------------------------------

    def wait(self, timeout: float, others: Iterable[Connection] = (), *, for_records: bool = True) -> None:
        """Sleeps until an answer, :meth:`wake` or ``timeout`` seconds; takes the answers.

        ``others``: connections over which other answers may come, too. ``for_records``: it does not sleep
        while there are records to give out.
        """
        self.take()
        if self.chunks and for_records:
            return
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        connections: dict[int, Connection] = {}
        for connection in (*(request.connection for request in self._requests.values()), *others):
            descriptor = connection.fileno()
            if descriptor >= 0:
                poll.register(descriptor, select.POLLIN)
                connections[descriptor] = connection
        for descriptor, _ in poll.poll(max(0, int(timeout * 1000 + 0.999))):
            if descriptor == self._pipe.fileno():
                self._pipe.drain()
            else:
                connections[descriptor].receive()
        self.take()

    def take(self) -> None:
        """Turns answers that are there into chunks."""
        now = time.monotonic()
        for node_id, request in list(self._requests.items()):
            if not request.done:
                request.connection.expire(now)
            if request.done:
                del self._requests[node_id]
                self._answered(node_id, request)

    def _answered(self, node_id: int, request: Request) -> None:
        asked: dict[TopicPartition, int] = request.tag
        if request.error is not None:
            self._lost(node_id, asked, request.error)
            return
        try:
            error, _, answers = fetching.parse_answer(request.frame, request.version)
        except ProtocolError as problem:
            self._lost(node_id, asked, problem)
            raise request.connection.refuse_answer(problem) from problem
        if error:
            self._cluster.request_refresh()
            self._hold(asked, code_of(error))
            return
        by_id = request.version >= fetching.TOPIC_ID_FROM
        for answer in answers:
            name = self._cluster.names.get(answer.topic_id) if by_id else answer.topic
            if name is None:
                self._cluster.request_refresh()
                continue
            item = TopicPartition(name, answer.partition)
            place = self._places.get(item)
            offset = asked.get(item)
            if place is None or offset is None or place.offset != offset:
                continue
            self._place_answer(item, place, offset, answer)

    def _hold(self, items: dict[TopicPartition, int], code: ErrorCode) -> None:
        until = time.monotonic() + self._backoff
        for item in items:
            place = self._places.get(item)
            if place is not None:
                _note_error(place, code)
                place.retry_at = until

    def _place_answer(self, item: TopicPartition, place: Place, offset: int, answer: fetching.Answer) -> None:
        code = code_of(answer.error_code)
        if code == ErrorCode.NONE:
            place.trouble = ""
            place.high_watermark = answer.high_watermark
            place.last_stable_offset = answer.last_stable_offset
            place.log_start_offset = answer.log_start_offset
            if answer.preferred_replica >= 0 and answer.preferred_replica != place.replica:
                place.replica = answer.preferred_replica
                place.replica_until = time.monotonic() + self._max_age
            if answer.end > answer.start:
                if fetching.next_offset(answer.data, answer.start, answer.end, offset) == offset:
                    self._partition_bytes = min(2 * self._partition_bytes, 2**31 - 1)  # part of a large batch
                    return
                chunk = Chunk(
                    item,
                    answer,
                    offset,
                    committed_only=self.committed_only,
                    check_crcs=self._check_crcs,
                    unpacked_bytes_max=self._unpacked_bytes_max,
                )
                self.chunks.append(chunk)
            return
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(item, place, offset)
        elif code in LEADER_MOVED:
            place.replica = -1
            _note_error(place, code)
            place.retry_at = time.monotonic() + self._backoff
            self._cluster.request_refresh()
        else:
            place.retry_at = time.monotonic() + self._backoff
            raise error_for(answer.error_code, f"read {item}", topic=item.topic, partition=item.partition)

    def _out_of_range(self, item: TopicPartition, place: Place, offset: int) -> None:
        if place.replica >= 0:
            place.replica = -1  # the replica may be behind; the leader decides
            return
        if self._policy == "none":
            raise error_for(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"read {item} at {offset}",
                topic=item.topic,
                partition=item.partition,
            )
        place.offset = None
        place.reset = EARLIEST if self._policy == "earliest" else LATEST

    def forget(self, item: TopicPartition) -> None:
        """Drops what was fetched for a partition: it is not ours any more, or its position moved."""
        if any(chunk.item == item for chunk in self.chunks):
            self.chunks = deque(chunk for chunk in self.chunks if chunk.item != item)
