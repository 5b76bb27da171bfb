"""The reads of a range of offsets, with scripted responses of a broker."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from record_builders import build_batch
from tidemill.client.cluster_metadata import Partition, Topic
from tidemill.client.errors import BrokerUnreachable, ClientClosed, ClientError, DataLoss
from tidemill.client.leader_log_ends import LeaderLogEnds
from tidemill.client.range_reader import EMPTY_RESPONSES, RangeReader, _RangeFetch
from tidemill.model.errors import CorruptMessage, ErrorCode
from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.fetch_layout import FetchedPartition, FetchRequest, read_request
from tidemill.wire.list_offset_timestamps import EARLIEST, EARLIEST_LOCAL

START, END = 100, 200
REFUSED = ErrorCode.OFFSET_OUT_OF_RANGE


def response_with(data: bytes = b"", high_watermark: int = START, error: int = 0) -> FetchedPartition:
    response = FetchedPartition(b"t", 0, data)
    response.end, response.high_watermark, response.error = len(data), high_watermark, error
    return response


EMPTY = response_with()
OUT_OF_RANGE = response_with(error=REFUSED)
WHOLE = build_batch([(1, None, b"v", None)] * (END - START), base_offset=START)
RECORDS = response_with(WHOLE, END)
GAP = response_with(high_watermark=END)
THROTTLED = response_with(high_watermark=END)
BELOW = response_with(high_watermark=END - 1)


class Reads:
    """The fetches of a range; each has the next of ``responses``. ``offsets``: start and end of the log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reader = RangeReader("unused:1", retry_backoff_ms=0)
        client = self.reader._network_client
        self.run = _RangeFetch(self.reader, client, "t", 0, START, END, None, 1000)
        self.responses: list[FetchedPartition] = []
        self.offsets = (0, END)
        self.local_start: int | None = 0
        self.version = 11
        monkeypatch.setattr(client, "refresh", lambda *_: None)
        monkeypatch.setattr(self.reader, "describe", lambda _: {"t": SimpleNamespace(topic_id=ZERO_ID)})
        monkeypatch.setattr(self.reader, "list_offsets", self._list_offsets)
        self.log_ends = LeaderLogEnds({}, {})
        monkeypatch.setattr(self.reader, "leader_log_ends", lambda _items, _timeout_s: self.log_ends)
        monkeypatch.setattr(self.run, "_send", lambda: SimpleNamespace(version=self.version))
        monkeypatch.setattr(self.run, "_await_response", self._next)

    def _next(self, _: object) -> FetchedPartition:
        response = self.responses.pop(0)
        self.run.is_throttled = response is THROTTLED
        return response

    def _list_offsets(self, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        if self.local_start is None and EARLIEST_LOCAL in wanted.values():
            raise ClientError("before 3.6", ErrorCode.UNSUPPORTED_VERSION)
        starts = {EARLIEST: self.offsets[0], EARLIEST_LOCAL: self.local_start or 0}
        return {item: starts.get(at, self.offsets[1]) for item, at in wanted.items()}

    def read(self, *responses: FetchedPartition) -> list[Any]:
        self.responses[:] = responses
        return [response for response, _ in self.run.responses()]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reads]:
    found = Reads(monkeypatch)
    yield found
    found.reader.close()


@pytest.mark.parametrize("local_start", [None, 0, START])
def test_a_range_ends_where_the_log_has_no_further_batch(reads: Reads, local_start: int | None) -> None:
    """As after the compaction of the last batches."""
    reads.local_start = local_start
    assert reads.read(*[GAP] * EMPTY_RESPONSES) == []
    assert reads.run.position == END
    assert reads.responses == []


@pytest.mark.parametrize("other", [THROTTLED, BELOW])
def test_responses_without_records_may_have_another_reason(reads: Reads, other: FetchedPartition) -> None:
    """A quota, or a high watermark below the end of the range."""
    few = [GAP] * (EMPTY_RESPONSES - 1)
    assert reads.read(*few, other, *few, RECORDS) == [RECORDS]


def test_a_remote_store_that_is_late_leaves_no_gap(reads: Reads) -> None:
    reads.local_start = START + 1
    assert reads.read(*[GAP] * 9, RECORDS) == [RECORDS]


@pytest.mark.parametrize("end", [START + 1, END, END + 1])
@pytest.mark.parametrize("before", [[EMPTY] * 3, [OUT_OF_RANGE]])
def test_records_that_the_log_has_are_no_loss_although_a_leader_does_not_return_them_yet(
    reads: Reads, before: list[FetchedPartition], end: int
) -> None:
    """The high watermark of a new leader lags; a former leader has an older log."""
    reads.offsets = (0, end)
    assert reads.read(*before, RECORDS) == [RECORDS]
    assert reads.run.position == END


@pytest.mark.parametrize("log_end", [START + 1, END])
def test_records_above_the_high_watermark_of_a_new_leader_are_waited_for(reads: Reads, log_end: int) -> None:
    reads.offsets = (0, START)
    reads.log_ends.offsets[TopicPartition("t", 0)] = log_end
    assert reads.read(*[EMPTY] * 9, RECORDS) == [RECORDS]


@pytest.mark.parametrize("before", [[EMPTY] * 9, [OUT_OF_RANGE]])
def test_a_leader_that_does_not_tell_its_log_end_now_is_no_loss(
    reads: Reads, before: list[FetchedPartition]
) -> None:
    reads.offsets = (0, START)
    reads.log_ends.failures[TopicPartition("t", 0)] = BrokerUnreachable("cut")
    assert reads.read(*before, RECORDS) == [RECORDS]


@pytest.mark.parametrize("responses", [[EMPTY] * 2, [OUT_OF_RANGE]])
@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        ((0, START), "t-0 ends at 100, before the records 100 to 199"),
        ((0, START - 1), "t-0 ends at 99, before the records 100 to 199"),
        ((START + 1, END), "records 100 to 100 of t-0 were deleted: its log start offset is 101"),
        ((END + 1, END + 2), "records 100 to 199 of t-0 were deleted: its log start offset is 201"),
    ],
)
def test_records_that_the_log_does_not_have_are_a_loss(
    reads: Reads, responses: list[FetchedPartition], offsets: tuple[int, int], text: str
) -> None:
    reads.offsets = offsets
    with pytest.raises(DataLoss, match=text):
        reads.read(*responses)
    assert not reads.responses


@pytest.mark.parametrize(("version", "bytes_max"), [(3, 1000), (2, 2**31 - 1)])
def test_a_first_batch_with_a_damaged_length_is_an_error(reads: Reads, version: int, bytes_max: int) -> None:
    reads.version, reads.run.bytes_max = version, bytes_max
    with pytest.raises(CorruptMessage, match=r"t-0 cannot be read from offset 100 on: .*damaged"):
        reads.read(response_with(WHOLE[:-1], END))


def test_a_partial_batch_of_an_old_broker_doubles_the_requested_bytes(reads: Reads) -> None:
    reads.version = 2
    assert reads.read(response_with(WHOLE[:-1], END), RECORDS) == [RECORDS]
    assert reads.run.bytes_max == 2000


def test_a_reader_that_was_interrupted_connects_no_more() -> None:
    with RangeReader("127.0.0.1:1", default_api_timeout_ms=1000, request_timeout_ms=500) as reader:
        reader.interrupt()
        with pytest.raises(ClientClosed):
            reader.describe(["t"])


def test_a_read_names_no_rack_since_it_reads_from_the_leader_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the rack, the leader returns no records, but the name of the replica in that rack."""
    requests: list[FetchRequest] = []

    def send(key: ApiKey, message: bytes, version: int) -> None:
        requests.append(read_request(version, 0, message, 0, len(message)))

    with RangeReader("unused:1", client_rack="r") as reader:
        client = reader._network_client
        client.topics["t"] = Topic("t", ZERO_ID, False, [Partition(0, 1, 0, [1, 2], [1, 2], [])])
        broker = SimpleNamespace(version=lambda _: 11, send=send)
        monkeypatch.setattr(client, "connection", lambda *_: broker)
        _RangeFetch(reader, client, "t", 0, START, END, None, 1000)._send()
    assert [request.rack for request in requests] == [b""]
