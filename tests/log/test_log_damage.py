"""Recovery with every byte of a small segment truncated, zeroed and flipped, in each format.

Each size and each byte with one other value run with the other tests. All ten values of a byte run with the
marker ``every`` (``make simulate``).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from random import Random
from typing import NamedTuple

import pytest
from faulty_files import FaultyFiles

from default_limits import Check
from record_builders import build_batch, build_message_set
from tidemill.log.batch_scan import BatchScan
from tidemill.log.delayed_file_removal import DelayedFileRemoval
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.log_loader import LogLoader
from tidemill.log_tools.verify import check_partition
from tidemill.model.types import TopicPartition
from tidemill.records.batch import parse_batch

NOW = 1_700_000_000_000
AT = "/data/t-0"
FIRST = f"{AT}/{0:020d}.log"
CONFIG = LogConfig(index_interval_bytes=150, segment_index_bytes=240)
FORMATS = ("v0", "v0 gzip", "v0 snappy", "v1", "v1 gzip", "v1 lz4", "v2", "v2 gzip", "v2 lz4", "v2 zstd")
CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
BATCHES = 6
LATER = 2
"""Batches in the segment after the one that is damaged."""


class Piece(NamedTuple):
    """The position and the offsets of a batch or entry of the log."""

    position: int
    end: int
    first: int
    last: int
    data: bytes


class Whole(NamedTuple):
    """The files of a log with two segments, the batches of the first segment, and all batches."""

    files: dict[str, bytes]
    pieces: list[Piece]
    all: list[Piece]


def append(log: Log, name: str, number: int) -> None:
    """Two or three records, as one batch if the format has batches."""
    magic, _, codec_name = name.partition(" ")
    codec = CODECS.get(codec_name, 0)
    records = [
        (NOW + 10 * number + at, b"k%d" % at, b"v%d" % number * 3, None) for at in range(2 + number % 2)
    ]
    if magic == "v2":
        data = build_batch(
            records, codec=codec, producer_id=5, producer_epoch=0, base_sequence=log.end_offset
        )
        log.append(parse_batch(data, 0, len(data)), 3, NOW)
        return
    old = [(time, key, value) for time, key, value, _ in records]
    log.append_copied(build_message_set(int(magic[1]), old, codec, None, log.end_offset), NOW)


@cache
def whole(name: str) -> Whole:
    files = FaultyFiles()
    files.make_directory(AT)
    log, _ = opened(files)
    for number in range(BATCHES + LATER):
        if number == BATCHES:
            log.roll(NOW)
        append(log, name, number)
    logs = [files.read(str(segment.path)) for segment in log.segments]
    first, second = pieces_of(logs[0], 0), pieces_of(logs[1], int(log.active.base_offset))
    content = {path: files.read(path) for path in map(f"{AT}/{{}}".format, files.list(AT))}
    return Whole(content, first, [*first, *second])


def pieces_of(data: bytes, first: int) -> list[Piece]:
    """Returns the batches of a segment with the base offset ``first``."""
    pieces: list[Piece] = []
    position = 0
    while position < len(data):
        end = position + 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        last = last_of(data[position:end])
        pieces.append(Piece(position, end, first, last, data[position:end]))
        position, first = end, last + 1
    return pieces


def opened(files: FaultyFiles) -> tuple[Log, list[str]]:
    one = LogLoader(files, AT, TopicPartition("t", 0), CONFIG, removals=DelayedFileRemoval(), now_ms=NOW)
    return one.open(), one.warnings


def damaged(name: str, data: bytes, alone: bool) -> FaultyFiles:
    """Returns the log with other bytes in its first segment; with ``alone`` without the second."""
    files = FaultyFiles()
    files.make_directory(AT)
    for path, content in whole(name).files.items():
        if not alone or path.startswith(FIRST[:-4]) or "checkpoint" in path:
            files.replace(path, data if path == FIRST else content)
    return files


def served(log: Log) -> list[bytes]:
    """Returns all batches that a reader gets from the start."""
    found: list[bytes] = []
    offset = int(log.start_offset)
    while (piece := log.read(offset, 1 << 20, log.end_offset, True)) is not None:
        data = piece.read()
        position = 0
        while position < len(data):
            end = position + 12 + int.from_bytes(data[position + 8 : position + 12], "big")
            found.append(data[position:end])
            offset = last_of(found[-1]) + 1
            position = end
    return found


def last_of(data: bytes) -> int:
    """Returns the last offset in the header of a batch or entry."""
    delta = int.from_bytes(data[23:27], "big") if data[16] == 2 else 0
    return int.from_bytes(data[:8], "big") + delta


def check_cut(name: str, data: bytes, alone: bool, count: int) -> None:
    """Checks that a start serves exactly the first ``count`` batches, and that appends follow them."""
    files = damaged(name, data, alone)
    log, _ = opened(files)
    pieces = whole(name).pieces
    assert served(log)[: len(pieces)] == [piece.data for piece in pieces[:count]]
    assert log.end_offset == (pieces[count - 1].last + 1 if count else 0)
    append(log, "v2", 50)
    files.kill()
    again, warnings = opened(files)
    assert warnings == []
    assert again.end_offset == log.end_offset


def is_detected(name: str, data: bytes) -> bool:
    """Returns whether a check of the directory reports damage; it changes nothing."""
    check = Check(damaged(name, data, False), AT)
    check_partition(check)
    return check.damages > 0


AMOUNTS = [
    pytest.param(1, id="one value a byte"),
    pytest.param(10, id="all values", marks=[pytest.mark.every, pytest.mark.timeout(1200)]),
]
"""How many other values each byte gets."""


@pytest.mark.parametrize("name", FORMATS)
def test_a_segment_of_any_size_serves_its_complete_batches(name: str) -> None:
    data = whole(name).files[FIRST]
    ends = [piece.end for piece in whole(name).pieces]
    for size in range(len(data)):
        count = sum(end <= size for end in ends)
        for alone in (True, False):
            cut_at_batch = size in (0, *ends)
            if not alone and cut_at_batch:
                continue  # a gap between the segments, as compaction may leave one
            check_cut(name, data[:size], alone, count)
        zeroed = data[:size] + bytes(len(data) - size)
        if zeroed != data:
            check_cut(
                name,
                zeroed,
                True,
                sum(piece.data == zeroed[piece.position : piece.end] for piece in whole(name).pieces),
            )
            assert is_detected(name, zeroed)


def flips(data: bytes, position: int, count: int) -> Iterator[bytes]:
    """Returns ``count`` variants with one byte zeroed, inverted, or with one bit flipped.

    The order depends on the position of the byte.
    """
    byte = data[position]
    others = list(dict.fromkeys([0, byte ^ 0xFF, *(byte ^ 1 << bit for bit in range(8))]))
    Random(position).shuffle(others)
    for other in [one for one in others if one != byte][:count]:
        yield data[:position] + bytes([other]) + data[position + 1 :]


@pytest.mark.parametrize("values", AMOUNTS)
@pytest.mark.parametrize("name", FORMATS)
def test_a_wrong_byte_is_never_served_and_all_batches_before_it_are(name: str, values: int) -> None:
    data = whole(name).files[FIRST]
    pieces = whole(name).pieces
    for position in range(len(data)):
        at = next(at for at, piece in enumerate(pieces) if position < piece.end)
        within = position - pieces[at].position
        for changed in flips(data, position, values):
            case = f"{name}, batch {at}, byte {within}: {changed[position]} not {data[position]}"
            assert is_detected(name, changed), case
            for alone in (True, False):
                after = pieces if alone else whole(name).all
                log, warnings = opened(damaged(name, changed, alone))
                found = served(log)
                # No batch before it is lost.
                assert found[:at] == [piece.data for piece in pieces[:at]], case
                # Bytes covered by a checksum are unchanged.
                assert [one[17:] for one in found] == [piece.data[17:] for piece in after][: len(found)], case
                if is_undetectable(name, at, within, alone):
                    continue
                assert warnings, case
                assert log.leader_epochs.epochs in ([3], []), case
                assert len(found) == (len(after) if is_epoch(name, within) else at), case


def is_epoch(name: str, within: int) -> bool:
    """Returns whether the byte belongs to a leader epoch. Such damage is served and reported."""
    return name.startswith("v2") and 12 <= within < 16


def is_undetectable(name: str, at: int, within: int, alone: bool) -> bool:
    """Returns whether the byte belongs to the damage that a start cannot detect, see the page on segments."""
    is_last = alone and at == len(whole(name).pieces) - 1
    lowest_bytes_of_offset = 4 <= within < 8
    small_jump_of_a_wrapper = name[:2] in ("v0", "v1") and " " in name and within == 7
    return (is_last and (lowest_bytes_of_offset or is_epoch(name, within))) or small_jump_of_a_wrapper


@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("window_bytes", [100, 8192])
def test_a_scan_finds_checksum_faults_of_batches_larger_than_its_window(
    magic: int, window_bytes: int
) -> None:
    value = bytes(range(250))
    whole = build_message_set(1, [(5, b"k", value)]) if magic == 1 else build_batch([(5, b"k", value, None)])
    for position in range(len(whole) - 1, len(whole) - 251, -50):
        damaged = whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :]
        files = FaultyFiles()
        files.make_directory("/d")
        file = files.open("/d/x", create=True)
        file.append([whole, damaged])
        scan = BatchScan(file, 0, 2 * len(whole), window_bytes)
        faults = [bool(scan.checksum_fault()) for _ in range(2) if scan.step()]
        assert faults == [False, True]
        assert not scan.step()
        assert scan.fault == ""
