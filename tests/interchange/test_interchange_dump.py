"""Records of internal topics in the format of ``kafka-dump-log``, and the schemas of KRaft's records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from encoded_metadata import encode_metadata

from record_builders import build_batch
from tidemill.cli.main import command, run
from tidemill.groups.offset_records import CommittedOffset, OffsetRecord
from tidemill.interchange import decoders
from tidemill.interchange.metadata_records import (
    RECORDS,
    BeginTransactionRecord,
    PartitionChangeRecord,
    PartitionRecord,
    decode_metadata,
)
from tidemill.log_tools.java_text import java_text
from tidemill.model.errors import ProtocolError
from tidemill.records.record_reader import Record
from tidemill.transactions.transaction_log import TransactionRecord
from tidemill.transactions.transaction_metadata import TransactionMetadata, TransactionState
from tidemill.wire.schema import parse_versions

NOW = 1_700_000_000_000
LOG = "00000000000000000000.log"


def dump(*arguments: object) -> Any:
    """Runs the command; the exit code is the result's ``return_value``."""
    every = ["log", "dump", *map(str, arguments)]
    return CliRunner().invoke(command, every, prog_name="tidemill", standalone_mode=False)


def log_of(tmp_path: Path, *records: tuple[bytes | None, bytes | None]) -> Path:
    path = tmp_path / LOG
    path.write_bytes(build_batch([(NOW, key, value, None) for key, value in records], leader_epoch=0))
    return path


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("41c3a4e282acf09f8c8a", "A\u00e4\u20ac\U0001f30a"),
        ("eda080", "\ufffd"),
        ("eda0", "\ufffd"),
        ("eda041", "\ufffdA"),
        ("edbfbfbf", "\ufffd\ufffd"),
        ("ed9fbf", "\ud7ff"),
        ("ed", "\ufffd"),
        ("f0908041", "\ufffdA"),
        ("e08080", "\ufffd\ufffd\ufffd"),
        ("c080ff", "\ufffd\ufffd\ufffd"),
    ],
)
def test_bytes_that_are_no_text_are_shown_as_java_shows_them(data: str, text: str) -> None:
    assert java_text(bytes.fromhex(data)) == text


@pytest.mark.parametrize("kind", ["kraft", "zookeeper"])
def test_every_recorded_file_is_dumped_as_kafka_dumped_it(
    kind: str, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    directory = Path(__file__).parent / "recorded" / kind
    monkeypatch.chdir(directory / "data")
    suffixes = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    paths = [
        str(path)
        for path in sorted(Path().glob("*-[0-9]/*"))
        if path.suffix in suffixes and path.parent.name != "__cluster_metadata-0"
    ]
    assert run(["log", "dump", "--deep-iteration", "--print-data-log", *paths]) == 0
    assert capfdbinary.readouterr().out == (directory / "dump.txt").read_bytes()


def test_offsets_are_shown_as_kafka_shows_them(tmp_path: Path) -> None:
    kept = OffsetRecord("g", "t", 3, CommittedOffset(17, 2, "note", NOW))
    gone = OffsetRecord("g", "t", 4, None)
    later = b"\x00\x63rest"
    path = log_of(tmp_path, (kept.key_bytes(), kept.value_bytes()), (gone.key_bytes(), None), (later, b""))
    shown = dump("--offsets-decoder", "--skip-record-metadata", "--files", path)
    assert shown.return_value == 0
    key = '{"type":"1","data":{"group":"g","topic":"t","partition":%d}}'
    value = '{"version":"3","data":{"offset":17,"leaderEpoch":2,"metadata":"note","commitTimestamp":%d}}'
    assert shown.output.splitlines()[3:] == [
        f"| key: {key % 3} payload: {value % NOW}",
        f"| key: {key % 4} payload: <DELETE>",
        "| key: Unknown record type 99 at offset 2, skipping.",
    ]


def test_transactions_are_shown_as_kafka_shows_them(tmp_path: Path) -> None:
    """The bytes and the text are those of Apache Kafka 4.3.1 for a value with every field."""
    value = bytes.fromhex(
        "000100000000000000010004000000060101000000000000000700000000000000080400080000000000000002010800000000"
        "000000030202000203020005"
    )
    metadata = TransactionMetadata(
        producer_id=1,
        previous_producer_id=2,
        next_producer_id=3,
        producer_epoch=4,
        next_producer_epoch=5,
        timeout_ms=6,
        state=TransactionState.ONGOING,
        partitions=frozenset(),
        update_ms=7,
        start_ms=8,
        client_version=2,
    )
    record = TransactionRecord("load", metadata)
    assert record.value_bytes() == value
    path = log_of(tmp_path, (record.key_bytes(), value), (record.key_bytes(), None))
    key = '| key: {"type":"0","data":{"transactionalId":"load"}}'
    text = (
        '{"version":"1","data":{"producerId":1,"previousProducerId":2,"nextProducerId":3,"producerEpoch":4,'
        '"nextProducerEpoch":5,"transactionTimeoutMs":6,"transactionStatus":1,"transactionPartitions":[],'
        '"transactionLastUpdateTimestampMs":7,"transactionStartTimestampMs":8,"clientTransactionVersion":2}}'
    )
    shown = dump("--transaction-log-decoder", "--skip-record-metadata", "--files", path)
    assert shown.output.splitlines()[3:] == [f"{key} payload: {text}", f"{key} payload: <DELETE>"]


def test_every_record_of_the_metadata_is_described(tmp_path: Path) -> None:
    values = []
    for record in RECORDS.values():
        first, last = parse_versions(record.versions_)
        for version in range(first, last + 1):
            values.append(encode_metadata(record(), version))
            assert decode_metadata(values[-1]) == (record(), version)
    path = log_of(tmp_path, *((None, value) for value in values))
    shown = dump(path, "--cluster-metadata-decoder").output
    assert shown.count('payload: {"type":"') == len(values)
    assert '{"type":"NO_OP_RECORD","version":0,"data":{}}' in shown


def test_bytes_of_kafka_are_read() -> None:
    """Reads bytes that Apache Kafka 4.3.1 wrote."""
    begin = bytes.fromhex("01170001001212426f6f747374726170207265636f726473")
    assert decode_metadata(begin) == (BeginTransactionRecord(name="Bootstrap records"), 0)
    assert encode_metadata(BeginTransactionRecord(name="Bootstrap records"), 0) == begin


def test_tagged_fields_are_read_by_their_tag() -> None:
    change = PartitionChangeRecord(partition_id=1, topic_id=bytes(range(16)), isr=[1], leader=1)
    assert decode_metadata(encode_metadata(change, 2)) == (change, 2)
    partition = PartitionRecord(partition_id=1, replicas=[1, 2], isr=[2], leader=2, last_known_elr=[1])
    assert decode_metadata(encode_metadata(partition, 2)) == (partition, 2)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"", "due"),
        (b"\x00\x02\x00", "frame version 0"),
        (b"\x01\x7f\x00", "type 127"),
        (b"\x01\x02\x09", "version 9"),
        (b"\x01\x02\x00\x7f", "due|bytes"),
        (b"\x01\x14\x00\x00\x00", "follow"),
    ],
)
def test_invalid_records_are_reported(value: bytes, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        decode_metadata(value)
    assert "skipping" in str(decoders.metadata(Record(3, NOW, 0, None, value, [])))


def test_decoders_are_named_by_their_class(tmp_path: Path) -> None:
    path = log_of(tmp_path, (b"\0\0\0\x07", b"\xff" * 8), (None, None))
    shown = dump(
        path,
        "--skip-record-metadata",
        "--key-decoder-class",
        "IntegerDecoder",
        "--value-decoder-class",
        "LongDecoder",
    )
    assert shown.output.splitlines()[3:] == ["| key: 7 payload: -1", ""]
    shown = dump(path, "--value-decoder-class", "org.apache.kafka.tools.api.DefaultDecoder")
    assert "payload: ffffffffffffffff" in shown.output
    assert "an unknown Java class" in str(dump(path, "--value-decoder-class", "com.shop.Decoder").exception)
    assert "8 bytes, but a number has 4" in str(
        dump(path, "--value-decoder-class", "IntegerDecoder").exception
    )


def test_indexes_are_checked_on_request(tmp_path: Path) -> None:
    log_of(tmp_path, (b"k", b"v"))
    index = tmp_path / "00000000000000000000.index"
    index.write_bytes(b"\0\0\0\x01\0\0\0\x05")
    assert "passed sanity check" in dump(index, "--index-sanity-check").output
    verified = dump(index, "--verify-index-only")
    assert (verified.return_value, "position" in verified.stdout) == (1, False)
    assert "Mismatches in :" in verified.stderr
    index.write_bytes(b"\0\0\0\x01\0\0\0\x05\0")
    sane = dump(index, "--index-sanity-check")
    assert (sane.return_value, "is not a multiple of 8" in sane.stderr) == (1, True)
    assert "name files" in str(dump().exception)


def test_only_the_first_bytes_are_shown(tmp_path: Path) -> None:
    path = tmp_path / LOG
    path.write_bytes(
        build_batch([(NOW, b"k", b"v", None)]) + build_batch([(NOW, b"k", b"v", None)], base_offset=1)
    )
    assert dump(path, "--max-bytes", 100).output.count("baseOffset") == 1
    assert dump(path, "--max-bytes", 10).output.count("baseOffset") == 0


def test_an_invalid_file_does_not_hide_later_files(tmp_path: Path) -> None:
    path = log_of(tmp_path, (b"k", b"v"))
    batch = bytearray(path.read_bytes())
    batch[57:61] = b"\x7f\xff\xff\xff"  # the number of records
    path.write_bytes(batch)
    (tmp_path / "00000000000000000009.log").write_bytes(
        build_batch([(NOW, b"key", b"value", None)], base_offset=9, leader_epoch=0)
    )
    told = dump(tmp_path, "--payload")
    assert told.return_value == 1
    assert "key: key payload: value" in told.output
    assert f"tidemill: {path}: the batch at byte 0 is impossible" in told.output


def test_a_file_deleted_during_a_dump_is_skipped(tmp_path: Path) -> None:
    log_of(tmp_path, (b"key", b"value"))
    (tmp_path / "00000000000000000000.index").symlink_to(tmp_path / "gone")
    told = dump(tmp_path, "--payload")
    assert told.return_value == 0
    assert "key: key payload: value" in told.output
    assert f"{tmp_path}/00000000000000000000.index was deleted after its directory was listed" in told.output
