"""Brokers with several data directories, one of which is missing at the next start."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from broker_cluster import cut_power

from tidemill.client import Admin, ClientError, Producer
from tidemill.testing import Broker

PARTITIONS = 4


def send(broker: Broker, topic: str) -> dict[int, int]:
    """Sends a record to each partition of a topic. Returns the acknowledged offsets by partition."""
    # KAFKA_STORAGE_ERROR is retriable.
    options = {"request.timeout.ms": 500, "delivery.timeout.ms": 1000, "linger.ms": 0}
    taken = {}
    with Producer(broker.bootstrap, options) as producer:
        sent = [producer.send(topic, b"value", partition=number) for number in range(PARTITIONS)]
        for number, one in enumerate(sent):
            with contextlib.suppress(ClientError):
                taken[number] = one.result(10).offset
    return taken


def unmount(disk: Path) -> None:
    """Leaves an empty mount point."""
    disk.mkdir()


def break_disk(disk: Path) -> None:
    """Makes the directory unreadable."""
    disk.write_text("no directory")


@pytest.mark.parametrize(("fail", "text"), [(unmount, "was new at the start"), (break_disk, "may be in")])
def test_partitions_of_a_missing_disk_are_offline_until_it_returns(
    tmp_path: Path, fail: Callable[[Path], None], text: str
) -> None:
    here, away, kept = tmp_path / "here", tmp_path / "away", tmp_path / "kept"
    with Broker({"log.dirs": f"{here},{away}"}, data_dir=tmp_path / "broker") as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("old", PARTITIONS)
        assert send(broker, "old") == dict.fromkeys(range(PARTITIONS), 0)
        left = [int(one.name.removeprefix("old-")) for one in here.glob("old-*")]
        assert 0 < len(left) < PARTITIONS

        broker.stop()
        away.rename(kept)
        fail(away)
        broker.start()
        assert send(broker, "old") == dict.fromkeys(left, 1)
        assert text in broker.log
        assert str(away) in broker.log
        # A new topic cannot be on the missing disk.
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("new", PARTITIONS)
        assert send(broker, "new") == dict.fromkeys(range(PARTITIONS), 0)
        assert len(list(here.glob("new-*"))) == PARTITIONS

        # Every start keeps its partitions offline while the disk is missing.
        broker.restart()
        assert send(broker, "old") == dict.fromkeys(left, 2)

        broker.stop()
        away.rename(tmp_path / "put-aside")
        kept.rename(away)
        broker.start()
        assert send(broker, "old") == {number: 3 if number in left else 1 for number in range(PARTITIONS)}


def test_a_standalone_broker_leads_its_partitions_after_a_power_cut(tmp_path: Path) -> None:
    with Broker({}, data_dir=tmp_path / "broker") as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("old", PARTITIONS)
        assert send(broker, "old") == dict.fromkeys(range(PARTITIONS), 0)
        cut_power(broker)
        broker.start()
        assert send(broker, "old") == dict.fromkeys(range(PARTITIONS), 1)
