"""A cluster's metadata from data that Apache Kafka wrote: KRaft's log and snapshot, ZooKeeper's nodes."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from encoded_metadata import encode_metadata

from record_builders import build_batch
from tidemill.coordination.nodes import DeleteTopicNode, TopicNode
from tidemill.interchange import metadata_records as records
from tidemill.interchange.cluster import ClusterMetadata, PartitionEntry
from tidemill.interchange.kraft_metadata_reader import read_kraft, snapshot_offset
from tidemill.interchange.metadata_records import decode_metadata
from tidemill.interchange.zookeeper_nodes import from_nodes, read_file, to_nodes, write_file
from tidemill.log.batch_scan import BatchScan
from tidemill.log.system_files import SystemFiles
from tidemill.model.errors import ConfigError, ProtocolError, StorageError
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
from tidemill.wire.schema import Struct

RECORDED = Path(__file__).parent / "recorded"
METADATA = "__cluster_metadata-0"
FILES = SystemFiles()
LOG = "00000000000000000000.log"
NOW = 1_700_000_000_000
ID, OTHER = bytes(range(16)), bytes(range(16, 32))


def seen(kind: str) -> Any:
    return json.loads((RECORDED / kind / "seen.json").read_text())


def own_topics(metadata: ClusterMetadata) -> dict[str, dict[str, str]]:
    return {name: topic.config for name, topic in metadata.topics.items() if name[:2] != "__"}


def kraft(tmp_path: Path) -> Path:
    directory = tmp_path / METADATA
    shutil.copytree(RECORDED / "kraft" / "data" / METADATA, directory)
    return directory


def read(directory: Path) -> ClusterMetadata:
    return read_kraft(FILES, str(directory), unpacked_bytes_max=UNPACKED_BYTES_MAX)


def snapshot_of(directory: Path) -> Path:
    (found,) = directory.glob("*.checkpoint")
    return found


@pytest.mark.parametrize("kind", ["kraft", "zookeeper"])
def test_topics_ids_and_settings_are_those_of_the_clients(kind: str) -> None:
    data = RECORDED / kind / "data"
    if kind == "kraft":
        metadata = read(data / METADATA)
    else:
        metadata = from_nodes(read_file(str(RECORDED / kind / "nodes.json")), "nodes")
    assert own_topics(metadata) == seen(kind)["configs"]
    assert metadata.topics["__consumer_offsets"].config["cleanup.policy"] == "compact"
    assert metadata.broker_configs["1"] == {"message.max.bytes": "3000000"}
    assert metadata.next_producer_id == 1000
    directories = {path.name for path in data.iterdir() if path.is_dir()} - {METADATA}
    named = {f"{name}-{number}" for name, topic in metadata.topics.items() for number in topic.partitions}
    assert named == directories
    for name, topic in metadata.topics.items():
        for number, entry in topic.partitions.items():
            text = (data / f"{name}-{number}" / "partition.metadata").read_text()
            assert text.split()[-1] == encoded(topic.topic_id)
            assert entry.replicas == (1,)


def encoded(topic_id: bytes) -> str:
    from tidemill.model.ids import encode_id

    return encode_id(topic_id)


def test_the_log_alone_equals_snapshot_and_log(tmp_path: Path) -> None:
    directory = kraft(tmp_path)
    whole = read(directory)
    snapshot_of(directory).unlink()
    assert plain(read(directory)) == plain(whole)


def test_a_snapshot_whose_log_was_removed_is_refused(tmp_path: Path) -> None:
    directory = kraft(tmp_path)
    (directory / LOG).unlink()
    with pytest.raises(StorageError, match="no log") as told:
        read(directory)
    assert str(told.value).startswith(f"{snapshot_of(directory)} is the metadata as of offset 41")
    assert "(--metadata DIR)" in str(told.value)
    assert "(--without-settings)" in str(told.value)


def test_a_log_that_ends_before_the_snapshot_is_refused(tmp_path: Path) -> None:
    directory = kraft(tmp_path)
    os.truncate(directory / LOG, 300)
    with pytest.raises(StorageError, match=r"as of offset 41, and the log beside it ends at \d+: later"):
        read(directory)


def test_a_log_with_a_missing_file_is_refused(tmp_path: Path) -> None:
    directory = kraft(tmp_path)
    data = (directory / LOG).read_bytes()
    scan = BatchScan(FILES.open(str(directory / LOG), read_only=True), 0, len(data))
    before = 0
    while scan.step() and scan.base_offset < 45:
        before = scan.position
    whole = plain(read(directory))
    behind = directory / f"{scan.base_offset:020d}.log"
    behind.write_bytes(data[scan.position :])
    os.truncate(directory / LOG, scan.position)
    assert plain(read(directory)) == whole
    os.truncate(directory / LOG, before)
    with pytest.raises(StorageError, match=f"starts at offset {scan.base_offset}, the file before it ends"):
        read(directory)


def plain(metadata: ClusterMetadata) -> Any:
    topics = {
        name: (topic.topic_id, topic.config, topic.partitions) for name, topic in metadata.topics.items()
    }
    return topics, metadata.broker_configs, metadata.next_producer_id, metadata.omitted


def test_every_cut_of_the_log_is_read_to_its_last_whole_batch(tmp_path: Path) -> None:
    directory = kraft(tmp_path)
    snapshot_of(directory).unlink()
    path = directory / LOG
    data = path.read_bytes()
    counts = set()
    for size in range(0, len(data), 37):
        path.write_bytes(data[:size])
        counts.add(len(read(directory).topics))
    assert max(counts) <= 7


def test_every_flipped_byte_of_a_snapshot_is_an_error_or_changes_nothing(tmp_path: Path) -> None:
    directory = kraft(tmp_path)
    path = snapshot_of(directory)
    data = path.read_bytes()
    path.chmod(0o600)
    whole = plain(read(directory))
    refused = 0
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        try:
            assert plain(read(directory)) == whole, at
        except (StorageError, ProtocolError):
            refused += 1
    assert refused > len(data) // 7 - 40


@pytest.mark.parametrize("part", [0, 100, 500, 2000])
def test_a_snapshot_without_its_end_is_refused(tmp_path: Path, part: int) -> None:
    directory = kraft(tmp_path)
    path = snapshot_of(directory)
    data = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(data[:part])
    with pytest.raises(StorageError, match="is damaged"):
        read(directory)


def test_a_log_that_starts_after_the_snapshot_is_refused(tmp_path: Path) -> None:
    directory = kraft(tmp_path)
    (directory / LOG).rename(directory / "00000000000000000999.log")
    with pytest.raises(StorageError, match="starts at offset 999, the newest snapshot ends at"):
        read(directory)


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="neither a log nor a snapshot"):
        read(tmp_path)


def test_snapshot_names_have_their_offset() -> None:
    assert snapshot_offset("00000000000000000104-0000000001.checkpoint") == 104
    for name in (
        "bootstrap.checkpoint",
        "104-1.checkpoint",
        "00000000000000000104-0000000001.checkpoint.part",
    ):
        assert snapshot_offset(name) == -1


def replay(tmp_path: Path, *told: Struct) -> ClusterMetadata:
    entries: list[tuple[int, bytes | None, bytes | None, None]] = [
        (NOW, None, encode_metadata(record, 0), None) for record in told
    ]
    (tmp_path / LOG).write_bytes(build_batch(entries, leader_epoch=1))
    return read(tmp_path)


def topic(name: str, topic_id: bytes = ID) -> list[Struct]:
    return [
        records.TopicRecord(name=name, topic_id=topic_id),
        records.PartitionRecord(
            partition_id=0, topic_id=topic_id, replicas=[1, 2], isr=[1], leader=1, leader_epoch=4
        ),
    ]


def test_the_example_of_the_page_is_written_by_kafka() -> None:
    page = (Path(__file__).parents[2] / "docs/formats/kraft-metadata.md").read_text()
    made, placed = (
        b"".join(bytes.fromhex(re.split(r"\s{2,}", line)[0]) for line in block.strip().splitlines())
        for block in page.split("## Example")[1].split("```")[1::2]
    )
    record, version = decode_metadata(made)
    assert (record, version) == (records.TopicRecord(name="orders", topic_id=ID), 0)
    partition, _ = decode_metadata(placed)
    assert partition == records.PartitionRecord(
        partition_id=0, topic_id=ID, replicas=[1], isr=[1], leader=1, leader_epoch=0, partition_epoch=0
    )
    assert (encode_metadata(record, 0), encode_metadata(partition, 0)) == (made, placed)


def test_changes_of_partitions_are_applied(tmp_path: Path) -> None:
    change = records.PartitionChangeRecord(partition_id=0, topic_id=ID, leader=2, isr=[2], replicas=[2, 3])
    metadata = replay(tmp_path, *topic("t"), change)
    assert metadata.topics["t"].partitions == {0: PartitionEntry((2, 3), 2, 5, (2,))}


@pytest.mark.parametrize(("levels", "level"), [([], 0), ([1], 1), ([1, 2], 2), ([2, 0], 0)])
def test_the_last_level_of_the_transaction_version_is_read(
    levels: list[int], level: int, tmp_path: Path
) -> None:
    name = "transaction.version"
    told = [records.FeatureLevelRecord(name=name, feature_level=one) for one in levels]
    other = records.FeatureLevelRecord(name="group.version", feature_level=1)
    assert replay(tmp_path, *told, other).transaction_version == level


def test_a_recreated_topic_has_no_old_settings(tmp_path: Path) -> None:
    old = records.ConfigRecord(resource_type=2, resource_name="t", name="retention.ms", value="1")
    metadata = replay(tmp_path, *topic("t"), old, records.RemoveTopicRecord(topic_id=ID), *topic("t", OTHER))
    assert metadata.topics["t"].topic_id == OTHER
    assert metadata.topics["t"].config == {}


def test_only_ended_transactions_are_applied(tmp_path: Path) -> None:
    metadata = replay(
        tmp_path,
        records.BeginTransactionRecord(),
        *topic("aborted"),
        records.AbortTransactionRecord(),
        records.BeginTransactionRecord(),
        *topic("done"),
        records.EndTransactionRecord(),
        records.BeginTransactionRecord(),
        *topic("open", OTHER),
    )
    assert list(metadata.topics) == ["done"]
    assert metadata.notes == ["2 metadata records of an unfinished transaction are ignored"]


def test_contradictory_records_are_not_a_damaged_end(tmp_path: Path) -> None:
    change = records.PartitionChangeRecord(partition_id=0, topic_id=OTHER, leader=2)
    with pytest.raises(StorageError, match=f"a topic with id {OTHER.hex()}, which it never created"):
        replay(tmp_path, *topic("t"), change, *topic("u"))


def test_settings_of_groups_are_read_and_written(tmp_path: Path) -> None:
    session = {"resource_type": 32, "name": "consumer.session.timeout.ms"}
    metadata = replay(
        tmp_path,
        records.ConfigRecord(resource_name="a/b", value="50000", **session),
        records.ConfigRecord(resource_name="reset", value="50000", **session),
        records.ConfigRecord(resource_name="reset", value=None, **session),
    )
    assert metadata.group_configs == {"a/b": {"consumer.session.timeout.ms": "50000"}}
    metadata.cluster_id = "4L6g3nShT-eMCtK--X86sw"
    assert from_nodes(to_nodes(metadata), "nodes").group_configs == metadata.group_configs


def test_unsupported_items_are_counted(tmp_path: Path) -> None:
    user = records.EntityData(entity_type="user", entity_name="ann")
    metadata = replay(
        tmp_path,
        records.ClientQuotaRecord(entity=[user], key="producer_byte_rate", value=1.0),
        records.AccessControlEntryRecord(id=ID, resource_name="t", principal="User:a", host="*"),
        records.AccessControlEntryRecord(id=OTHER, resource_name="u", principal="User:a", host="*"),
        records.RemoveAccessControlEntryRecord(id=OTHER),
    )
    assert metadata.omitted == {"quotas": 1, "access rules": 1}


def test_nodes_round_trip(tmp_path: Path) -> None:
    nodes = read_file(str(RECORDED / "zookeeper" / "nodes.json"))
    metadata = from_nodes(nodes, "nodes")
    path = tmp_path / "nodes.json"
    write_file(str(path), to_nodes(metadata))
    again = from_nodes(read_file(str(path)), "nodes")
    assert plain(again) == plain(metadata)
    assert again.cluster_id == metadata.cluster_id
    for name in metadata.topics:
        assert json.loads(to_nodes(metadata)[TopicNode.path(name)]) == json.loads(nodes[TopicNode.path(name)])


def test_a_topic_in_deletion_is_omitted() -> None:
    nodes = read_file(str(RECORDED / "zookeeper" / "nodes.json"))
    nodes[DeleteTopicNode.path("codecs")] = b""
    metadata = from_nodes(nodes, "nodes")
    assert "codecs" not in metadata.topics
    assert metadata.notes == ["the topic codecs was being deleted: it is omitted"]


@pytest.mark.parametrize("text", ["", "[]", '"text"', "{", "\xff"])
def test_a_file_without_nodes_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "nodes.json"
    path.write_text(text, "latin-1")
    with pytest.raises(ConfigError, match="not a JSON object of ZooKeeper paths"):
        read_file(str(path))


def test_nodes_without_a_cluster_are_refused() -> None:
    with pytest.raises(StorageError, match="does the address need a chroot"):
        from_nodes({"/brokers/topics": b""}, "ZooKeeper")
    with pytest.raises(StorageError, match=r"nodes\.json has no node /cluster/id: it must contain all nodes"):
        from_nodes({"/brokers/topics": b""}, "nodes.json", is_file=True)
