"""The pages of the log's formats tell what the code does: their examples are read and written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidemill.log.checkpoints import (
    decode_id,
    read_offsets,
    read_partition_metadata,
    write_offsets,
    write_partition_metadata,
)
from tidemill.log.leader_epochs import LeaderEpochs
from tidemill.log.meta import read_meta, write_meta
from tidemill.log.offset_index import OffsetIndex
from tidemill.log.producer_state import ProducerState
from tidemill.log.time_index import TimeIndex
from tidemill.log.transaction_index import Aborted, decode_aborted
from tidemill.model.types import TopicPartition
from tidemill.records.builder import build_batch
from tidemill.testing.files import FaultyFiles

PAGES = Path(__file__).parents[2] / "docs/formats"


def example(page: str) -> str:
    return (PAGES / page).read_text().split("## Example")[1].split("```")[1].lstrip("\n")


def example_bytes(page: str) -> bytes:
    return b"".join(bytes.fromhex(re.split(r"\s{2,}", line)[0]) for line in example(page).splitlines())


@pytest.fixture
def files() -> FaultyFiles:
    made = FaultyFiles()
    made.make_directory("/d")
    return made


def test_segment() -> None:
    record = [(1524709879130, b"key", b"value", None)]
    first = build_batch(record, leader_epoch=0, base_offset=0)
    assert example_bytes("segment.md") == first + build_batch(record, leader_epoch=1, base_offset=1)


def test_offset_index(files: FaultyFiles) -> None:
    index = OffsetIndex(files, "/d/i", 1000, 24)
    index.create()
    index.append(1003, 497)
    index.append(1259, 66000)
    assert files.read("/d/i") == example_bytes("offset-index.md")


def test_transaction_index() -> None:
    assert decode_aborted(example_bytes("transaction-index.md")) == Aborted(0, 7, 3, 9, 10)


def test_time_index(files: FaultyFiles) -> None:
    index = TimeIndex(files, "/d/i", 1000, 36)
    index.create()
    index.append(1524709879130, 1005)
    index.append(1524709879131, 1009)
    assert files.read("/d/i") == example_bytes("time-index.md")


def test_producer_snapshot() -> None:
    state = ProducerState("t-0")
    state.note(42, 2, 7, 2, 2, 1_700_000_000_000, 0)
    assert state.encode() == example_bytes("producer-snapshot.md")


def test_leader_epoch_checkpoint(files: FaultyFiles) -> None:
    epochs = LeaderEpochs(files, "/d/e")
    for epoch, start in ((0, 0), (3, 100), (5, 200)):
        epochs.assign(epoch, start)
    assert files.read("/d/e").decode() == example("leader-epoch-checkpoint.md")


def test_checkpoints(files: FaultyFiles) -> None:
    offsets = {TopicPartition("report_push", 0): 368776, TopicPartition("report_push", 1): 0}
    write_offsets(files, "/d/c", offsets)
    assert files.read("/d/c").decode() == example("checkpoints.md")
    assert read_offsets(files, "/d/c") == offsets


def test_partition_metadata(files: FaultyFiles) -> None:
    text = example("partition-metadata.md").rstrip("\n")
    write_partition_metadata(files, "/d/p", decode_id(text[-22:]))
    assert files.read("/d/p").decode() == text
    assert read_partition_metadata(files, "/d/p").hex() == "fbff000102030405060708090a0b0c0d"


def test_meta_properties(files: FaultyFiles) -> None:
    files.replace("/d/m", example("meta-properties.md").encode())
    meta = read_meta(files, "/d/m")
    assert meta is not None
    write_meta(files, "/d/m", meta)
    assert files.read("/d/m").decode() == example("meta-properties.md")
