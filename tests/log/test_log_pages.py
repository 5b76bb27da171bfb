"""The documentation pages of the log's formats: their examples are read and written by the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from faulty_files import FaultyFiles

from record_builders import build_batch
from tidemill.log.checkpoint_files import (
    read_offsets,
    read_partition_metadata,
    write_offsets,
    write_partition_metadata,
)
from tidemill.log.leader_epoch_file_cache import LeaderEpochFileCache
from tidemill.log.meta_properties import read_meta, write_meta
from tidemill.log.offset_index import OffsetIndex
from tidemill.log.producer_state_manager import ProducerStateManager
from tidemill.log.time_index import TimeIndex
from tidemill.log.transaction_index import Aborted, decode_aborted
from tidemill.model.ids import decode_id
from tidemill.model.types import TopicPartition
from tidemill.records.batch import parse_batch
from tidemill.records.mirrored_batch import as_mirrored

PAGES = Path(__file__).parents[2] / "docs/formats"


def example(page: str) -> str:
    return (PAGES / page).read_text().split("## Example")[1].split("```")[1].lstrip("\n")


def example_bytes(page: str) -> bytes:
    return b"".join(bytes.fromhex(re.split(r"\s{2,}", line)[0]) for line in example(page).splitlines())


def test_the_mirrored_batch_example_is_correct() -> None:
    data = build_batch([(1524709879130, b"key", b"value", None)], base_offset=47)
    assert example_bytes("mirrored-batch.md") == as_mirrored(data, 40)


def test_the_segment_example_is_correct() -> None:
    record = [(1524709879130, b"key", b"value", None)]
    first = build_batch(record, leader_epoch=0, base_offset=0)
    assert example_bytes("segment.md") == first + build_batch(record, leader_epoch=1, base_offset=1)


@pytest.mark.parametrize(
    ("page", "kind", "bytes_max", "entries"),
    [
        ("offset-index.md", OffsetIndex, 24, [(1003, 497), (1259, 66000)]),
        ("time-index.md", TimeIndex, 36, [(1524709879130, 1005), (1524709879131, 1009)]),
    ],
)
def test_the_index_examples_are_correct(
    files: FaultyFiles,
    page: str,
    kind: type[OffsetIndex | TimeIndex],
    bytes_max: int,
    entries: list[tuple[int, int]],
) -> None:
    index = kind(files, "/d/i", 1000, bytes_max)
    index.create()
    for entry in entries:
        index.append(*entry)
    assert files.read("/d/i") == example_bytes(page)


def test_the_transaction_index_example_is_correct() -> None:
    assert decode_aborted(example_bytes("transaction-index.md")) == Aborted(0, 7, 3, 9, 10)


def test_the_producer_snapshot_example_is_correct() -> None:
    state = ProducerStateManager("t-0")
    time_ms = 1_700_000_000_000
    data = build_batch([(time_ms, None, b"v", None)] * 3, producer_id=42, producer_epoch=2, base_sequence=5)
    state.apply(parse_batch(data, 0, len(data)), None, 0, time_ms, 0)
    assert state.encode() == example_bytes("producer-snapshot.md")


def test_the_leader_epoch_checkpoint_example_is_correct(files: FaultyFiles) -> None:
    epochs = LeaderEpochFileCache(files, "/d/e")
    for epoch, start in ((0, 0), (3, 100), (5, 200)):
        epochs.assign(epoch, start)
    epochs.save_changed()
    assert files.read("/d/e").decode() == example("leader-epoch-checkpoint.md")


def test_the_checkpoints_example_is_correct(files: FaultyFiles) -> None:
    offsets = {TopicPartition("report_push", 0): 368776, TopicPartition("report_push", 1): 0}
    write_offsets(files, "/d/c", offsets)
    assert files.read("/d/c").decode() == example("checkpoints.md")
    assert read_offsets(files, "/d/c") == offsets


def test_the_partition_metadata_example_is_correct(files: FaultyFiles) -> None:
    text = example("partition-metadata.md").rstrip("\n")
    write_partition_metadata(files, "/d/p", decode_id(text[-22:]))
    assert files.read("/d/p").decode() == text
    assert read_partition_metadata(files, "/d/p").hex() == "fbff000102030405060708090a0b0c0d"


def test_the_meta_properties_example_is_correct(files: FaultyFiles) -> None:
    files.replace("/d/m", example("meta-properties.md").encode())
    meta = read_meta(files, "/d/m")
    assert meta is not None
    write_meta(files, "/d/m", meta)
    assert files.read("/d/m").decode() == example("meta-properties.md")
