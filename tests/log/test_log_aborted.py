"""What a reader of committed records is told to leave out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tidemill.log.aborted import FEW, AbortedTransactions
from tidemill.log.config import LogConfig
from tidemill.log.files import SystemFiles
from tidemill.log.log import Log
from tidemill.log.names import TRANSACTION_INDEX, offset_name
from tidemill.log.recovery import open_log
from tidemill.log.segment import Slice
from tidemill.log.transaction_index import ABORTED_ENTRY
from tidemill.model.errors import StorageError
from tidemill.model.types import TopicPartition
from tidemill.records.batch import Batch

NOW = 1_700_000_000_000
FILES = SystemFiles()
CONFIG = LogConfig(segment_bytes=20_000, index_interval_bytes=200)
COUNT = 600
MakeBatch = Callable[..., Batch]


@pytest.fixture
def log(tmp_path: Path, batch: MakeBatch) -> Log:
    """Several segments of batches of two records each."""
    one = open_log(FILES, str(tmp_path), TopicPartition("t", 0), CONFIG, now_ms=NOW)
    for _ in range(COUNT):
        one.append([batch(2)], 0, NOW)
    assert len(one.segments) > 3
    return one


def write(log: Log, *entries: tuple[int, int, int], stable: int = -1) -> None:
    """Notes aborted transactions (producer, first and last offset) where their markers lie.

    The last stable offset is ``stable``, or where each began.
    """
    for segment, following in zip(log.segments, [*log.segments[1:], None], strict=True):
        end = 1 << 60 if following is None else following.base_offset
        own = [one for one in entries if segment.base_offset <= one[2] < end]
        path = Path(log.directory, offset_name(segment.base_offset, TRANSACTION_INDEX))
        if own:
            path.write_bytes(
                b"".join(ABORTED_ENTRY.pack(0, *one, one[1] if stable < 0 else stable) for one in own)
            )


def read(log: Log, offset: int, size: int = 1000) -> Slice:
    found = log.read(offset, size, log.end_offset, True)
    assert found is not None
    return found


def test_a_log_without_transactions_tells_none(log: Log) -> None:
    assert AbortedTransactions(FILES)(log, 0, read(log, 0)) == []


def test_transactions_that_end_behind_the_offset_are_told_in_order(log: Log) -> None:
    write(log, (7, 10, 30), (8, 5, 40), (9, 900, 950))
    aborted = AbortedTransactions(FILES)
    assert aborted(log, 0, read(log, 0)) == [(8, 5), (7, 10), (9, 900)]
    assert aborted(log, 30, read(log, 30)) == [(8, 5), (7, 10), (9, 900)]
    assert aborted(log, 31, read(log, 31)) == [(8, 5), (9, 900)]
    assert aborted(log, 951, read(log, 951)) == []


def test_of_many_those_behind_the_records_are_left_out(log: Log) -> None:
    many = [(number, number, number + 1) for number in range(0, 2 * COUNT, 2)]
    write(log, *many)
    aborted = AbortedTransactions(FILES)
    for offset in (0, 1, 500, 1000, 2 * COUNT - 2):
        part = read(log, offset)
        end = offset + part.size // 60 * 2
        told = [first for _, first in aborted(log, offset, part)]
        assert told == [first for _, first, last in many if last >= offset][: len(told)]
        inside = [first for _, first, last in many if last >= offset and first < read_end(log, part)]
        assert told[: len(inside)] == inside
        assert len(told) <= max(FEW, (end - offset) // 2 + 20)


def read_end(log: Log, part: Slice) -> int:
    from tidemill.records.reader import iter_stored

    return max(int(batch.last_offset) for batch in iter_stored(part.read())) + 1


def test_other_segments_are_read_anew(log: Log) -> None:
    write(log, (7, 10, 30))
    aborted = AbortedTransactions(FILES)
    assert aborted(log, 0, read(log, 0)) == [(7, 10)]
    log.remove_segments(1, NOW)
    assert aborted(log, log.start_offset, read(log, log.start_offset)) == []


def test_a_cut_index_tells_its_whole_entries(log: Log) -> None:
    write(log, (7, 10, 30), (8, 40, 50))
    path = Path(log.directory, offset_name(0, TRANSACTION_INDEX))
    path.write_bytes(path.read_bytes()[:-5])
    assert AbortedTransactions(FILES)(log, 0, read(log, 0)) == [(7, 10)]


def test_an_index_that_cannot_be_read_is_an_error_and_not_an_empty_one(log: Log) -> None:
    write(log, (7, 10, 30))
    path = Path(log.directory, offset_name(0, TRANSACTION_INDEX))
    data = path.read_bytes()
    path.unlink()
    path.mkdir()
    aborted = AbortedTransactions(FILES)
    with pytest.raises(StorageError, match=r"txnindex: Is a directory"):
        aborted(log, 0, read(log, 0))
    path.rmdir()
    path.write_bytes(data)
    assert aborted(log, 0, read(log, 0)) == [(7, 10)]


def test_logs_that_are_gone_are_not_kept(log: Log, tmp_path: Path) -> None:
    aborted = AbortedTransactions(FILES)
    aborted(log, 0, read(log, 0))
    log.closed = True
    (tmp_path / "other").mkdir()
    other = open_log(FILES, str(tmp_path / "other"), TopicPartition("u", 0), CONFIG, now_ms=NOW)
    aborted(other, 0, read(log, 0))
    assert list(aborted._known) == [other.directory]


def test_an_index_that_compaction_puts_away_just_now_is_read_all_the_same(log: Log) -> None:
    write(log, (7, 10, 30))
    log.segments[0].pin()
    path = Path(log.directory, offset_name(0, TRANSACTION_INDEX))
    path.rename(f"{path}.deleted")
    assert AbortedTransactions(FILES)(log, 0, read(log, 0)) == [(7, 10)]
    log.segments[0].unpin()
    # What a compaction before put away does not count.
    assert AbortedTransactions(FILES)(log, 0, read(log, 0)) == []


def test_of_very_many_a_long_one_is_told_whose_marker_comes_far_behind(log: Log) -> None:
    long = (3, 4, 2 * COUNT - 1)
    many = [(number % 3, number, number + 1) for number in range(6, 2 * COUNT - 2, 2)]
    write(log, *many, long, stable=4)
    told = AbortedTransactions(FILES)(log, 2, read(log, 2))
    assert told[:5] == [(3, 4), (0, 6), (2, 8), (1, 10), (0, 12)]
    assert len(told) <= FEW


def test_an_offset_index_that_cannot_be_read_is_a_storage_error(log: Log) -> None:
    write(log, *[(number, number, number + 1) for number in range(0, 2 * COUNT, 2)])
    part = read(log, 0)
    log.segments[0].index.release()
    path = Path(log.segments[0].index.path)
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError, match="read the index of"):
        AbortedTransactions(FILES)(log, 0, part)
