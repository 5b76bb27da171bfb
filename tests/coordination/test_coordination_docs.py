"""The format page of the embedded store matches the code: its example is written and parsed."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from pathlib import Path

import pytest

from tidemill.coordination.cluster_image_loader import load_image
from tidemill.coordination.coordination_store import Create, ensure_paths, parent_of
from tidemill.coordination.embedded_store import APPLICATION_ID, LAYOUT_VERSION, EmbeddedStore

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "coordination-store.md"


@pytest.fixture
def page() -> str:
    """The text of the page."""
    return PAGE.read_text()


def test_the_tables_match_the_page(page: str, tmp_path: Path) -> None:
    path = str(tmp_path / "coordination.db")
    asyncio.run(EmbeddedStore.open(path).close())
    connection = sqlite3.connect(path)
    tables = [sql for (sql,) in connection.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")]
    pragmas = [
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    ]
    connection.close()
    assert [f"{sql};" for sql in sorted(tables)] == sorted(re.findall(r"CREATE TABLE .*;", page))
    assert pragmas == [APPLICATION_ID, LAYOUT_VERSION]
    assert f"0x{APPLICATION_ID:08X}" in page
    assert f"| `user_version` | {LAYOUT_VERSION} |" in page


def test_the_example_is_a_cluster(page: str, tmp_path: Path) -> None:
    nodes = re.findall(r"^\| `(/[^`]*)` \| `([^`]*)` \|$", page, re.MULTILINE)
    assert len(nodes) == 9

    async def story() -> None:
        store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
        await ensure_paths(store, [parent_of(path) for path, _ in nodes if parent_of(path) != "/"])
        for path, data in nodes:
            if await store.exists(path):
                continue
            await store.transact([Create(path, data.encode())])
        await store.close()

    def fill_parents() -> None:
        # The node of the topic was created as the parent of its partitions: its data is written here.
        connection = sqlite3.connect(tmp_path / "coordination.db")
        for path, data in nodes:
            connection.execute("UPDATE node SET data = ? WHERE path = ?", (data.encode(), path))
        connection.commit()
        connection.close()

    async def read() -> None:
        store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
        image = await load_image(store)
        await store.close()
        assert image.cluster_id == "EzKqeXVJRruusxcB6-mtHw"
        assert image.controller_epoch == 3
        topic = image.topics["orders"]
        assert [(p.leader, p.replicas, p.isr) for p in topic.partitions] == [(1, [1], [1])] * 2
        assert topic.config == {"retention.ms": "86400000"}
        assert image.default_broker_config() == {"log.retention.ms": "604800000"}
        assert image.group_config("billing") == {"consumer.session.timeout.ms": "50000"}

    asyncio.run(story())
    fill_parents()
    asyncio.run(read())
