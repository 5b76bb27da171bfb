"""``tidemill log export`` without Kafka: the exported data, and the errors."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_peer import see
from kafka_record import as_json
from test_interchange_import import CONFIG, STORE, called, contents, copied, served, source

from tidemill.cli.main import command, run
from tidemill.coordination.coordination_store import Create, SetData
from tidemill.coordination.embedded_store import EmbeddedStore
from tidemill.coordination.nodes import (
    FEATURE,
    ConfigNode,
    FeatureNode,
    PartitionStateNode,
    TopicNode,
)
from tidemill.interchange.kafka_export import shell_script
from tidemill.testing import Broker


def export(*arguments: object) -> Any:
    every = ["log", "export", *map(str, arguments), "--json"]
    result = CliRunner().invoke(command, every, prog_name="tidemill", standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return json.loads(result.stdout) | {"exit": result.return_value or 0}


def failed(capsys: pytest.CaptureFixture[str], code: int, *arguments: object) -> str:
    assert run(["log", "export", *map(str, arguments)]) == code
    return capsys.readouterr().err


def imported(tmp_path: Path, kind: str = "zookeeper") -> Path:
    data = copied(kind, tmp_path)
    assert called(data, *source(kind))["exit"] == 0
    return data


@pytest.mark.parametrize("how", ["--in-place", "--to"])
def test_an_export_can_be_imported(how: str, tmp_path: Path) -> None:
    data, nodes = imported(tmp_path), tmp_path / "exported.json"
    with Broker(CONFIG, data_dir=data) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("made", 2)])["made"].result(30)
        before = see(broker.bootstrap)
    to = data if how == "--in-place" else tmp_path / "new"
    target = [how] if how == "--in-place" else [how, to]
    told = export(data, *target, "--nodes", nodes)
    assert (told["exit"], told["exported"], told["directories"]) == (0, True, [str(to)])
    assert "made" in told["topics"]
    assert (data / STORE).exists() == (how == "--to")
    assert called(to, "--nodes", nodes)["exit"] == 0
    with Broker(CONFIG, data_dir=to) as broker:
        assert as_json(see(broker.bootstrap)) == as_json(before)


def test_a_copy_is_complete_and_the_source_is_unchanged(tmp_path: Path) -> None:
    data, new = imported(tmp_path), tmp_path / "deep" / "new"
    before = contents(data)
    assert export(data, "--to", new, "--nodes", tmp_path / "nodes.json")["exit"] == 0
    assert contents(data) == before
    after = contents(new)
    meta = "meta.properties"
    assert (new / meta).read_text() == "#\nbroker.id=1\ncluster.id=fQpr0RF6T5iTqPfvLWFMDA\nversion=0\n"
    partitions = {name: digest for name, digest in before.items() if "/" in name}
    assert {name: digest for name, digest in after.items() if "/" in name} == partitions
    assert (new / ".kafka_cleanshutdown").exists()
    assert (new / "recovery-point-offset-checkpoint").read_text().startswith("0\n10\n")


def test_stale_checkpoint_entries_of_moved_partitions_are_ignored(tmp_path: Path) -> None:
    data, second, new = imported(tmp_path), tmp_path / "second", tmp_path / "new"
    second.mkdir()
    shutil.copy(data / "meta.properties", second)
    (data / "kept-0").rename(second / "kept-0")
    name = "recovery-point-offset-checkpoint"
    (second / name).write_text("0\n2\ncodecs 0 999\nkept 0 8\n")
    before = [line for line in (data / name).read_text().split("\n") if line.startswith("codecs 0 ")]
    assert export(data, second, "--to", new, "--nodes", tmp_path / "nodes.json")["exit"] == 0
    after = (new / name).read_text().split("\n")
    assert [line for line in after if line.startswith("codecs 0 ")] == before
    assert "kept 0 8" in after


def test_an_exported_directory_is_not_served(tmp_path: Path) -> None:
    data = imported(tmp_path)
    assert export(data, "--in-place", "--nodes", tmp_path / "nodes.json")["exit"] == 0
    assert f"'tidemill log import {data}'" in served(data)


def test_leader_epochs_grow(tmp_path: Path) -> None:
    data, nodes = imported(tmp_path), tmp_path / "nodes.json"
    before = asyncio.run(node_of(data, PartitionStateNode.path("codecs", 0)))
    assert export(data, "--in-place", "--nodes", nodes)["exit"] == 0
    state = PartitionStateNode.path("codecs", 0)
    after = json.loads(json.loads(nodes.read_text())[state])
    assert after["leader_epoch"] == json.loads(before)["leader_epoch"] + 1
    assert (after["leader"], after["isr"]) == (1, [1])


async def node_of(data: Path, path: str) -> bytes:
    store = EmbeddedStore.open(str(data / STORE))
    node = await store.get(path)
    await store.close()
    assert node is not None
    return node.data


def test_the_export_prints_the_lines_of_server_properties(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, script = imported(tmp_path), tmp_path / "nodes.txt"
    assert run(["log", "export", str(data), "--in-place", "--script", str(script)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "broker 1 of cluster fQpr0RF6T5iTqPfvLWFMDA: 8 topics, 10 partitions, 7.6 kB",
        f"exported: {data}",
        f"the metadata of Tidemill is kept in {data}/coordination.db.exported; to go back before Kafka "
        "was started, rename it to coordination.db",
        f"first create the nodes: zookeeper-shell.sh HOST:PORT < {script}",
        "then start Apache Kafka 3.9 with these lines in its server.properties:",
        "  broker.id=1",
        f"  log.dirs={data}",
        "  zookeeper.connect=HOST:PORT",
        "  offsets.topic.replication.factor=1",
        "  transaction.state.log.replication.factor=1",
        "  transaction.state.log.min.isr=1",
        "  inter.broker.protocol.version=2.8",
    ]
    lines = script.read_text().splitlines()
    assert f'create {TopicNode.path("codecs")} \'{{"removing_replicas"' in "\n".join(lines)
    assert lines[0] == "create /cluster"


def test_quotes_in_settings_do_not_end_the_shells() -> None:
    path = ConfigNode.path("topics", "t")
    line = shell_script({path: ConfigNode.encode({"key": "it's"})})
    assert line == f'create {path} \'{{"version":1,"config":{{"key":"it\\u0027s"}}}}\'\n'


def test_settings_of_tidemill_are_omitted(tmp_path: Path) -> None:
    data = imported(tmp_path)
    path = ConfigNode.path("topics", "codecs")
    config = {"retention.ms": "-1", "tidemill.something": "1"}
    asyncio.run(set_node(data, path, ConfigNode.encode(config)))
    told = export(data, "--in-place", "--dry-run", "--nodes", tmp_path / "nodes.json")
    assert told["topics"]["codecs"]["config"] == {"retention.ms": "-1"}
    assert told["notes"] == ["tidemill.something of topic codecs is omitted: Kafka has no such setting"]


def test_unreadable_settings_are_named_and_omitted(tmp_path: Path) -> None:
    data = imported(tmp_path)
    nodes = tmp_path / "nodes.json"
    config = {"retention.ms": "a week", "retention.minutes": "9", "segment.bytes": "1048576"}
    brokers = {"log.retention.bytes": "much", "message.max.bytes": "2000000"}
    for path, settings in (
        (ConfigNode.path("topics", "codecs"), config),
        (ConfigNode.path("brokers", "1"), brokers),
    ):
        asyncio.run(set_node(data, path, ConfigNode.encode(settings)))
    told = export(data, "--in-place", "--nodes", nodes)
    written = {path: json.loads(text) for path, text in json.loads(nodes.read_text()).items() if text}
    # No record is deleted by a default that may be shorter than the requested value.
    kept = {"segment.bytes": "1048576", "retention.ms": "-1"}
    assert told["topics"]["codecs"]["config"] == kept
    assert written["/config/topics/codecs"]["config"] == kept
    assert written["/config/brokers/1"]["config"] == {
        "message.max.bytes": "2000000",
        "log.retention.bytes": "-1",
    }
    for begin, end in (
        ("retention.ms=a week of topic codecs is omitted (", "; retention.ms=-1 instead"),
        ("retention.minutes=9 of topic codecs is omitted (Unknown topic config name", ")"),
        ("log.retention.bytes=much of broker 1 is omitted (", "; log.retention.bytes=-1 instead"),
    ):
        assert [one for one in told["notes"] if one.startswith(begin) and one.endswith(end)], told["notes"]


async def set_node(data: Path, path: str, value: bytes) -> None:
    store = EmbeddedStore.open(str(data / STORE))
    await store.transact([SetData(path, value)])
    await store.close()


@pytest.mark.parametrize("level", [None, 0, 2])
def test_the_transaction_version_is_not_exported(level: int | None, tmp_path: Path) -> None:
    """Kafka 3.9 does not start with a level that it does not have, and creates the node itself."""
    data, nodes = imported(tmp_path), tmp_path / "nodes.json"
    if level is not None:
        asyncio.run(create_node(data, FEATURE, FeatureNode.encode({"transaction.version": level})))
    told = export(data, "--in-place", "--nodes", nodes)
    assert told["exit"] == 0
    assert FEATURE not in json.loads(nodes.read_text())
    note = "transaction.version 2 is omitted: Kafka 3.9 on ZooKeeper has level 0"
    assert told["notes"] == ([note] if level else [])


async def create_node(data: Path, path: str, value: bytes) -> None:
    store = EmbeddedStore.open(str(data / STORE))
    await store.transact([Create(path, value)])
    await store.close()


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    data, nodes = imported(tmp_path), tmp_path / "nodes.json"
    before = contents(data)
    told = export(data, "--in-place", "--nodes", nodes, "--dry-run")
    assert (told["exit"], told["exported"]) == (0, False)
    assert contents(data) == before
    assert not nodes.exists()


def test_directories_that_miss_a_partition_are_refused(tmp_path: Path) -> None:
    data, nodes = imported(tmp_path), tmp_path / "nodes.json"
    shutil.rmtree(data / "stamped-1")
    told = export(data, "--in-place", "--nodes", nodes)
    assert (told["exit"], told["exported"]) == (1, False)
    assert told["problems"] == [
        "partition stamped-1 is in none of the directories: name every directory of log.dirs"
    ]
    assert not nodes.exists()


def test_broken_links_are_named(tmp_path: Path) -> None:
    data, nodes = imported(tmp_path), tmp_path / "nodes.json"
    (data / "backup-1").symlink_to("/gone/backup")
    told = export(data, "--in-place", "--nodes", nodes, "--dry-run")
    assert told["exit"] == 0
    assert f"{data}/backup-1 is a link to a missing file: it is ignored" in told["notes"]
    shutil.rmtree(data / "stamped-1")
    (data / "stamped-1").symlink_to("/gone/stamped-1")
    told = export(data, "--in-place", "--nodes", nodes)
    assert told["exit"] == 1
    assert told["problems"][1].startswith(f"{data}/stamped-1 is a link to a missing file, and stamped-1")


def test_a_directory_of_another_topic_of_the_name_is_refused(tmp_path: Path) -> None:
    data, nodes = imported(tmp_path), tmp_path / "nodes.json"
    (data / "stamped-1" / "partition.metadata").write_text("version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n")
    told = export(data, "--in-place", "--nodes", nodes)
    assert (told["exit"], told["exported"]) == (1, False)
    (problem,) = told["problems"]
    assert problem.startswith(f"{data}/stamped-1 belongs to a topic with id AAECAwQFBgcICQoLDA0ODw, stamped")


def test_a_copy_without_space_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    data, new = imported(tmp_path), tmp_path / "new"
    monkeypatch.setattr(os, "sendfile", full)
    said = failed(capsys, 1, data, "--to", new, "--script", tmp_path / "nodes.txt")
    problem = "was not finished (No space left on device): remove it before you try again"
    assert said == f"tidemill: the copy to {new} {problem}\n"
    assert not (tmp_path / "nodes.txt").exists()
    assert (data / STORE).exists()


def test_an_interrupted_copy_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object) -> int:
        raise KeyboardInterrupt

    data, new = imported(tmp_path), tmp_path / "new"
    monkeypatch.setattr(os, "sendfile", interrupted)
    said = failed(capsys, 130, data, "--to", new, "--script", tmp_path / "nodes.txt")
    assert f"the copy to {new} was not finished: remove it before you try again" in said
    assert not (tmp_path / "nodes.txt").exists()
    assert (data / STORE).exists()


def test_missing_options_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, nodes = imported(tmp_path), tmp_path / "nodes.json"
    assert "--to NEW for a copy, or --in-place" in failed(capsys, 2, data, "--nodes", nodes)
    assert "give a target for the nodes" in failed(capsys, 2, data, "--in-place")
    assert "--to must name a new directory" in failed(capsys, 2, data, "--to", tmp_path, "--nodes", nodes)


def test_an_export_is_undone_by_renaming_the_store(tmp_path: Path) -> None:
    data = imported(tmp_path)
    with Broker(CONFIG, data_dir=data) as broker:
        before = see(broker.bootstrap)
    told = export(data, "--in-place", "--nodes", tmp_path / "nodes.json")
    assert told["store_kept_as"] == f"{data}/coordination.db.exported"
    Path(told["store_kept_as"]).rename(data / STORE)
    with Broker(CONFIG, data_dir=data) as broker:
        assert as_json(see(broker.bootstrap)) == as_json(before)


@pytest.mark.parametrize("option", ["--script", "--nodes"])
def test_an_unwritable_file_is_reported_before_the_copy(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, new = imported(tmp_path), tmp_path / "new"
    said = failed(capsys, 2, data, "--to", new, option, tmp_path / "missing" / "nodes")
    assert f"{tmp_path}/missing is not a directory: create it first, or name another file" in said
    assert f"{tmp_path} is a directory: name a file in it" in failed(
        capsys, 2, data, "--to", new, option, tmp_path
    )
    assert not new.exists()


def test_two_outputs_need_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, file = imported(tmp_path), tmp_path / "nodes"
    said = failed(capsys, 2, data, "--in-place", "--script", file, "--nodes", file)
    assert f"--script and --nodes both name {file}: name two files" in said


def test_targets_that_overlap_the_data_directory_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, nodes = imported(tmp_path), tmp_path / "nodes.json"
    before = contents(data)
    link = tmp_path / "link"
    link.symlink_to(data)

    def refused(target: Path) -> str:
        return failed(capsys, 2, data, "--to", target, "--nodes", nodes)

    assert f"--to {data}/sub/new is inside {data}, which is exported" in refused(data / "sub" / "new")
    assert f"--to {link}/sub is inside {data}, which is exported" in refused(link / "sub")
    assert f"--to {link} is the exported directory itself" in refused(link)
    (tmp_path / "file").touch()
    assert f"{tmp_path}/file is not a directory; name another path" in refused(tmp_path / "file" / "new")
    (tmp_path / "dangling").symlink_to("/gone/target")
    assert "--to must name a new directory" in refused(tmp_path / "dangling")
    assert contents(data) == before
    assert not nodes.exists()


def test_a_repeated_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, link = imported(tmp_path), tmp_path / "link"
    link.symlink_to(data)
    said = failed(capsys, 2, data, data, "--to", tmp_path / "new", "--nodes", tmp_path / "nodes")
    assert f"{data} is given twice: name each data directory once" in said
    said = failed(capsys, 2, data, link, "--to", tmp_path / "new", "--nodes", tmp_path / "nodes")
    assert f"{data} is given twice, as {data} and as {link}: name each data directory once" in said
    assert run(["log", "import", str(link), str(data)]) == 2
    assert f"{data} is given twice, as {link} and as {data}" in capsys.readouterr().err


def test_directories_without_a_store_or_in_use_are_not_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, nodes = copied("kraft", tmp_path), tmp_path / "nodes.json"
    assert f"{data} has no coordination.db" in failed(capsys, 1, data, "--in-place", "--nodes", nodes)
    called(data)
    with Broker(CONFIG, data_dir=data):
        assert "is in use by a broker" in failed(capsys, 1, data, "--in-place", "--nodes", nodes)
