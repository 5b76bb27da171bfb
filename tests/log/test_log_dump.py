"""The output of the dump of a partition's files."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from log_stage import MakeBatch, MakeLog

from default_limits import DumpOptions, dump_lines
from default_limits import dump_entries as entries
from record_builders import build_batch
from tidemill.log.producer_state_manager import ProducerEntry
from tidemill.log.system_files import SystemFiles
from tidemill.log_tools.dump import Epoch, IndexEntry, Mismatch, Problem, TimeIndexEntry
from tidemill.log_tools.dump_log import StoredRecord
from tidemill.model.errors import ConfigError
from tidemill.records.batch import ATTRIBUTES, CONTROL_FLAG, CRC, RECORDS
from tidemill.records.builder import build_end_marker
from tidemill.records.checksum import crc32c

FILES = SystemFiles()
TIME = 1524709879130


def test_the_golden_batch_is_dumped_in_kafkas_form(directory: str) -> None:
    path = Path(directory, "00000000000000000000.log")
    path.write_bytes(build_batch([(TIME, b"key", b"value", None)], leader_epoch=0) + b"\0" * 9)
    assert dump_lines(FILES, str(path), DumpOptions(contents=True)) == [
        f"Dumping {path}",
        "Log starting offset: 0",
        "baseOffset: 0 lastOffset: 0 count: 1 baseSequence: -1 lastSequence: -1 producerId: -1 "
        "producerEpoch: -1 partitionLeaderEpoch: 0 isTransactional: false isControl: false deleteHorizonMs: "
        f"OptionalLong.empty position: 0 CreateTime: {TIME} size: 76 magic: 2 compresscodec: none "
        "crc: 2857248333 isvalid: true",
        f"| offset: 0 CreateTime: {TIME} keySize: 3 valueSize: 5 sequence: -1 headerKeys: [] "
        "key: key payload: value",
        "Found 9 invalid bytes at the end of 00000000000000000000.log",
    ]


def test_a_wrong_checksum_and_a_marker_are_shown(directory: str) -> None:
    path = Path(directory, "00000000000000000000.log")
    bad = bytearray(build_batch([(TIME, None, b"value", None)]))
    bad[-2] ^= 1
    path.write_bytes(bytes(bad) + build_end_marker(False, TIME, 7, 1, 3, base_offset=1))
    shown = dump_lines(FILES, str(path), DumpOptions(deep=True))
    assert shown[2].endswith("isvalid: false")
    assert shown[4].endswith("headerKeys: [] endTxnMarker: ABORT coordinatorEpoch: 3")


@pytest.mark.parametrize(
    ("number", "shown"),
    [(2, "LEADER_CHANGE(2)"), (3, "SNAPSHOT_HEADER(3)"), (6, "KRAFT_VOTERS(6)"), (77, "UNKNOWN(77)")],
)
def test_control_records_of_other_kinds_are_shown_by_their_names(
    directory: str, number: int, shown: str
) -> None:
    path = Path(directory, "00000000000000000000.log")
    data = bytearray(build_end_marker(True, TIME, 7, 1, 3))
    key = bytes(data).index(b"\0\0\0\1", RECORDS)
    data[key : key + 4] = struct.pack(">hh", 0, number)
    data[CRC:ATTRIBUTES] = struct.pack(">I", crc32c(memoryview(bytes(data))[ATTRIBUTES:]))
    path.write_bytes(bytes(data))
    reported = dump_lines(FILES, str(path), DumpOptions(deep=True))
    assert reported[2].endswith("isvalid: true")
    assert reported[3].endswith(f"controlType: {shown}")


@pytest.mark.parametrize(
    ("control", "key", "reported"),
    [
        (False, b"\0\0\0\1", (False, None)),
        (False, None, (False, None)),
        (True, b"\0\0\0\1", (True, 1)),
        (True, b"\0\0\0\7more", (True, 7)),
        (True, b"\0\0\0", (True, None)),
        (True, None, (True, None)),
    ],
)
def test_a_record_in_a_control_batch_with_a_four_byte_key_has_a_control_type(
    directory: str, control: bool, key: bytes | None, reported: tuple[bool, int | None]
) -> None:
    path = Path(directory, "00000000000000000000.log")
    data = bytearray(build_batch([(TIME, key, b"value", None)], producer_id=7, producer_epoch=0))
    data[ATTRIBUTES + 1] |= CONTROL_FLAG if control else 0
    data[CRC:ATTRIBUTES] = struct.pack(">I", crc32c(memoryview(bytes(data))[ATTRIBUTES:]))
    path.write_bytes(bytes(data))
    (record,) = [one for one in entries(FILES, str(path), records=True) if isinstance(one, StoredRecord)]
    assert (record.is_control, record.control and record.control.control_type) == reported


def test_indexes_snapshots_and_epochs_are_shown(log_of: MakeLog, batch: MakeBatch, directory: str) -> None:
    log = log_of({"index_interval_bytes": 200})
    for number in range(6):
        log.append(
            batch(1, timestamp=TIME + number, producer_id=7, producer_epoch=0, base_sequence=number),
            4,
            TIME,
        )
    log.close(TIME)
    size = batch(1).size
    assert dump_lines(FILES, log.active.index.path, DumpOptions())[1:] == [
        f"offset: {offset} position: {offset * size}" for offset in (3,)
    ]
    assert list(entries(FILES, log.active.time_index.path))[-1] == TimeIndexEntry(TIME + 5, 5)
    (producer,) = entries(FILES, f"{directory}/00000000000000000006.snapshot")
    assert isinstance(producer, ProducerEntry)
    assert (producer.producer_id, producer.last_sequence, producer.last_offset) == (7, 5, 5)
    assert list(entries(FILES, f"{directory}/leader-epoch-checkpoint")) == [Epoch(4, 0)]


def test_a_wrong_index_entry_is_reported(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of({"index_interval_bytes": 0})
    for _ in range(3):
        log.append(batch(1), 0, TIME)
    log.close(TIME)
    path = Path(log.active.index.path)
    data = bytearray(path.read_bytes())
    data[3] += 5
    path.write_bytes(data)
    assert dump_lines(FILES, str(path), DumpOptions())[-2:] == [
        f"Mismatches in :{path}",
        "  Index offset: 6, log offset: 1",
    ]


def test_a_negative_position_is_a_mismatch(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of({"index_interval_bytes": 0})
    for number in range(3):
        log.append(batch(1, timestamp=TIME + number), 0, TIME)
    log.close(TIME)
    path = Path(log.active.index.path)
    path.write_bytes(struct.pack(">iiii", 1, -5, 2, 2 * batch(1).size))
    assert list(entries(FILES, str(path))) == [
        IndexEntry(1, -5),
        Mismatch(1, -1),
        IndexEntry(2, 2 * batch(1).size),
    ]
    times = list(entries(FILES, log.active.time_index.path))
    assert times == [TimeIndexEntry(TIME + 1, 1), TimeIndexEntry(TIME + 2, 2)]


@pytest.mark.parametrize("layout", [".index", ".timeindex"])
def test_an_index_truncated_during_the_dump_ends_at_the_truncation(directory: str, layout: str) -> None:
    path = Path(directory, f"{0:020d}{layout}")
    shape = ">ii" if layout == ".index" else ">qi"
    path.write_bytes(b"".join(struct.pack(shape, number, number) for number in range(1, 9000)))
    shown = entries(FILES, str(path))
    first = next(shown)
    assert isinstance(first, IndexEntry | TimeIndexEntry)
    assert first.offset == 1
    os.truncate(path, 0)
    assert 0 < len(list(shown)) < 8998


def test_time_index_entries_are_checked_from_the_position_in_the_offset_index(
    log_of: MakeLog, batch: MakeBatch
) -> None:
    log = log_of({"index_interval_bytes": 0})
    for number in range(20):
        log.append(batch(2, timestamp=TIME + number), 0, TIME)
    log.close(TIME)
    path = Path(log.active.time_index.path)
    found = list(entries(FILES, str(path)))
    assert len(found) == 19
    assert {type(entry) for entry in found} == {TimeIndexEntry}
    data = bytearray(path.read_bytes())
    # Entries are out of order: each is searched for separately.
    path.write_bytes(data[120:] + data[:120])
    headings = [entry.heading for entry in entries(FILES, str(path)) if isinstance(entry, Problem)]
    assert headings == ["Found out of order timestamp in :{}"]


def test_other_files_are_rejected(directory: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a file of a log: give one that ends in \.log"):
        entries(FILES, f"{directory}/notes.txt")
