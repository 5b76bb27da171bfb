"""Checkpoints, meta.properties, partition.metadata, leader epochs: Kafka's texts, byte for byte."""

from __future__ import annotations

import pytest
from faulty_files import FaultyFiles

from tidemill.log.checkpoint_files import (
    CheckpointDamaged,
    parse_checkpoint,
    read_offsets,
    read_partition_metadata,
    render_checkpoint,
    write_offsets,
    write_partition_metadata,
)
from tidemill.log.file_names import (
    directory_to_delete,
    is_delete_directory,
    offset_name,
    offset_of,
    parse_partition_directory,
)
from tidemill.log.leader_epoch_file_cache import LeaderEpochFileCache
from tidemill.log.meta_properties import (
    VERSION_ON_ZOOKEEPER,
    MetaProperties,
    parse_properties,
    read_meta,
    write_meta,
)
from tidemill.model.errors import ConfigError
from tidemill.model.ids import encode_id, new_id
from tidemill.model.types import TopicPartition


def test_a_checkpoint_has_a_version_a_count_and_entries(files: FaultyFiles) -> None:
    offsets = {TopicPartition("b", 0): 5, TopicPartition("a-b", 11): 0}
    write_offsets(files, "/d/c", offsets)
    assert files.read("/d/c") == b"0\n2\na-b 11 0\nb 0 5\n"
    assert read_offsets(files, "/d/c") == offsets
    assert read_offsets(files, "/d/missing") == {}
    assert render_checkpoint([]) == b"0\n0\n"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0",
        b"1\n0\n",
        b"0\nx\n",
        b"0\n1\n",
        b"0\n1\nt 0\n",
        b"0\n1\nt x 5\n",
        b"0\n1\nt 0 5\nt 1 6\n",
    ],
)
def test_a_damaged_checkpoint_is_rejected(data: bytes) -> None:
    with pytest.raises(CheckpointDamaged):
        parse_checkpoint(data, 3, "c")


def test_a_topic_id_is_written_in_kafkas_format(files: FaultyFiles) -> None:
    identifier = bytes.fromhex("fbff000102030405060708090a0b0c0d")
    write_partition_metadata(files, "/d/p", identifier)
    assert files.read("/d/p") == b"version: 0\ntopic_id: -_8AAQIDBAUGBwgJCgsMDQ"
    assert read_partition_metadata(files, "/d/p") == identifier


def test_an_empty_or_missing_topic_id_file_has_no_topic_id(files: FaultyFiles) -> None:
    assert read_partition_metadata(files, "/d/p") == bytes(16)
    files.replace("/d/p", b"\0" * 40)
    assert read_partition_metadata(files, "/d/p") == bytes(16)
    files.replace("/d/p", b"version: 0\ntopic_id: short")
    with pytest.raises(CheckpointDamaged, match="is not a partition"):
        read_partition_metadata(files, "/d/p")


def test_meta_properties_of_both_versions_are_read(files: FaultyFiles) -> None:
    text = b"#\n#Fri Nov 20 23:48:05 UTC 2026\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\nversion=0\nbroker.id=3\n"
    files.replace("/d/meta.properties", text)
    meta = read_meta(files, "/d/meta.properties")
    assert meta is not None
    assert (meta.cluster_id, meta.node_id, meta.directory_id) == ("AAAAAAAAAAAAAAAAAAAAAA", 3, "")
    write_meta(files, "/d/meta.properties", MetaProperties("x=y", 4, encode_id(new_id()), {"extra": "1"}))
    again = read_meta(files, "/d/meta.properties")
    assert again is not None
    assert (again.cluster_id, again.node_id, len(again.directory_id), again.rest) == (
        "x=y",
        4,
        22,
        {"extra": "1"},
    )
    assert b"version=1\n" in files.read("/d/meta.properties")
    write_meta(files, "/d/m", MetaProperties("x", 4, encode_id(new_id()), version=VERSION_ON_ZOOKEEPER))
    assert b"broker.id=4\n" in files.read("/d/m")
    assert b"version=0\n" in files.read("/d/m")
    found = read_meta(files, "/d/m")
    assert found is not None
    assert (found.node_id, found.version) == (4, VERSION_ON_ZOOKEEPER)


@pytest.mark.parametrize("text", [b"", b"version=7\n", b"version=1\nnode.id=x\n", b"\xff\xfe"])
def test_invalid_meta_properties_fail_startup(files: FaultyFiles, text: bytes) -> None:
    files.replace("/d/m", text)
    with pytest.raises(ConfigError, match="/d/m"):
        read_meta(files, "/d/m")


def test_properties_are_unescaped_by_javas_rules() -> None:
    assert parse_properties("a\\:b = c\\=\\u0041\\t\n! comment\n\n") == {"a:b": "c=A\t"}


def epochs(files: FaultyFiles, *entries: tuple[int, int]) -> LeaderEpochFileCache:
    made = LeaderEpochFileCache(files, "/d/leader-epoch-checkpoint")
    for epoch, start in entries:
        made.assign(epoch, start)
    made.save_changed()
    return made


def test_leader_epochs_are_written_in_kafkas_format(files: FaultyFiles) -> None:
    epochs(files, (0, 0), (3, 100), (3, 150), (5, 200))
    assert files.read("/d/leader-epoch-checkpoint") == b"0\n3\n0 0\n3 100\n5 200\n"
    again = LeaderEpochFileCache(files, "/d/leader-epoch-checkpoint")
    again.load()
    assert (again.epochs, again.starts, again.latest) == ([0, 3, 5], [0, 100, 200], 5)


@pytest.mark.parametrize(
    ("requested", "answer"),
    [
        (-1, (-1, -1)),
        (0, (0, 10)),
        (1, (1, 100)),
        (2, (1, 100)),
        (3, (3, 200)),
        (4, (3, 200)),
        (5, (5, 999)),
        (6, (-1, -1)),
    ],
)
def test_the_end_of_an_epoch_is_the_start_of_the_next(
    files: FaultyFiles, requested: int, answer: tuple[int, int]
) -> None:
    assert epochs(files, (1, 10), (3, 100), (5, 200)).end_offset(requested, 999) == answer


def test_leader_epochs_are_truncated_at_both_ends(files: FaultyFiles) -> None:
    cache = epochs(files, (1, 10), (3, 100), (5, 200))
    cache.truncate_from_end(200)
    assert cache.starts == [10, 100]
    cache.truncate_from_start(50)
    assert (cache.epochs, cache.starts) == ([1, 3], [49, 100])
    cache.truncate_from_start(100)
    assert (cache.epochs, cache.starts) == ([1, 3], [99, 100])
    assert [cache.epoch_of(offset) for offset in (98, 99, 100, 500)] == [-1, 1, 3, 3]
    cache.truncate_from_start(101)
    assert (cache.epochs, cache.starts) == ([3], [100])


def test_an_earlier_epoch_start_replaces_truncated_entries(files: FaultyFiles) -> None:
    cache = epochs(files, (1, 10), (3, 100), (5, 200))
    cache.assign(6, 100)
    assert (cache.epochs, cache.starts) == ([1, 6], [10, 100])


def test_file_and_directory_names_have_kafkas_format() -> None:
    assert offset_name(368769, ".log") == "00000000000000368769.log"
    assert offset_of("00000000000000368769.log", ".log") == 368769
    assert [
        offset_of(name, ".log") for name in ("368769.log", "0000000000000036876x.log", "x", "a" * 20 + ".log")
    ] == [-1] * 4
    assert parse_partition_directory("report_push-0") == TopicPartition("report_push", 0)
    assert parse_partition_directory("a-b-12") == TopicPartition("a-b", 12)
    assert [parse_partition_directory(name) for name in ("t", "-1", "t-", "t-x", "t-0.deleted")] == [None] * 5
    name = directory_to_delete(TopicPartition("x" * 249, 7))
    assert (len(name) <= 255, is_delete_directory(name), parse_partition_directory(name)) == (
        True,
        True,
        None,
    )
    assert not is_delete_directory("topic-delete")
