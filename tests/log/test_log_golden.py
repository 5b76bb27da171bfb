"""Segments and their files against the worked examples of the documentation."""

from __future__ import annotations

from pathlib import Path

from log_stage import NOW, MakeLog

from default_limits import iter_records
from record_builders import build_batch, build_message_set
from tidemill.log.log import Log
from tidemill.records.batch import parse_batch
from tidemill.records.legacy_formats import parse_entry

TIME_MS = 1524709879130


def of_size(offset: int, size: int) -> bytes:
    """A batch of one record with ``size`` bytes."""
    made = (build_batch([(NOW, None, bytes(many), None)], base_offset=offset) for many in range(size))
    return next(data for data in made if len(data) == size)


def follow(log: Log, *batches: bytes) -> None:
    for data in batches:
        log.append_copied(data, NOW)


def test_a_log_of_two_v0_messages_has_65_bytes(log_of: MakeLog, directory: str) -> None:
    log = log_of()
    follow(log, build_message_set(0, [(TIME_MS, b"key", b"value")]))
    follow(log, build_message_set(0, [(TIME_MS, None, b"value")], base_offset=1))
    data = Path(directory, "00000000000000000000.log").read_bytes()
    assert (len(data), log.end_offset) == (65, 2)
    assert parse_entry(data, 0, 65).crc == 592888119
    assert parse_entry(data, 34, 65).offset == 1


def test_a_v2_log_stores_the_76_byte_batch_with_the_fields_of_its_leader(
    log_of: MakeLog, directory: str
) -> None:
    produced = build_batch([(TIME_MS, b"key", b"value", None)], base_offset=99)
    log_of().append(parse_batch(produced, 0, len(produced)), 0, NOW)
    data = Path(directory, "00000000000000000000.log").read_bytes()
    assert data == build_batch([(TIME_MS, b"key", b"value", None)], leader_epoch=0)
    assert (len(data), parse_batch(data, 0, 76).crc) == (76, 2857248333)


def test_offset_368776_is_found_in_the_second_segment_after_entry_3_497(
    log_of: MakeLog, directory: str
) -> None:
    log = log_of({"index_interval_bytes": 400})
    follow(log, of_size(368_768, 100))
    log.roll(NOW)
    sizes = [165, 166, 166, 120, 120, 120, 120, 120, 120]
    follow(log, *(of_size(368_769 + at, size) for at, size in enumerate(sizes)), of_size(737_336, 100))
    log.roll(NOW)
    follow(log, of_size(737_337, 100))
    assert sorted(path.name for path in Path(directory).glob("*.log")) == [
        "00000000000000000000.log",
        "00000000000000368769.log",
        "00000000000000737337.log",
    ]
    index = Path(directory, "00000000000000368769.index").read_bytes()
    # The fourth message of the segment is the first after 400 bytes. The next entry is as far after it.
    assert index.hex(" ", 4) == "00000003 000001f1 00000007 000003d1"
    assert log.segments[1].index.lookup(368_776 - 1) == 497
    for opened in (log, log_of({"index_interval_bytes": 400})):
        part = opened.read(368_776, 1, 737_338, True)
        assert part is not None
        assert (part.position, part.size) == (497 + 120 * 4, 120)
        (record,) = iter_records(part.read())
        assert record.offset == 368_776
        assert opened.segments[int(opened.segment_list.at(368_776))].path.endswith("00000000000000368769.log")
