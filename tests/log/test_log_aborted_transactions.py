"""The aborted transactions in responses to readers of committed records."""

from __future__ import annotations

from pathlib import Path

import pytest
from log_stage import NOW, MakeBatch

from log_start import open_log
from tidemill.log.aborted_transactions import UNFILTERED_MAX, AbortedTransactions
from tidemill.log.file_names import TRANSACTION_INDEX, offset_name
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.log_segment import LogRange
from tidemill.log.system_files import SystemFiles
from tidemill.log.transaction_index import ABORTED_ENTRY
from tidemill.model.errors import StorageError
from tidemill.model.types import TopicPartition

FILES = SystemFiles()
CONFIG = LogConfig(segment_bytes=20_000, index_interval_bytes=200)
COUNT = 600


@pytest.fixture
def log(tmp_path: Path, batch: MakeBatch) -> Log:
    """Several segments of batches of two records each."""
    one = open_log(FILES, str(tmp_path), TopicPartition("t", 0), CONFIG, now_ms=NOW)
    for _ in range(COUNT):
        one.append(batch(2), 0, NOW)
    assert len(one.segments) > 3
    return one


def write(log: Log, *entries: tuple[int, int, int], stable: int = -1) -> None:
    """Writes aborted transactions (producer, first and last offset) to the indexes of their markers.

    The last stable offset is ``stable``, or the first offset of the transaction.
    """
    for segment, following in zip(log.segments, [*log.segments[1:], None], strict=True):
        end = 1 << 60 if following is None else following.base_offset
        own = [one for one in entries if segment.base_offset <= one[2] < end]
        path = Path(log.directory, offset_name(segment.base_offset, TRANSACTION_INDEX))
        if own:
            path.write_bytes(
                b"".join(ABORTED_ENTRY.pack(0, *one, one[1] if stable < 0 else stable) for one in own)
            )


def read(log: Log, offset: int, size: int = 1000) -> LogRange:
    found = log.read(offset, size, log.end_offset, True)
    assert found is not None
    return found


def test_a_log_without_transactions_has_no_aborted_transactions(log: Log) -> None:
    assert AbortedTransactions(FILES)(log, 0, read(log, 0)) == []


def test_transactions_that_end_after_the_fetch_offset_are_listed_in_order(log: Log) -> None:
    write(log, (7, 10, 30), (8, 5, 40), (9, 900, 950))
    aborted = AbortedTransactions(FILES)
    assert aborted(log, 0, read(log, 0)) == [(8, 5), (7, 10), (9, 900)]
    assert aborted(log, 30, read(log, 30)) == [(8, 5), (7, 10), (9, 900)]
    assert aborted(log, 31, read(log, 31)) == [(8, 5), (9, 900)]
    assert aborted(log, 951, read(log, 951)) == []


def test_transactions_that_begin_after_the_records_are_omitted(log: Log) -> None:
    many = [(number, number, number + 1) for number in range(0, 2 * COUNT, 2)]
    write(log, *many)
    aborted = AbortedTransactions(FILES)
    for offset in (0, 1, 500, 1000, 2 * COUNT - 2):
        part = read(log, offset)
        end = offset + part.size // 60 * 2
        reported = [first for _, first in aborted(log, offset, part)]
        assert reported == [first for _, first, last in many if last >= offset][: len(reported)]
        inside = [first for _, first, last in many if last >= offset and first < read_end(log, part)]
        assert reported[: len(inside)] == inside
        assert len(reported) <= max(UNFILTERED_MAX, (end - offset) // 2 + 20)


def read_end(log: Log, part: LogRange) -> int:
    from tidemill.records.record_reader import iter_stored

    return max(int(batch.last_offset) for batch in iter_stored(part.read())) + 1


def test_entries_of_other_segments_are_read_again(log: Log) -> None:
    write(log, (7, 10, 30))
    aborted = AbortedTransactions(FILES)
    assert aborted(log, 0, read(log, 0)) == [(7, 10)]
    log.delete_old_segments(1, NOW)
    assert aborted(log, log.start_offset, read(log, log.start_offset)) == []


def test_a_truncated_index_yields_its_complete_entries(log: Log) -> None:
    write(log, (7, 10, 30), (8, 40, 50))
    path = Path(log.directory, offset_name(0, TRANSACTION_INDEX))
    path.write_bytes(path.read_bytes()[:-5])
    assert AbortedTransactions(FILES)(log, 0, read(log, 0)) == [(7, 10)]


def test_an_unreadable_index_is_an_error_and_is_not_read_as_empty(log: Log) -> None:
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


def test_deleted_logs_are_removed_from_the_cache(log: Log, tmp_path: Path) -> None:
    aborted = AbortedTransactions(FILES)
    aborted(log, 0, read(log, 0))
    log.closed = True
    (tmp_path / "other").mkdir()
    other = open_log(FILES, str(tmp_path / "other"), TopicPartition("u", 0), CONFIG, now_ms=NOW)
    aborted(other, 0, read(log, 0))
    assert list(aborted._known) == [other.directory]


def test_an_index_renamed_by_compaction_during_the_read_is_still_read(log: Log) -> None:
    write(log, (7, 10, 30))
    log.segments[0].pin()
    path = Path(log.directory, offset_name(0, TRANSACTION_INDEX))
    path.rename(f"{path}.deleted")
    assert AbortedTransactions(FILES)(log, 0, read(log, 0)) == [(7, 10)]
    log.segments[0].unpin()
    # An index that an earlier compaction renamed is not read.
    assert AbortedTransactions(FILES)(log, 0, read(log, 0)) == []


def test_a_long_transaction_with_a_distant_marker_is_listed_among_many(log: Log) -> None:
    long = (3, 4, 2 * COUNT - 1)
    many = [(number % 3, number, number + 1) for number in range(6, 2 * COUNT - 2, 2)]
    write(log, *many, long, stable=4)
    reported = AbortedTransactions(FILES)(log, 2, read(log, 2))
    assert reported[:5] == [(3, 4), (0, 6), (2, 8), (1, 10), (0, 12)]
    assert len(reported) <= UNFILTERED_MAX


def test_an_offset_index_that_cannot_be_read_is_a_storage_error(log: Log) -> None:
    write(log, *[(number, number, number + 1) for number in range(0, 2 * COUNT, 2)])
    part = read(log, 0)
    log.segments[0].index.close_handlers()
    path = Path(log.segments[0].index.path)
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError, match="read the index of"):
        AbortedTransactions(FILES)(log, 0, part)
