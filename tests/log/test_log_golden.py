"""Segments and their files against the worked figures of the documentation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tidemill.log.log import Log
from tidemill.records.batch import parse_batch
from tidemill.records.builder import build_batch
from tidemill.records.legacy import parse_entry
from tidemill.records.message_set import build_message_set
from tidemill.records.reader import iter_records

NOW = 1_700_000_000_000
TIME_MS = 1524709879130

MakeLog = Callable[..., Log]


def of_size(offset: int, size: int) -> bytes:
    """A batch of one record that has ``size`` bytes."""
    made = (build_batch([(NOW, None, bytes(many), None)], base_offset=offset) for many in range(size))
    return next(data for data in made if len(data) == size)


def follow(log: Log, *batches: bytes) -> None:
    for data in batches:
        log.append_as_follower(data, NOW)


def test_a_log_of_v0_with_both_messages_has_65_bytes(log_of: MakeLog, directory: str) -> None:
    log = log_of()
    follow(log, build_message_set(0, [(TIME_MS, b"key", b"value")]))
    follow(log, build_message_set(0, [(TIME_MS, None, b"value")], base_offset=1))
    data = Path(directory, "00000000000000000000.log").read_bytes()
    assert (len(data), log.end_offset) == (65, 2)
    assert parse_entry(data, 0, 65).crc == 592888119
    assert parse_entry(data, 34, 65).offset == 1


def test_a_log_of_v2_holds_the_batch_of_76_bytes_as_its_leader_sets_it(
    log_of: MakeLog, directory: str
) -> None:
    produced = build_batch([(TIME_MS, b"key", b"value", None)], base_offset=99)
    log_of().append([parse_batch(produced, 0, len(produced))], 0, NOW)
    data = Path(directory, "00000000000000000000.log").read_bytes()
    assert data == build_batch([(TIME_MS, b"key", b"value", None)], leader_epoch=0)
    assert (len(data), parse_batch(data, 0, 76).crc) == (76, 2857248333)


def test_offset_368776_is_in_the_second_of_three_segments_behind_its_entry_3_497(
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
    # The fourth message of the segment is the first behind 400 bytes; the next entry is as far behind it.
    assert index.hex(" ", 4) == "00000003 000001f1 00000007 000003d1"
    assert log.segments[1].index.lookup(368_776 - 1) == 497
    for opened in (log, log_of({"index_interval_bytes": 400})):
        part = opened.read(368_776, 1, 737_338, True)
        assert part is not None
        assert (part.position, part.size) == (497 + 120 * 4, 120)
        (record,) = iter_records(part.read())
        assert record.offset == 368_776
        assert opened.segments[int(opened.segment_at(368_776))].path.endswith("00000000000000368769.log")
