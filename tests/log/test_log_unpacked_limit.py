"""One limit on the decompressed size of a batch: all readers accept batches that the broker stores."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from compaction_stage import clean, opened, rows

from default_limits import Check, CompletedFetch, decode_columns
from record_builders import build_batch, build_message_set
from tidemill.broker.conversion_jobs import DownConversionJob
from tidemill.broker.log_configs import log_config
from tidemill.cli.main import command
from tidemill.client.config import config_of
from tidemill.client.config_keys import CONSUMER
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.system_files import SystemFiles
from tidemill.log_tools.verify import check_partition
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import KafkaError, UnpackedTooLarge
from tidemill.model.types import TopicPartition
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX, UNPACKED_KEY
from tidemill.records.batch import GZIP, LZ4, parse_batch
from tidemill.records.batch_validation import validate
from tidemill.records.builder import BatchBuilder
from tidemill.records.columns import OFFSET_MAX
from tidemill.records.end_transaction_marker import ABORT, MARKER_BATCH_BYTES_MAX, EndTransactionMarker
from tidemill.records.format_conversion import KEEP_CODEC, for_storage
from tidemill.records.record_reader import iter_records
from tidemill.replication.message_format import validation_limits_of
from tidemill.wire.fetch_layout import FetchedPartition

SOURCES = Path(__file__).parents[2] / "src/tidemill"
NOW = 1_700_000_000_000
LIMIT = 400_000
EVERYTHING = 1 << 30


def produced(magic: int, codec: int, unpacked_bytes: int) -> bytes:
    """A batch or wrapper with records of this decompressed size; the second record is the later one."""
    if magic == 2:
        overhead = len(build_batch([(NOW, b"a", bytes(300_000), None), (NOW + 5, b"b", b"", None)])) - 61
        value = bytes(300_000 + unpacked_bytes - overhead)
        return build_batch([(NOW, b"a", value, None), (NOW + 5, b"b", b"", None)], codec)
    overhead = len(build_message_set(magic, [(NOW, b"a", b""), (NOW + 5, b"b", b"")]))
    value = bytes(unpacked_bytes - overhead)
    return build_message_set(magic, [(NOW, b"a", value), (NOW + 5, b"b", b"")], codec)


def stored_in(directory: Path, data: bytes, limit: int) -> Log:
    """A log with ``data``, and a batch after it."""
    settings = {"unpacked_bytes_max": limit, "max_message_bytes": EVERYTHING, "segment_bytes": 1 << 20}
    log = opened(SystemFiles(), str(directory), settings=settings)
    log.append_copied(data, NOW)
    log.roll(NOW)
    log.append_copied(build_batch([(NOW + 9, b"c", b"", None)], base_offset=log.end_offset), NOW)
    return log


def reads(directory: Path, data: bytes, magic: int, limit: int) -> dict[str, Callable[[], Any]]:
    """Returns by name every function that decompresses a stored batch, with the limit ``limit``."""
    config = LogConfig(unpacked_bytes_max=limit, max_message_bytes=EVERYTHING)
    log = stored_in(directory, data, limit)
    found: dict[str, Callable[[], Any]] = {
        "lookup": lambda: log.offset_for_timestamp(NOW + 1) if magic else (NOW + 5, 1),
        "old consumer": lambda: DownConversionJob(data, 0, 0, EVERYTHING, limit).run(),
        "client's records": lambda: list(iter_records(data, limit)),
        "client's columns": lambda: decode_columns(data, 0, OFFSET_MAX, unpacked_bytes_max=limit).count,
        "compaction": lambda: clean(log),
        "another codec": lambda: for_storage(
            data, 0, len(data), 2, GZIP, validation_limits_of(config), NOW, False
        ),
    }
    if magic == 2:
        found["produce"] = lambda: validate(
            parse_batch(data, 0, len(data)), validation_limits_of(config), NOW
        )
    else:
        found["produce"] = lambda: for_storage(
            data, 0, len(data), magic, KEEP_CODEC, validation_limits_of(config), NOW, False
        )
        del found["old consumer"]  # Old formats are sent as they are stored.
    return found


@pytest.mark.parametrize("codec", [GZIP, LZ4])
@pytest.mark.parametrize("magic", [1, 2])
def test_every_reader_accepts_batches_that_the_broker_accepts(tmp_path: Path, magic: int, codec: int) -> None:
    data = produced(magic, codec, LIMIT)
    (tmp_path / "t-0").mkdir()
    check = Check(SystemFiles(), str(tmp_path / "t-0"), unpacked_bytes_max=LIMIT)
    work = reads(tmp_path / "t-0", data, magic, LIMIT)
    check_partition(check)
    assert (check.findings, check.damages, check.records) == ([], 0, 3)
    for name, read in work.items():
        assert read() is not None, name
    if magic:
        assert work["lookup"]() == (NOW + 5, 1)


@pytest.mark.parametrize("codec", [GZIP, LZ4])
@pytest.mark.parametrize("magic", [1, 2])
def test_a_batch_one_byte_too_large_is_rejected_and_not_reported_as_damaged(
    tmp_path: Path, magic: int, codec: int
) -> None:
    data = produced(magic, codec, LIMIT + 1)
    (tmp_path / "t-0").mkdir()
    for name, read in reads(tmp_path / "t-0", data, magic, LIMIT).items():
        with pytest.raises(
            KafkaError, match=f"unpack to more than {LIMIT} bytes.*{UNPACKED_KEY}"
        ) as reported:
            read()
        # Another process reported the first; the cleaner reports its position for the second.
        assert isinstance(reported.value, UnpackedTooLarge) or name in ("old consumer", "compaction")
    check = Check(SystemFiles(), str(tmp_path / "t-0"), unpacked_bytes_max=LIMIT)
    check_partition(check)
    assert (check.damages, check.notes) == (0, 1)
    assert "is not checked" in check.findings[0].text


def test_recovery_keeps_a_batch_that_is_too_large_to_decompress(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    log = stored_in(tmp_path / "t-0", produced(2, LZ4, LIMIT + 1), LIMIT)
    end = int(log.end_offset)
    settings = {"unpacked_bytes_max": LIMIT, "max_message_bytes": EVERYTHING}
    again = opened(SystemFiles(), str(tmp_path / "t-0"), settings=settings, recovery_point=0)
    assert int(again.end_offset) == end
    again.config = LogConfig(unpacked_bytes_max=LIMIT + 1)
    assert [offset for offset, *_ in rows(again)] == [0, 1, 2]


def run(*arguments: object) -> dict[str, Any]:
    outcome = CliRunner().invoke(command, ["log", *map(str, arguments), "--json"], standalone_mode=False)
    assert outcome.exception is None, outcome.exception
    document: dict[str, Any] = json.loads(outcome.output)
    return document


def test_log_verify_uses_the_limit_of_the_broker_configuration(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    stored_in(directory, produced(2, LZ4, 3_000_000), 3_000_000)
    notes = [one["text"] for part in run("verify", directory)["partitions"] for one in part["findings"]]
    assert notes == []
    properties = tmp_path / "server.properties"
    properties.write_text(f"{UNPACKED_KEY}=2999999\n")
    for source in (["--set", f"{UNPACKED_KEY}=2999999"], ["--config", properties]):
        document = run("verify", directory, *source)
        (note,) = [one["text"] for part in document["partitions"] for one in part["findings"]]
        assert document["sound"]
        assert re.search(f"unpack to more than 2999999 bytes.*{UNPACKED_KEY}", note)
    dumped = CliRunner().invoke(
        command,
        [
            "log",
            "dump",
            str(directory / "00000000000000000000.log"),
            "-r",
            "--set",
            f"{UNPACKED_KEY}=2999999",
        ],
    )
    assert (dumped.exit_code, UNPACKED_KEY in dumped.output) == (0, True)


def test_brokers_and_clients_have_one_limit_under_one_key() -> None:
    config = BrokerConfig.of({UNPACKED_KEY: "2097152"})
    for overrides in ({}, {"max.message.bytes": "100000000"}):
        assert validation_limits_of(log_config(config, "t", overrides)).unpacked_bytes_max == 2_097_152
    assert BrokerConfig.of({}).int(UNPACKED_KEY) == UNPACKED_BYTES_MAX == LogConfig().unpacked_bytes_max
    assert config_of(CONSUMER, "h:1", {}, {}).int(UNPACKED_KEY) == UNPACKED_BYTES_MAX
    assert config_of(CONSUMER, "h:1", {UNPACKED_KEY: 5}, {}).int(UNPACKED_KEY) == 5


@pytest.mark.parametrize("value_bytes", [6, MARKER_BATCH_BYTES_MAX])
def test_a_client_does_not_unpack_a_marker_of_a_transaction_that_is_too_large(value_bytes: int) -> None:
    builder = BatchBuilder(GZIP)
    builder.append(NOW, EndTransactionMarker(ABORT, 0).key(), bytes(value_bytes), None)
    data = builder.build(7, 0, -1, True, -1, 0, True)
    response = FetchedPartition(b"t", 0, data)
    response.end, response.aborted = len(data), [(7, 0)]
    fetched = CompletedFetch(
        TopicPartition("t", 0), response, 0, committed_only=True, check_crcs=True, unpacked_bytes_max=LIMIT
    )
    reads = (
        lambda: fetched.fetch_records(9),
        lambda: decode_columns(data, aborted=[(7, 0)], unpacked_bytes_max=LIMIT).count,
    )
    for read in reads:
        if value_bytes < MARKER_BATCH_BYTES_MAX:
            assert not read()
        else:
            with pytest.raises(UnpackedTooLarge, match=f"unpack to more than {MARKER_BATCH_BYTES_MAX} bytes"):
                read()


def test_the_default_is_in_the_tables_of_keys_and_in_tools_without_a_configuration() -> None:
    found = {
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        if "UNPACKED_BYTES_MAX" in path.read_text()
    }
    assert found == {
        "client/config_keys.py",
        "log/log_config.py",
        "model/configs/cluster_keys.py",
        "model/unpacked_limit.py",
        "pipeline/mirror/range_copy.py",
    }


def test_no_other_module_defines_its_own_limit() -> None:
    found = [
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        if re.search(r"^\w*UNPACKED_BYTES_MAX\w*(: \w+)? =|UNPACKED_FACTOR", path.read_text(), re.MULTILINE)
    ]
    assert found == ["model/unpacked_limit.py"]
