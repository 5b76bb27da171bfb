"""How a range of a source is copied to its mirror, with logs in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from record_builders import build_batch, build_message_set
from tidemill.client import Admin
from tidemill.client.errors import BrokerUnreachable, ClientError
from tidemill.client.mirror_appender import MirrorAppender
from tidemill.client.range_reader import RangeReader
from tidemill.model.errors import ErrorCode
from tidemill.pipeline.mirror import range_copy
from tidemill.pipeline.mirror.range_copy import CopyRange, RangeCopy, SourceDiverged, may_be_same
from tidemill.records.batch import (
    CURRENT_MAGIC,
    MAGIC,
    NO_PRODUCER_ID,
    RECORDS,
    parse_batch,
    whole_batch_size,
)
from tidemill.records.builder import assemble
from tidemill.testing.broker import Broker
from tidemill.wire.fetch_layout import FetchedPartition

ROW = (1_700_000_000_000, b"key", b"value", None)


def batch(offset: int, value: bytes = b"value", epoch: int = 3, producer_id: int = NO_PRODUCER_ID) -> bytes:
    row = (ROW[0], b"key", value, None)
    return build_batch([row], base_offset=offset, leader_epoch=epoch, producer_id=producer_id)


class Log:
    """A log of batches of one record each, as a reader of it and as an appender to it."""

    def __init__(self, *batches: bytes, in_a_response: int = 1) -> None:
        self.batches = list(batches)
        self.in_a_response = in_a_response
        self.end = len(batches)
        """Offsets behind the batches have none."""
        self.on_response: Callable[[int], None] = lambda offset: None
        self.in_flight = 0
        self.in_flight_max = 0
        self.refusal: ClientError | None = None

    def fetch(
        self, topic: str, partition: int, start: int, end: int, topic_id: Any = None, bytes_max: int = 0
    ) -> Iterator[FetchedPartition]:
        while start < min(end, len(self.batches)):
            some = self.batches[start : start + (1 if bytes_max == 1 else self.in_a_response)]
            response = FetchedPartition(b"t", 0, b"".join(some))
            response.end = len(response.data)
            if bytes_max != 1:
                self.on_response(start)
            yield response
            start += len(some)

    def log_end(self, item: Any) -> int:
        return self.end

    def send(self, item: Any, batches: bytes) -> bytes:
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight, self.in_flight_max)
        return batches

    def wait(self, item: Any, batches: bytes) -> None:
        self.in_flight -= 1
        if self.refusal is not None:
            raise self.refusal
        at = 0
        while at < len(batches):
            size = whole_batch_size(batches, at, len(batches))
            base = int.from_bytes(batches[at : at + 8])
            if base >= len(self.batches):
                assert base == self.log_end(item)
                self.batches.append(batches[at : at + size])
                is_old = batches[at + MAGIC] < CURRENT_MAGIC
                self.end = base + 1 if is_old else parse_batch(batches, at, len(batches)).last_offset + 1
            at += size


def copy_of(source: Log, mirror: Log, *, is_compacted: bool = False) -> RangeCopy:
    span = CopyRange("t", "t", 0, source.end, is_compacted=is_compacted)
    reader: Any = source
    target: Any = mirror
    return RangeCopy(reader, target, target, span)


def test_a_range_is_copied_with_a_few_requests_in_flight() -> None:
    source, mirror = Log(*map(batch, range(9))), Log()
    copied = copy_of(source, mirror).run()
    assert (copied.end, copied.records, copied.problem) == (9, 9, "")
    assert mirror.in_flight_max == range_copy.IN_FLIGHT_MAX


def test_a_mirror_is_filled_where_its_source_has_no_last_batch() -> None:
    source, mirror = Log(*map(batch, range(3))), Log()
    source.end = 9
    copied = copy_of(source, mirror).run()
    assert (copied.end, copied.records, copied.problem) == (9, 3, "")
    last = parse_batch(mirror.batches[-1], 0, len(mirror.batches[-1]))
    assert (last.base_offset, last.last_offset, last.record_count) == (3, 8, 0)
    source.end = 12
    assert copy_of(source, mirror).run().end == 12


@pytest.mark.parametrize("is_compacted", [True, False])
def test_another_topic_is_no_source_of_a_mirror(is_compacted: bool) -> None:
    source = Log(*(batch(offset, b"other") for offset in range(9)))
    with pytest.raises(SourceDiverged, match="another batch before offset 2"):
        copy_of(source, Log(batch(0), batch(1)), is_compacted=is_compacted).run()


def test_entries_of_old_formats_for_a_topic_that_is_no_mirror_any_more_end_no_job() -> None:
    """The job asks whether the topic is a mirror, and otherwise ends with this text."""
    entries = [build_message_set(1, [(ROW[0], b"k", b"v")], base_offset=offset) for offset in range(9)]
    with Broker() as broker, Admin(broker.bootstrap) as admin, RangeReader(broker.bootstrap) as mirror:
        admin.create_topic("u", 1, 1)
        target = MirrorAppender(broker.bootstrap)
        source: Any = Log(*entries)
        span = CopyRange("t", "u", 0, 9)
        copied = RangeCopy(source, mirror, target, span).run()
        target.close()
    assert (copied.end, copied.code) == (0, ErrorCode.INVALID_RECORD)
    assert "refuses what t-0 of the source has from offset 0 on" in copied.problem
    assert "for its mirror u-0. Read it at the source" in copied.problem


@pytest.mark.parametrize("code", [ErrorCode.POLICY_VIOLATION, ErrorCode.INVALID_TXN_STATE])
def test_a_mirror_that_was_promoted_has_other_records_and_is_no_error(code: ErrorCode) -> None:
    mirror = Log(batch(0), batch(1, b"of a producer"))
    mirror.refusal = ClientError("no mirror any more", code)
    copied = copy_of(Log(*map(batch, range(9))), mirror).run()
    assert (copied.end, copied.code, copied.problem) == (2, code, "no mirror any more")
    assert len(mirror.batches) == 2


def test_a_source_that_loses_records_during_the_copy_stops_it() -> None:
    source, mirror = Log(*map(batch, range(9))), Log()

    def elect(offset: int) -> None:
        if offset == 5:
            source.batches[3:] = [batch(lost, b"new", epoch=4) for lost in range(3, 9)]

    def elect_before(offset: int) -> None:
        elect(offset + 1)

    source.on_response = elect_before
    with pytest.raises(SourceDiverged, match="another batch before offset 5"):
        copy_of(source, mirror).run()
    assert len(mirror.batches) == 5


def test_another_leader_with_the_same_records_is_followed() -> None:
    source, mirror = Log(*(batch(offset, epoch=offset) for offset in range(9))), Log()
    assert copy_of(source, mirror).run().end == 9


def test_entries_of_old_formats_are_sent_alone() -> None:
    entries = [build_message_set(1, [(ROW[0], b"k", b"v")], base_offset=offset) for offset in range(9)]
    source, mirror = Log(*entries), Log()
    assert copy_of(source, mirror).run().end == 9
    assert mirror.in_flight_max == 1


def test_requests_in_flight_are_given_up_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their responses belong to the attempt that has failed: the copy continues at the log end."""
    monkeypatch.setattr(range_copy, "PAUSE_S", 0.0)
    mirror: Any = Log()
    attempt, waited = [0], []
    send, wait = mirror.send, mirror.wait

    def sent(item: Any, batches: bytes) -> Any:
        return attempt[0], send(item, batches)

    def failing_once(item: Any, request: Any) -> None:
        waited.append((attempt[0], request[0]))
        if len(waited) == 2:
            attempt[0] += 1
            raise BrokerUnreachable("cut")
        wait(item, request[1])

    mirror.send, mirror.wait = sent, failing_once
    copied = copy_of(Log(*map(batch, range(9))), mirror).run()
    assert (copied.end, copied.records) == (9, 9)
    assert waited[1] == (0, 0)
    assert all(now == of_request for now, of_request in waited)


def test_a_copy_without_progress_pauses_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    now = [0.0]

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(range_copy, "time", clock)
    mirror: Any = Log()
    mirror.wait = lambda _item, _batches: None  # the high watermark does not move
    copied = copy_of(Log(*map(batch, range(3))), mirror).run(stalled_s=2.0)
    assert copied.end == 0
    assert len(pauses) in (10, 11)


def test_a_copy_ends_with_the_reason_of_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    mirror: Any = Log()

    def cut(item: Any, batches: bytes) -> bytes:
        raise BrokerUnreachable("cut")

    mirror.send = cut
    copied = copy_of(Log(batch(0)), mirror).run(stalled_s=0.0)
    assert (copied.end, copied.problem) == (0, "cut")


def test_compaction_removes_records_and_keeps_the_others() -> None:
    rows = [(ROW[0], b"a", b"1", None), (ROW[0], b"b", b"2", None)]
    whole = build_batch(rows, base_offset=4, leader_epoch=1)
    later = build_batch(rows, base_offset=4, leader_epoch=2)
    other = build_batch([rows[0], (ROW[0], b"b", b"3", None)], base_offset=4)
    assert may_be_same(whole, later, is_compacted=False)
    kept = build_batch(rows[:1], base_offset=4)[RECORDS:]
    cleaned = assemble(kept, 4, 2, 0, 1, ROW[0], ROW[0], NO_PRODUCER_ID, -1, -1, 1)
    assert may_be_same(whole, cleaned, is_compacted=True)
    assert not may_be_same(other.replace(b"a", b"c"), cleaned, is_compacted=True)
    assert not may_be_same(whole, other, is_compacted=True)
    assert not may_be_same(batch(4), batch(4, producer_id=7), is_compacted=True)
    assert not may_be_same(batch(4), batch(5), is_compacted=True)
