"""Transactions in a log: the last stable offset, and the transaction index after appends and rebuilds."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest
from faulty_files import FaultyFiles
from log_stage import NOW, MakeLog

from record_builders import build_batch
from tidemill.log import log_loader
from tidemill.log.aborted_transactions import AbortedTransactions
from tidemill.log.cleaned_transaction_metadata import CleanedTransactions
from tidemill.log.log import Log
from tidemill.log.partition_transactions import PartitionTransactions
from tidemill.log.system_files import SystemFiles
from tidemill.log.transaction_index import Aborted, damage, decode_all, encode_all, write_index
from tidemill.model.errors import CorruptMessage, ErrorCode, KafkaError, StorageError
from tidemill.records.batch import Batch, parse_batch
from tidemill.records.builder import BatchBuilder, build_end_marker
from tidemill.records.end_transaction_marker import (
    ABORT,
    COMMIT,
    UNKNOWN_CONTROL_TYPE,
    EndTransactionMarker,
    decode_control_record,
    is_abort,
    read_control_record,
    read_marker,
)

SMALL = {"segment_bytes": 3000, "index_interval_bytes": 200}


def put(log: Log, producer: int, count: int = 1, *, epoch: int = 0) -> int:
    """Appends a batch of a transaction as a leader sent it; returns its base offset."""
    base = int(log.end_offset)
    rows = [(NOW, b"key", b"value", None)] * count
    options = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": 0, "base_offset": base}
    log.append_copied(build_batch(rows, transactional=True, leader_epoch=0, **options), NOW)
    return base


def end(log: Log, producer: int, kind: int = ABORT, *, epoch: int = 0) -> int:
    """Appends a marker; returns its offset."""
    offset = int(log.end_offset)
    data = build_end_marker(kind == COMMIT, NOW, producer, epoch, 5, leader_epoch=0, base_offset=offset)
    log.append_copied(data, NOW)
    return offset


def indexes(directory: str) -> dict[str, bytes]:
    """Returns the transaction indexes by name."""
    return {path.name: path.read_bytes() for path in Path(directory).glob("*.txnindex")}


def entries(directory: str) -> list[Aborted]:
    return [one for _, data in sorted(indexes(directory).items()) for one in decode_all(data)]


def fill(log: Log, seed: int, count: int = 150) -> None:
    """Interleaved transactions of several producers; some are committed, some aborted, some stay open."""
    random = Random(seed)
    running: set[int] = set()
    for _ in range(count):
        producer = random.randrange(6)
        if producer in running and random.random() < 0.4:
            end(log, producer, random.choice((ABORT, COMMIT)))
            running.discard(producer)
        elif random.random() < 0.05:
            end(log, producer)
            running.discard(producer)
        else:
            put(log, producer, random.randrange(1, 4))
            running.add(producer)


def test_an_abort_is_indexed_in_the_segment_of_its_marker(log_of: MakeLog, directory: str) -> None:
    log = log_of()
    put(log, 7, 2)
    put(log, 8)
    put(log, 7)
    assert end(log, 7) == 4
    assert end(log, 8, COMMIT) == 5
    put(log, 7)
    assert end(log, 7) == 7
    # The transaction of producer 8 was open at the first abort, and none at the second.
    assert entries(directory) == [Aborted(0, 7, 0, 4, 2), Aborted(0, 7, 6, 7, 8)]


def test_a_leader_and_a_follower_write_the_same_transaction_index(
    log_of: MakeLog, directory: str, tmp_path: Path
) -> None:
    log = log_of(SMALL)
    fill(log, 1)
    (tmp_path / "led").mkdir()
    led = log_of(SMALL, directory=str(tmp_path / "led"))
    position = 0
    data = b"".join(Path(one.path).read_bytes() for one in log.segments)
    while position < len(data):
        batch = parse_batch(data, position, len(data))
        position += batch.size
        entry = led.producer_state.entries.get(batch.producer_id)
        if entry is not None:
            # All batches have the same sequence number.
            entry.batches.clear()
            entry.epoch = -1
        led.append(batch, 0, NOW)
    assert indexes(led.directory) == indexes(directory)


def test_a_marker_without_a_transaction_is_not_indexed(log_of: MakeLog, directory: str) -> None:
    log = log_of()
    end(log, 7)
    put(log, 7)
    end(log, 7, COMMIT)
    end(log, 7)
    assert indexes(directory) == {}
    assert log.last_stable_offset(log.end_offset) == log.end_offset


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "changed", "longer", "before the recovery point"])
def test_recovery_rebuilds_the_transaction_index(
    log_of: MakeLog, directory: str, seed: int, damage: str
) -> None:
    log = log_of(SMALL)
    fill(log, seed)
    log.close_handlers()
    wanted = indexes(directory)
    stable = log.last_stable_offset(log.end_offset)
    assert len(log.segments) > 2
    assert len(entries(directory)) > 5
    for name, data in wanted.items():
        path = Path(directory, name)
        if damage == "gone":
            path.unlink()
        elif damage == "empty":
            path.write_bytes(b"")
        elif damage == "cut":
            path.write_bytes(data[:-1])
        elif damage == "changed":
            path.write_bytes(bytes([*data[:9], data[9] ^ 1, *data[10:]]))
        elif damage == "longer":
            path.write_bytes(data + data[-34:])
        else:
            path.write_bytes(data[1:])
    point = int(log.end_offset) if damage == "before the recovery point" else 0
    again = log_of(SMALL, recovery_point=point)
    assert indexes(directory) == wanted
    assert again.last_stable_offset(again.end_offset) == stable
    assert again.end_offset == log.end_offset


def test_writing_an_index_reports_whether_it_changed() -> None:
    files = FaultyFiles()
    files.make_directory("/d")
    first, second = Aborted(0, 7, 0, 4, 2), Aborted(0, 8, 5, 9, 5)
    for entries_now, is_other in (
        ([], False),
        ([first], True),
        ([first], False),
        ([first, second], True),
        ([second], True),
        ([], True),
        ([], False),
    ):
        assert write_index(files, "/d/i", entries_now) is is_other
        assert files.exists("/d/i") is bool(entries_now)


def test_recovery_within_a_segment_keeps_earlier_entries(
    log_of: MakeLog, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_loader, "SPARED_BYTES_MIN", 1)
    log = log_of({"index_interval_bytes": 200})
    fill(log, 3, 60)
    point = int(log.end_offset)
    log.flush(NOW)
    fill(log, 4, 60)
    log.close_handlers()
    (name, wanted), *others = indexes(directory).items()
    assert not others
    path = Path(directory, name)
    before = [one for one in decode_all(wanted) if one.last_offset < point]
    assert 0 < len(before) < len(decode_all(wanted))
    path.write_bytes(wanted[: 34 * len(before)] + b"?" * 34)
    log_of({"index_interval_bytes": 200}, recovery_point=point)
    assert path.read_bytes() == wanted
    path.write_bytes(wanted[: 34 * len(before)])
    log_of({"index_interval_bytes": 200}, recovery_point=point)
    assert path.read_bytes() == wanted


def test_index_entries_lost_in_a_power_cut_are_rebuilt(directory: str, log_of: MakeLog) -> None:
    for seed in range(20):
        files = FaultyFiles()
        files.make_directory("/d/events-0")
        files.sync_directory("/d")
        files.sync_directory("/")
        log = log_of(SMALL, files=files, directory="/d/events-0")
        fill(log, seed, 80)
        log.flush(NOW)
        point = int(log.end_offset)
        names = [name for name in files.list("/d/events-0") if name.endswith(".txnindex")]
        wanted = [one for name in names for one in decode_all(files.read(f"/d/events-0/{name}"))]
        fill(log, seed + 1000, 10)
        files.power_cut(Random(seed))
        again = log_of(SMALL, files=files, directory="/d/events-0", recovery_point=point)
        assert again.end_offset >= point
        names = [name for name in files.list("/d/events-0") if name.endswith(".txnindex")]
        found = [one for name in names for one in decode_all(files.read(f"/d/events-0/{name}"))]
        assert found[: len(wanted)] == wanted
        assert all(point <= one.last_offset < again.end_offset for one in found[len(wanted) :])


def test_truncation_truncates_the_transaction_index(log_of: MakeLog, directory: str) -> None:
    log = log_of(SMALL)
    fill(log, 6)
    every = entries(directory)
    aborted = AbortedTransactions(SystemFiles())
    for offset in range(int(log.end_offset) - 1, 0, -7):
        log.truncate_to(offset, NOW)
        left = [one for one in every if one.last_offset < log.end_offset]
        assert [one for one in entries(directory) if one.last_offset < log.end_offset] == left
        piece = log.read(0, 100, log.end_offset, True)
        if piece is not None:
            reported = aborted(log, 0, piece)
            assert sorted(reported) == sorted((one.producer_id, one.first_offset) for one in left)
    # Other records of the same producers replace these offsets.
    fill(log, 7)
    wanted = indexes(directory)
    for name in wanted:
        Path(directory, name).unlink()
    log.close_handlers()
    log_of(SMALL)
    assert {name: data for name, data in indexes(directory).items() if data} == wanted


def test_readers_get_aborts_appended_during_their_read(log_of: MakeLog) -> None:
    log = log_of(SMALL)
    aborted = AbortedTransactions(SystemFiles())
    for number in range(200):
        first = put(log, number)
        end(log, number)
        piece = log.read(first, 100, log.end_offset, True)
        assert piece is not None
        assert aborted(log, first, piece) == [(number, first)]
    assert len(log.segments) > 3


def test_an_abort_that_cannot_be_indexed_is_not_appended(log_of: MakeLog) -> None:
    files = FaultyFiles()
    files.make_directory("/d/events-0")
    log = log_of(files=files, directory="/d/events-0")
    put(log, 7)
    files.fail("append", ".txnindex", errno.ENOSPC)
    with pytest.raises(StorageError, match="txnindex"):
        end(log, 7)
    assert (log.end_offset, log.last_stable_offset(log.end_offset)) == (1, 0)
    files.fail("append", ".log", errno.ENOSPC)
    with pytest.raises(StorageError, match=r"\.log"):
        end(log, 7)
    put(log, 8)
    assert end(log, 7) == 2
    data = files.read("/d/events-0/00000000000000000000.txnindex")
    assert decode_all(data) == [Aborted(0, 7, 0, 2, 1)]


def test_an_open_transaction_limits_readers_before_and_after_a_start(log_of: MakeLog) -> None:
    log = log_of()
    put(log, 1)
    end(log, 1, COMMIT)
    first = put(log, 7)
    put(log, 8)
    end(log, 8)
    assert log.last_stable_offset(log.end_offset) == first
    assert log.last_stable_offset(1) == 1
    log.close(NOW)
    for clean in (True, False):
        again = log_of(clean=clean)
        assert again.last_stable_offset(again.end_offset) == first
        again.close(NOW)
    again = log_of(clean=True)
    end(again, 7, COMMIT)
    assert again.last_stable_offset(again.end_offset) == again.end_offset


def test_a_marker_above_the_high_watermark_does_not_advance_the_last_stable_offset(log_of: MakeLog) -> None:
    log = log_of()
    put(log, 7)
    put(log, 9)
    end(log, 7)
    end(log, 9, COMMIT)
    assert [int(log.last_stable_offset(high)) for high in range(5)] == [0, 0, 0, 1, 4]
    # The high watermark may decrease only with the log.
    put(log, 7)
    assert log.last_stable_offset(5) == 4
    log.truncate_to(3, NOW)
    assert log.last_stable_offset(3) == 1
    assert end(log, 9) == 3
    assert log.last_stable_offset(4) == 4


def test_the_log_start_offset_bounds_the_last_stable_offset(log_of: MakeLog) -> None:
    log = log_of()
    put(log, 7)
    put(log, 7)
    log.advance_start(1)
    assert log.last_stable_offset(2) == 1


def test_a_new_producer_epoch_ends_the_transaction_of_the_previous_epoch(
    log_of: MakeLog, directory: str
) -> None:
    log = log_of()
    put(log, 7)
    end(log, 7, epoch=1)
    assert entries(directory) == [Aborted(0, 7, 0, 1, 2)]
    assert log.producer_state.entries[7].epoch == 1
    assert log.producer_state.entries[7].coordinator_epoch == 5


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\0" * 6),
        (b"\0\0\0\0", None),
        (b"\0\0\0", b"\0" * 6),
        (b"\0\0\0\0", b"\0" * 5),
        (b"\0\0\0\2", b"\0" * 6),
        (b"\0\0\xff\xff", b"\0" * 6),
        pytest.param(b"\0\0\0\1", bytes(2000), id="a batch too large for a marker"),
    ],
)
def test_a_control_batch_without_marker_ends_no_transaction(key: bytes | None, value: bytes | None) -> None:
    data = build_batch([(NOW, key, value, None)], producer_id=7, producer_epoch=0)
    assert read_marker(parse_batch(data, 0, len(data))) is None


@pytest.mark.parametrize("key", [None, b"\0\0\0"])
def test_a_control_record_without_type_is_corrupt_for_all_readers(key: bytes | None) -> None:
    data = build_batch([(NOW, key, bytes(6), None)], producer_id=7, producer_epoch=0)
    batch = parse_batch(data, 0, len(data))
    assert decode_control_record(key, bytes(6)).control_type == UNKNOWN_CONTROL_TYPE
    for read in (read_control_record, is_abort, CleanedTransactions([]).marker_may_go):
        with pytest.raises(CorruptMessage, match="base offset 0 has no control type"):
            read(batch)


def test_a_control_record_of_another_type_ends_no_transaction() -> None:
    data = build_batch([(NOW, b"\0\1\0\2", bytes(6), None)], producer_id=7, producer_epoch=0)
    batch = parse_batch(data, 0, len(data))
    record = read_control_record(batch)
    assert record is not None
    assert (record.control_type, record.marker) == (2, None)
    assert not is_abort(batch)
    assert not CleanedTransactions([]).marker_may_go(batch)


@pytest.mark.parametrize("leads", [True, False])
def test_a_data_record_in_marker_form_ends_no_transaction(
    log_of: MakeLog, directory: str, leads: bool
) -> None:
    log = log_of()
    data = build_batch(
        [(NOW, b"\0\0\0\0", bytes(6), None)],
        transactional=True,
        leader_epoch=0,
        producer_id=1,
        producer_epoch=0,
        base_sequence=1,
        base_offset=1,
    )
    put(log, 1)
    if leads:
        log.append(parse_batch(data, 0, len(data)), 0, NOW)
    else:
        log.append_copied(data, NOW)
    assert (log.end_offset, log.last_stable_offset(2)) == (2, 0)
    assert entries(directory) == []


def test_a_marker_of_a_later_version_ends_its_transaction() -> None:
    data = build_batch([(NOW, b"\0\1\0\1", b"\0\1\0\0\0\x21more", None)], producer_id=7, producer_epoch=0)
    marker = read_marker(parse_batch(data, 0, len(data)))
    assert isinstance(marker, EndTransactionMarker)
    assert (marker.control_type, marker.coordinator_epoch) == (COMMIT, 33)


def test_transactions_begin_and_end_in_any_order() -> None:
    state = PartitionTransactions()
    assert (state.are_none, state.first_open(), state.first_unstable(100)) == (True, -1, -1)
    state.begin(1, 10)
    state.begin(2, 20)
    assert (state.first_open(), state.first_open(1), state.first_unstable(100)) == (10, 20, 10)
    state.end(10, 30)
    assert (state.first_open(), state.first_unstable(30), state.first_unstable(31)) == (20, 10, 20)
    state.end(20, 40)
    assert (state.first_unstable(40), state.are_none) == (20, False)
    assert (state.first_unstable(41), state.are_none) == (-1, True)


@pytest.mark.parametrize("high_watermark", [0, 1, 30])
def test_transaction_changes_at_an_unchanged_high_watermark_update_the_last_stable_offset(
    high_watermark: int,
) -> None:
    state = PartitionTransactions()
    state.begin(1, 10)
    assert state.first_unstable(high_watermark) == 10
    state.end(10, 31)
    assert state.first_unstable(high_watermark) == 10
    state.clear()
    state.begin(2, 20)
    assert state.first_unstable(high_watermark) == 20
    state.clear()
    assert state.first_unstable(high_watermark) == -1


FENCING = [
    # epoch and coordinator epoch of the marker, has_new_epoch, is the transaction open: the error
    (4, 7, False, True, ErrorCode.INVALID_PRODUCER_EPOCH),
    (5, 6, False, True, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
    (5, 6, False, False, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
    (5, 7, False, True, None),
    (5, 8, False, True, None),
    (6, 7, False, True, None),
    (5, 7, True, True, ErrorCode.INVALID_PRODUCER_EPOCH),
    (5, 7, True, False, None),
    (6, 7, True, True, None),
]


@pytest.mark.parametrize(("epoch", "coordinator", "has_new_epoch", "is_open", "error"), FENCING)
def test_markers_of_former_producers_and_coordinators_are_refused(
    log_of: MakeLog, epoch: int, coordinator: int, has_new_epoch: bool, is_open: bool, error: ErrorCode | None
) -> None:
    log = log_of()
    put(log, 7, epoch=5)
    log.append_marker(True, 7, 5, 7, False, 0, NOW)
    if is_open:
        put(log, 7, epoch=5)
    before = log.end_offset
    if error is None:
        log.append_marker(True, 7, epoch, coordinator, has_new_epoch, 0, NOW)
        assert log.end_offset == before + 1
        assert log.last_stable_offset(log.end_offset) == log.end_offset
    else:
        with pytest.raises(KafkaError) as refused:
            log.append_marker(True, 7, epoch, coordinator, has_new_epoch, 0, NOW)
        assert refused.value.code is error
        assert log.end_offset == before


def test_a_batch_outside_of_the_transaction_of_its_producer_is_refused(log_of: MakeLog) -> None:
    log = log_of()
    put(log, 7)
    outside = batch_outside_of_transactions(7)
    with pytest.raises(KafkaError) as refused:
        log.append(outside, 0, NOW)
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE
    end(log, 7)
    log.append(outside, 0, NOW)


def batch_outside_of_transactions(producer: int) -> Batch:
    """Returns the second batch of a producer."""
    builder = BatchBuilder()
    builder.append(NOW, None, b"x")
    data = builder.build(producer, 0, 1)
    return parse_batch(data, 0, len(data))


def test_a_marker_voids_the_verifications_before_it(log_of: MakeLog) -> None:
    log = log_of()
    state = log.producer_state
    first, second = (state.begin_verification(7, 0, False) for _ in range(2))
    other = state.begin_verification(8, 0, False)
    assert first is second
    assert state.end_verification(7, first)
    log.append_marker(False, 7, 0, 0, False, 0, NOW)
    later = state.begin_verification(7, 0, False)
    assert not state.end_verification(7, second)
    assert state.end_verification(7, later)
    assert state.end_verification(8, other)
    assert not state._guards, "refused verifications of strangers take no memory"


@pytest.mark.parametrize("epoch", [4, 6])
def test_a_verification_with_another_epoch_voids_nothing(log_of: MakeLog, epoch: int) -> None:
    """A fenced producer, or a stranger, may send batches during the verification of the producer."""
    log = log_of()
    state = log.producer_state
    guard = state.begin_verification(7, 5, True)
    other = state.begin_verification(7, epoch, True)
    assert guard is not other
    log.append_marker(True, 7, 5, 0, True, 0, NOW)
    assert state.end_verification(7, other) is (epoch > 5)
    assert state.end_verification(7, guard)
    assert not state._guards


def test_a_marker_voids_a_verification_that_a_batch_of_version_1_shares(log_of: MakeLog) -> None:
    log = log_of()
    state = log.producer_state
    guard = state.begin_verification(7, 5, True)
    assert state.begin_verification(7, 5, False) is guard
    log.append_marker(True, 7, 5, 0, False, 0, NOW)
    assert [state.end_verification(7, guard) for _ in range(2)] == [False, False]


@pytest.mark.parametrize(
    ("epoch", "has_own_epoch", "is_valid"),
    [(5, True, True), (6, True, False), (5, False, False), (4, False, True)],
)
def test_the_marker_before_a_transaction_with_its_own_epoch_voids_nothing(
    log_of: MakeLog, epoch: int, has_own_epoch: bool, is_valid: bool
) -> None:
    log = log_of()
    guard = log.producer_state.begin_verification(7, 5, has_own_epoch)
    log.append_marker(True, 7, epoch, 0, has_own_epoch, 0, NOW)
    assert log.producer_state.end_verification(7, guard) is is_valid


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ([], ""),
        ([(0, 5, 112)], ""),
        ([(0, 100, 110), (0, 5, 199)], ""),
        ([(1, 5, 112)], "entry 0 has version 1, expected 0"),
        ([(0, 5, 99)], "entry 0 has invalid offsets 5 to 99"),
        ([(0, 5, 200)], "entry 0 has invalid offsets 5 to 200"),
        ([(0, 120, 110)], "entry 0 has invalid offsets 120 to 110"),
        ([(0, 110, 110)], "entry 0 has invalid offsets 110 to 110"),
        ([(0, -1, 110)], "entry 0 has invalid offsets -1 to 110"),
        ([(0, 5, 120), (0, 6, 120)], "entry 1 has invalid offsets 6 to 120"),
    ],
)
def test_entries_have_the_offsets_of_their_segment(entries: list[tuple[int, int, int]], text: str) -> None:
    data = encode_all(Aborted(version, 1, first, last, first) for version, first, last in entries)
    assert damage(data, 100, 200) == text
    assert damage(data + b"\0", 100, 200).endswith("bytes are not a multiple of the entry size")
