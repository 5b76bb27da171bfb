"""Idempotent producers: sequences, epochs, duplicates, the snapshot file."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from log_stage import NOW, MakeBatch, MakeLog

from tidemill.log.log import Log
from tidemill.log.producer_state_manager import ProducerStateManager, decode_snapshot
from tidemill.model.errors import ErrorCode, KafkaError, StorageError
from tidemill.model.event_loop_slices import run_at_once
from tidemill.records.batch import GZIP, LZ4, NO_COMPRESSION, SEQUENCE_MAX, Batch, parse_batch
from tidemill.records.builder import build_end_marker
from tidemill.records.checksum import crc32c

HUGE = struct.pack(">i", 1 << 30)


def produced(
    batch: MakeBatch, sequence: int, count: int = 1, epoch: int = 0, producer: int = 42, **options: Any
) -> Batch:
    return batch(count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, **options)


def expired(log: Log, now_ms: int) -> int:
    """Removes the producers that were idle for a second. Returns their number."""
    before = len(log.producer_state.entries)
    run_at_once(log.producer_state.remove_expired_in_slices(now_ms, 1000))
    return before - len(log.producer_state.entries)


@pytest.mark.parametrize("codec", [NO_COMPRESSION, GZIP, LZ4])
def test_a_retried_batch_gets_its_original_offset(log_of: MakeLog, batch: MakeBatch, codec: int) -> None:
    log = log_of()
    for number in range(5):
        log.append(produced(batch, number * 3, 3, codec=codec), 0, NOW)
    for number in range(5):
        result = log.append(produced(batch, number * 3, 3, codec=codec), 0, NOW)
        assert (result.duplicate, result.base_offset, result.last_offset) == (
            True,
            number * 3,
            number * 3 + 2,
        )
    assert log.end_offset == 15


@pytest.mark.parametrize(
    ("kept", "rejected", "text"),
    [
        pytest.param(
            [(at, 1) for at in range(6)],
            (0, 1),
            "sent sequence 0, expected 6",
            id="a batch older than the last five",
        ),
        pytest.param([(0, 2)], (3, 1), "a previous batch is missing", id="a sequence gap"),
        pytest.param(
            [(0, 2)],
            (0, 3),
            "sent sequence 0, expected 2",
            id="an equal first sequence with another length is not a duplicate",
        ),
    ],
)
def test_a_batch_is_out_of_order(
    log_of: MakeLog, batch: MakeBatch, kept: list[tuple[int, int]], rejected: tuple[int, int], text: str
) -> None:
    log = log_of()
    for sequence, count in kept:
        log.append(produced(batch, sequence, count), 0, NOW)
    end = int(log.end_offset)
    with pytest.raises(KafkaError, match=text) as caught:
        log.append(produced(batch, *rejected), 0, NOW)
    assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.end_offset == end
    assert log.append(produced(batch, end), 0, NOW).base_offset == end


def test_sequences_wrap_after_int32(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of()
    log.append(produced(batch, 0x7FFFFFFE, 4), 0, NOW)
    (kept,) = log.producer_state.entries[42].batches
    assert (kept.first_sequence, kept.last_sequence) == (0x7FFFFFFE, 1)
    assert log.append(produced(batch, 0x7FFFFFFE, 4), 0, NOW).duplicate
    assert log.append(produced(batch, 2), 0, NOW).base_offset == 4
    log.append(produced(batch, 0x7FFFFFFF, producer=43), 0, NOW)
    assert log.append(produced(batch, 0, producer=43), 0, NOW).base_offset == 6


def test_an_unknown_producer_may_start_at_any_sequence(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of()
    assert log.append(produced(batch, 17), 0, NOW).base_offset == 0
    assert log.append(produced(batch, 18), 0, NOW).base_offset == 1


def test_an_old_producer_epoch_is_fenced_and_a_new_one_starts_at_sequence_0(
    log_of: MakeLog, batch: MakeBatch
) -> None:
    log = log_of()
    log.append(produced(batch, 0, epoch=1), 0, NOW)
    with pytest.raises(KafkaError, match="has epoch 0, but a newer instance has epoch 1") as caught:
        log.append(produced(batch, 1, epoch=0), 0, NOW)
    assert caught.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(KafkaError, match="starts epoch 2 with sequence 5, not 0"):
        log.append(produced(batch, 5, epoch=2), 0, NOW)
    assert log.append(produced(batch, 0, epoch=2), 0, NOW).base_offset == 1
    assert len(log.producer_state.entries[42].batches) == 1


def test_the_last_five_batches_survive_a_kill(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of({"segment_bytes": 400})
    for number in range(20):
        log.append(produced(batch, number), 0, NOW)
    log.close_handlers()
    again = log_of({"segment_bytes": 400})
    for number in range(15, 20):
        assert again.append(produced(batch, number), 0, NOW).base_offset == number
    assert again.append(produced(batch, 20), 0, NOW).base_offset == 20


def test_duplicates_are_detected_after_a_clean_shutdown_with_a_one_batch_snapshot(
    log_of: MakeLog, batch: MakeBatch
) -> None:
    log = log_of({"segment_bytes": 800})
    for number in range(8):
        log.append(produced(batch, number), 0, NOW)
        log.append(produced(batch, number, producer=43), 0, NOW)
    log.close(NOW)
    again = log_of({"segment_bytes": 800}, clean=True)
    assert len(again.producer_state.entries[42].batches) == 1
    assert again.append(produced(batch, 8), 0, NOW).base_offset == 16
    for number in (4, 5, 6, 7, 8):
        result = again.append(produced(batch, number), 0, NOW)
        assert (result.duplicate, result.base_offset) == (True, number * 2)
    with pytest.raises(KafkaError, match="sent sequence 3, expected 9"):
        again.append(produced(batch, 3), 0, NOW)


@pytest.mark.parametrize("stop", ["none", "kill", "clean"])
@pytest.mark.parametrize("first", [0, SEQUENCE_MAX - 1])
def test_a_batch_accepted_as_new_by_another_leader_is_a_duplicate_afterwards(
    stop: str, first: int, log_of: MakeLog, batch: MakeBatch, directory: str
) -> None:
    sequences = [(first + number) & SEQUENCE_MAX for number in range(5)]
    log = log_of({"segment_bytes": 400})
    for sequence in sequences[:4]:
        log.append(produced(batch, sequence), 0, NOW)
    # That leader's log starts here and has no state of the producer.
    log.append_copied(produced(batch, sequences[1], base_offset=4).data, NOW)
    if stop == "kill":
        log.close_handlers()
    elif stop == "clean":
        log.close(NOW)
    if stop != "none":
        log = log_of({"segment_bytes": 400}, clean=stop == "clean")
    result = log.append(produced(batch, sequences[1]), 0, NOW)
    assert (result.duplicate, result.base_offset) == (True, 4)
    for offset, sequence in enumerate(sequences[2:], 5):
        result = log.append(produced(batch, sequence), 0, NOW)
        assert (result.duplicate, result.base_offset) == (False, offset)
    result = log.append(produced(batch, sequences[0]), 0, NOW)
    assert (result.duplicate, result.base_offset) == (True, 0), "earlier batches are known"


def test_inactive_producers_expire_by_their_last_activity(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of()
    log.append(batch(1, timestamp=1000, producer_id=1, producer_epoch=0, base_sequence=0), 0, NOW)
    log.append(produced(batch, 0, producer=2), 0, NOW + 500)
    assert expired(log, NOW + 999) == 0
    assert expired(log, NOW + 1000) == 1
    assert list(log.producer_state.entries) == [2]


def test_a_producer_with_an_open_transaction_never_expires(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of()
    for producer in (1, 2):
        options = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        log.append(batch(1, **options), 0, NOW)
    marker = build_end_marker(True, NOW, 2, 0, 0, base_offset=2, leader_epoch=0)
    log.append_copied(marker, NOW)
    assert expired(log, NOW + 1_000_000) == 1
    assert list(log.producer_state.entries) == [1]
    assert log.last_stable_offset(log.end_offset) == 0


def test_a_restart_resets_the_expiration_of_inactive_producers(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of()
    log.append(batch(1, timestamp=1000, producer_id=1, producer_epoch=0, base_sequence=0), 0, NOW)
    log.close(NOW)
    again = log_of(clean=True, now_ms=NOW + 5000)
    assert again.producer_state.snapshot_offset == 1
    assert expired(again, NOW + 5999) == 0
    assert again.append(
        batch(1, timestamp=1000, producer_id=1, producer_epoch=0, base_sequence=0), 0, NOW
    ).duplicate
    assert expired(again, NOW + 6000) == 1


def test_truncation_restores_the_earlier_producer_state(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of({"segment_bytes": 400})
    for number in range(20):
        log.append(produced(batch, number), 0, NOW)
    log.truncate_to(12, NOW)
    assert log.producer_state.entries[42].last_sequence == 11
    assert log.append(produced(batch, 12), 0, NOW).base_offset == 12


def test_a_producer_snapshot_has_kafkas_layout(log_of: MakeLog, batch: MakeBatch, directory: str) -> None:
    log = log_of()
    log.append(produced(batch, 5, 3, epoch=2), 0, NOW)
    log.close(NOW)
    data = Path(directory, "00000000000000000003.snapshot").read_bytes()
    entry = struct.pack(">qhiqiqiq", 42, 2, 7, 2, 2, NOW, -1, -1)
    body = struct.pack(">i", 1) + entry
    assert data == struct.pack(">hI", 1, crc32c(body)) + body
    assert len(data) == 10 + 46


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\0\1", "2 bytes, too few"),
        (struct.pack(">hIi", 2, 0, 0), "of version 2, expected 1"),
        (struct.pack(">hIi", 1, 7, 0), r"has checksum \d+, but its header has 7"),
        (
            struct.pack(">hI", 1, crc32c(struct.pack(">i", 1 << 30))) + struct.pack(">i", 1 << 30),
            "does not match 1073741824",
        ),
    ],
)
def test_a_damaged_snapshot_is_rejected(data: bytes, text: str) -> None:
    with pytest.raises(StorageError, match=text):
        decode_snapshot(data, "x.snapshot")


def test_a_snapshot_is_read_back_unchanged(batch: MakeBatch) -> None:
    state = ProducerStateManager("t-0")
    for producer in range(10):
        appended = produced(batch, producer, 3, 1, producer, transactional=producer == 4)
        state.apply(appended, None, producer * 10, NOW, NOW)
    other = ProducerStateManager("t-0")
    other.restore(state.encode(), 100, NOW, "x")
    assert other.encode() == state.encode()
    assert (other.transactions.first_open(), other.end_offset) == (40, 100)


def test_a_state_that_is_read_again_has_no_earlier_transactions(batch: MakeBatch) -> None:
    state = ProducerStateManager("t-0")
    state.apply(produced(batch, 7, 3, 1, 0, transactional=True), None, 40, NOW, NOW)
    assert state.transactions.first_open() == 40
    state.forget()
    assert (state.transactions.first_open(), state.transactions.are_none) == (-1, True)


def test_markers_in_the_log_end_transactions(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of()
    data = b"".join(
        [
            batch(2, producer_id=7, producer_epoch=1, base_sequence=0, transactional=True).to_bytes(),
            build_end_marker(True, NOW, 7, 1, 33, base_offset=2),
            batch(
                1, producer_id=7, producer_epoch=1, base_sequence=2, transactional=True, base_offset=3
            ).to_bytes(),
        ]
    )
    log.append_copied(data, NOW)
    log.close_handlers()
    again = log_of()
    entry = again.producer_state.entries[7]
    assert (entry.coordinator_epoch, entry.transaction_first_offset) == (33, 3)
    assert (again.last_stable_offset(again.end_offset), entry.last_sequence) == (3, 2)
    marker = parse_batch(build_end_marker(True, NOW, 7, 1, 33), 0, 78)
    assert marker.is_control
