"""Starts of a broker whose embedded coordination store lacks changes that were durable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tidemill.client import Admin
from tidemill.testing import Broker
from tidemill.testing.broker import BrokerFailed


def lose_the_wal(data: Path) -> None:
    (data / "coordination.db-wal").unlink()


def damage_the_wal(data: Path) -> None:
    wal = data / "coordination.db-wal"
    content = bytearray(wal.read_bytes())
    content[len(content) // 2] ^= 1
    wal.write_bytes(content)


def lose_wal_and_number(data: Path) -> None:
    lose_the_wal(data)
    (data / "coordination.db-last-id").unlink(missing_ok=True)


def lose_the_store(data: Path) -> None:
    for path in data.glob("coordination.db*"):
        path.unlink()


@pytest.mark.parametrize(
    ("lose", "text"),
    [
        (lose_the_wal, "coordination.db-wal is missing or damaged"),
        (damage_the_wal, "coordination.db-wal is missing or damaged"),
        (lose_wal_and_number, "coordination.db has no nodes, and there are 2 partitions"),
        (lose_the_store, "coordination.db does not exist, and there are 2 partitions"),
    ],
)
def test_a_broker_does_not_start_as_new_over_partitions(
    tmp_path: Path, lose: Callable[[Path], None], text: str
) -> None:
    data = tmp_path / "data"
    with Broker({}, data_dir=data) as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("a", 2)
        broker.kill()
        kept = {path: path.read_bytes() for path in data.glob("coordination.db*")}
        lose(data)
        for _ in range(2):
            with pytest.raises(BrokerFailed) as caught:
                broker.start()
            assert text in str(caught.value)
        for path in data.glob("coordination.db*"):
            path.unlink()
        for path, content in kept.items():
            path.write_bytes(content)
        broker.start()
        with Admin(broker.bootstrap) as admin:
            assert [topic.name for topic in admin.list_topics()] == ["a"]
