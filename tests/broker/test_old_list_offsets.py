"""ListOffsets 0: the first offsets of segments that were last written at or before a time."""

from __future__ import annotations

import pytest

from tidemill.broker.handlers.list_offsets import look_up_segments
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.replication.partition import Partition
from tidemill.wire.messages.list_offsets import ListOffsetsPartition

STARTS = [(0, 1000), (10, 2000), (20, 3000), (25, 4000)]
NOW = 4000


class HeldLog:
    """A log of three segments, of which the last is active."""

    start_offset = 0

    def segment_starts(self, now_ms: int) -> list[tuple[int, int]]:
        assert now_ms == NOW
        return list(STARTS)


class HeldPartition:
    """A partition with a committed part."""

    def __init__(self, committed: int) -> None:
        self.log = HeldLog()
        self.awaits_high_watermark = False
        self.read_limits = self
        self.committed = committed

    def check_leader(self, epoch: int) -> None:
        if self.committed < 0:
            raise KafkaError("elsewhere", ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def limit_offset(self, replica: int, isolation: int) -> int:
        return self.committed if replica < 0 else 25


def ask(timestamp: int, count: int, committed: int = 25, replica: int = -1) -> list[int]:
    partition: Partition = HeldPartition(committed)  # type: ignore[assignment]
    wanted = ListOffsetsPartition(timestamp=timestamp, max_num_offsets=count)
    answer = look_up_segments(partition, wanted, replica, NOW)
    assert answer.error_code == 0
    return answer.old_style_offsets


@pytest.mark.parametrize(
    ("timestamp", "count", "offsets"),
    [
        (-1, 1, [25]),
        (-1, 3, [25, 20, 10]),
        (-1, 10, [25, 20, 10, 0]),
        (-2, 1, [0]),
        (-2, 10, [0]),
        (999, 10, []),
        (1000, 10, [0]),
        (2999, 1, [10]),
        (2999, 10, [10, 0]),
        (4000, 2, [25, 20]),
        (-1, 0, []),
        (-1, -1, []),
    ],
)
def test_segment_offsets_are_returned_newest_first(timestamp: int, count: int, offsets: list[int]) -> None:
    assert ask(timestamp, count) == offsets


def test_a_consumer_gets_no_uncommitted_offset() -> None:
    assert ask(-1, 10, committed=15) == [15, 10, 0]
    assert ask(-1, 1, committed=15) == [15]
    assert ask(2000, 10, committed=15) == [10, 0]
    assert ask(-1, 10, committed=15, replica=2) == [25, 20, 10, 0]


def test_a_broker_that_does_not_lead_returns_an_error() -> None:
    with pytest.raises(KafkaError, match="elsewhere"):
        ask(-1, 1, committed=-1)
