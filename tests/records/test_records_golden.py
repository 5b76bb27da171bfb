"""Message format v2 against the example of its documentation, byte by byte."""

from __future__ import annotations

import pytest
from librt.strings import BytesWriter
from record_samples import parsed

from record_builders import build_batch
from tidemill.records.batch import check_crc
from tidemill.records.builder import build_end_marker
from tidemill.records.varint import varint_size, write_varint

TIME_MS = 1524709879130


def test_a_batch_with_a_key_has_76_bytes() -> None:
    data = build_batch([(TIME_MS, b"key", b"value", None)], leader_epoch=0)
    assert len(data) == 76
    assert parsed(data).crc == 2857248333
    assert data[61] >> 1 == 14
    check_crc(parsed(data))
    assert data == bytes.fromhex(
        "0000000000000000"  # base offset
        "00000040"  # length: 64 bytes follow
        "00000000"  # leader epoch
        "02"  # magic
        "aa4e264d"  # crc 2857248333
        "0000"  # attributes
        "00000000"  # last offset delta
        "00000162ffca6d5a"  # base timestamp
        "00000162ffca6d5a"  # max timestamp
        "ffffffffffffffff"  # producer id
        "ffff"  # producer epoch
        "ffffffff"  # base sequence
        "00000001"  # record count
        "1c"  # length 14
        "00"  # attributes
        "00"  # timestamp delta
        "00"  # offset delta
        "06" + b"key".hex() + "0a" + b"value".hex() + "00"  # no headers
    )


def test_a_batch_with_a_null_key_has_73_bytes() -> None:
    assert len(build_batch([(TIME_MS, None, b"value", None)])) == 73


def test_ten_records_share_one_header() -> None:
    assert len(build_batch([(TIME_MS, None, b"123456", None)] * 10)) == 191


def test_a_large_value_has_an_overhead_of_the_header_and_eleven_bytes() -> None:
    assert len(build_batch([(TIME_MS, None, b"v" * 16384, None)])) == 61 + 11 + 16384


@pytest.mark.parametrize(
    ("value", "size"),
    [
        *((value, 1) for value in (0, 1, 63, -1, -64)),
        *((value, 2) for value in (64, -65, 8191, -8192)),
        *((value, 3) for value in (8192, -8193, 1048575, -1048576)),
        *((value, 4) for value in (1048576, 134217727)),
        *((value, 5) for value in (134217728, 2**31 - 1, -(2**31))),
        *((value, 10) for value in (2**63 - 1, -(2**63))),
    ],
)
def test_varints_have_their_zigzag_size(value: int, size: int) -> None:
    writer = BytesWriter()
    write_varint(writer, value)
    assert (len(writer.getvalue()), varint_size(value)) == (size, size)


def test_a_commit_marker_has_the_documented_bytes() -> None:
    data = build_end_marker(True, TIME_MS, producer_id=7, producer_epoch=2, coordinator_epoch=5)
    batch = parsed(data)
    assert (batch.is_control, batch.is_transactional, batch.base_sequence) == (True, True, -1)
    assert (batch.producer_id, batch.producer_epoch) == (7, 2)
    assert data[61:] == bytes.fromhex("20 00 00 00 08 0000 0001 0c 0000 00000005 00")
