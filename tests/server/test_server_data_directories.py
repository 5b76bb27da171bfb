"""Brokers on several data directories, one of which is not there at the next start."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_stage import cut_power

from tidemill.client import Admin, ClientError, Producer
from tidemill.testing import Broker

PARTITIONS = 4


def send(broker: Broker, topic: str) -> dict[int, int]:
    """Sends a record to each partition of a topic; the offsets of those that were taken, by partition."""
    # A storage error is retriable, since disks can come back.
    options = {"request.timeout.ms": 500, "delivery.timeout.ms": 1000, "linger.ms": 0}
    taken = {}
    with Producer(broker.bootstrap, options) as producer:
        sent = [producer.send(topic, b"value", partition=number) for number in range(PARTITIONS)]
        for number, one in enumerate(sent):
            with contextlib.suppress(ClientError):
                taken[number] = one.result(10).offset
    return taken


def unmount(disk: Path) -> None:
    """The mount point is there, and nothing is in it."""
    disk.mkdir()


def break_disk(disk: Path) -> None:
    """Nothing can be read there."""
    disk.write_text("no directory")


@pytest.mark.parametrize(("happens", "told"), [(unmount, "was new at the start"), (break_disk, "may lie in")])
def test_partitions_of_a_disk_that_is_away_stay_offline_and_come_back_with_it(
    tmp_path: Path, happens: Callable[[Path], None], told: str
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
        happens(away)
        broker.start()
        assert send(broker, "old") == dict.fromkeys(left, 1)
        assert told in broker.log
        assert str(away) in broker.log
        # A topic that is new was not on the disk that is away.
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("new", PARTITIONS)
        assert send(broker, "new") == dict.fromkeys(range(PARTITIONS), 0)
        assert len(list(here.glob("new-*"))) == PARTITIONS

        # As long as it is away, every start leaves its partitions alone.
        broker.restart()
        assert send(broker, "old") == dict.fromkeys(left, 2)

        broker.stop()
        away.rename(tmp_path / "put-aside")
        kept.rename(away)
        broker.start()
        assert send(broker, "old") == {number: 3 if number in left else 1 for number in range(PARTITIONS)}


def test_a_broker_alone_leads_its_partitions_again_after_a_power_cut(tmp_path: Path) -> None:
    with Broker({}, data_dir=tmp_path / "broker") as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("old", PARTITIONS)
        assert send(broker, "old") == dict.fromkeys(range(PARTITIONS), 0)
        cut_power(broker)
        broker.start()
        assert send(broker, "old") == dict.fromkeys(range(PARTITIONS), 1)
