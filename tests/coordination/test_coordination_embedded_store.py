"""The embedded store: durability, errors of its file, and concurrency."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tidemill.coordination import embedded_store
from tidemill.coordination.coordination_store import (
    Create,
    Delete,
    Event,
    NoNode,
    SetData,
    StoreError,
    ensure_paths,
)
from tidemill.coordination.embedded_store import Database, EmbeddedStore


def store_path(directory: Path) -> str:
    """The path of the store of a test."""
    return str(directory / "coordination.db")


def test_writes_survive_a_restart(tmp_path: Path) -> None:
    async def first() -> int:
        store = EmbeddedStore.open(store_path(tmp_path))
        await store.transact(
            [Create("/a", b"one"), Create("/a/b"), Create("/gone"), Create("/e", ephemeral=True)]
        )
        await store.transact([SetData("/a", b"two"), Delete("/gone")])
        await store.transact([Create("/a/n_", sequential=True)])
        await store.transact([Delete("/a/n_0000000001")])
        await store.close()
        return 4

    async def second(changes: int) -> None:
        store = EmbeddedStore.open(store_path(tmp_path))
        node = await store.get("/a")
        assert node is not None
        assert (node.data, node.version, node.creation_id) == (b"two", 1, 1)
        assert await store.children("/") == ["a"]
        assert await store.children("/a") == ["b"]
        (result,) = await store.transact([Create("/a/n_", sequential=True)])
        assert result.path == "/a/n_0000000002"
        later = await store.get(result.path)
        assert later is not None
        assert later.creation_id > changes
        await store.close()

    asyncio.run(second(asyncio.run(first())))


def test_creation_ids_of_ephemeral_nodes_increase_after_restarts(tmp_path: Path) -> None:
    async def register() -> int:
        store = EmbeddedStore.open(store_path(tmp_path))
        await store.transact([Create("/broker", ephemeral=True)])
        node = await store.get("/broker")
        assert node is not None
        await store.close()
        return node.creation_id

    epochs = [asyncio.run(register()) for _ in range(3)]
    assert epochs == sorted(set(epochs))


def test_a_store_without_changes_opens_without_writing(tmp_path: Path) -> None:
    async def write() -> None:
        store = EmbeddedStore.open(store_path(tmp_path))
        await store.transact([Create("/a")])
        await store.close()

    asyncio.run(write())
    before = Path(store_path(tmp_path)).read_bytes()
    asyncio.run(EmbeddedStore.open(store_path(tmp_path)).close())
    assert Path(store_path(tmp_path)).read_bytes() == before


WRITER = """
import asyncio, sys
from tidemill.coordination.embedded_store import EmbeddedStore
from tidemill.coordination.coordination_store import Create, SetData

async def main():
    store = EmbeddedStore.open(sys.argv[1])
    if not await store.exists("/n"):
        await store.transact([Create("/n", b"0")])
    await store.transact([Create("/alive", ephemeral=True)])
    number = int((await store.get("/n")).data)
    while True:
        number += 1
        await store.transact([SetData("/n", b"%d" % number), Create("/n/%d" % number, b"x" * 200)])
        print(number, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("acknowledged_min", [1, 40])
def test_every_acknowledged_write_survives_a_kill(tmp_path: Path, acknowledged_min: int) -> None:
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, store_path(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            acknowledged = 0
            for _ in range(acknowledged_min):
                acknowledged = int(writer.stdout.readline())
            os.kill(writer.pid, signal.SIGKILL)
            acknowledged = max([acknowledged, *(int(line) for line in writer.stdout if line.endswith("\n"))])

        async def look(acknowledged: int = acknowledged) -> None:
            store = EmbeddedStore.open(store_path(tmp_path))
            node = await store.get("/n")
            assert node is not None
            last = int(node.data)
            # The last write may be on disk although its acknowledgement was not received.
            assert acknowledged <= last <= acknowledged + 1
            assert sorted(map(int, await store.children("/n"))) == list(range(1, last + 1))
            assert not await store.exists("/alive")
            await store.close()

        asyncio.run(look())


async def test_rejects_a_second_process(tmp_path: Path) -> None:
    store = EmbeddedStore.open(store_path(tmp_path))
    code = (
        "import sys\n"
        "from tidemill.coordination.embedded_store import EmbeddedStore\n"
        "from tidemill.coordination.coordination_store import StoreError\n"
        "try:\n    EmbeddedStore.open(sys.argv[1])\n"
        "except StoreError as error:\n    print(error)"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, store_path(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert b"in use by another process" in output
    assert output.count(b"\n") == 1
    await store.close()
    again = EmbeddedStore.open(store_path(tmp_path))
    await again.close()


def one_line(error: StoreError) -> str:
    """The text of an error: one line with the file and the next step."""
    text = str(error)
    assert "coordination.db" in text
    assert "\n" not in text
    return text


def write_and_kill(path: str, count: int = 40) -> None:
    """Writes ``count`` nodes in a process that is killed, so that the WAL has them."""
    with subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        for _ in range(count):
            writer.stdout.readline()
        os.kill(writer.pid, signal.SIGKILL)


def flip_a_byte(wal: Path) -> None:
    data = bytearray(wal.read_bytes())
    data[len(data) // 2] ^= 1
    wal.write_bytes(data)


def flip_its_first_byte(wal: Path) -> None:
    data = bytearray(wal.read_bytes())
    data[0] ^= 1
    wal.write_bytes(data)


@pytest.mark.parametrize("damage", [flip_a_byte, flip_its_first_byte, Path.unlink])
def test_a_store_that_lacks_a_durable_change_is_rejected_and_not_changed(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = store_path(tmp_path)
    wal = Path(f"{path}-wal")
    write_and_kill(path)
    whole = wal.read_bytes()
    damage(wal)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    for _ in range(2):
        with pytest.raises(StoreError) as caught:
            EmbeddedStore.open(path)
        text = one_line(caught.value)
        assert f"{path}-wal is missing or damaged" in text
        assert f"remove {path}-last-id" in text
        assert "log import --without-settings" in text
        after = {file: file.read_bytes() for file in tmp_path.iterdir()}
        if wal in before:
            assert after[wal] == before[wal]
    wal.write_bytes(whole)
    asyncio.run(count_children(path, 40))


async def count_children(path: str, minimum: int) -> None:
    """Opens the store, which must have at least ``minimum`` nodes of the writer, and closes it."""
    store = EmbeddedStore.open(path)
    assert len(await store.children("/n")) >= minimum
    await store.close()


def test_without_the_last_id_an_older_store_opens(tmp_path: Path) -> None:
    path = store_path(tmp_path)
    write_and_kill(path, 20)
    asyncio.run(EmbeddedStore.open(path).close())
    older = Path(path).read_bytes()
    write_and_kill(path, 20)
    Path(f"{path}-wal").unlink()
    Path(path).write_bytes(older)
    with pytest.raises(StoreError):
        EmbeddedStore.open(path)
    last_id = Path(f"{path}-last-id")
    last_id.unlink()
    asyncio.run(count_children(path, 20))
    write_and_kill(path, 1)
    assert int(last_id.read_bytes()) >= 20


@pytest.mark.parametrize("content", [b"", bytes(20), bytes(30), b"no number"])
def test_a_last_id_that_a_power_failure_damaged_is_replaced(tmp_path: Path, content: bytes) -> None:
    path = store_path(tmp_path)
    write_and_kill(path)
    last_id = Path(f"{path}-last-id")
    last_id.write_bytes(content)
    asyncio.run(count_children(path, 40))
    write_and_kill(path, 1)
    assert int(last_id.read_bytes()[:20]) >= 40


def test_a_new_store_in_place_of_another_begins_again(tmp_path: Path) -> None:
    path = store_path(tmp_path)
    write_and_kill(path)
    Path(path).unlink()
    for _ in range(2):
        asyncio.run(EmbeddedStore.open(path).close())


def last_id_of(directory: Path) -> int:
    return int(Path(f"{store_path(directory)}-last-id").read_bytes())


async def test_the_last_id_is_never_ahead_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_store, "database_class", FailingDatabase)
    store = EmbeddedStore.open(store_path(tmp_path))
    await store.transact([Create("/a")])
    before = last_id_of(tmp_path)
    monkeypatch.setattr(FailingDatabase, "full", True)
    with pytest.raises(StoreError):
        await store.transact([Create("/big", b"x" * 100_000)])
    assert last_id_of(tmp_path) == before
    monkeypatch.setattr(FailingDatabase, "full", False)
    await store.close()


def test_a_start_after_a_kill_moves_the_changes_from_the_wal_to_the_file(tmp_path: Path) -> None:
    path = store_path(tmp_path)
    write_and_kill(path)
    before = Path(path).stat().st_size
    store = EmbeddedStore.open(path)
    assert Path(path).stat().st_size > before
    assert not Path(f"{path}-wal").exists() or not Path(f"{path}-wal").stat().st_size
    asyncio.run(store.close())


def write_no_database(path: str) -> None:
    Path(path).write_bytes(b"this is no database" * 100)


def write_other_database(path: str, statement: str = "CREATE TABLE theirs (x)") -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()


def write_later_layout(path: str) -> None:
    asyncio.run(EmbeddedStore.open(path).close())
    write_other_database(path, "PRAGMA user_version=99")


def write_damaged_database(path: str) -> None:
    """Damages the middle of the file."""

    async def fill() -> None:
        store = EmbeddedStore.open(path)
        await store.transact([Create(f"/{number:05}", b"x" * 500) for number in range(200)])
        await store.close()

    asyncio.run(fill())
    data = bytearray(Path(path).read_bytes())
    data[8192:40960] = os.urandom(32768)
    Path(path).write_bytes(data)


@pytest.mark.parametrize(
    ("write", "text"),
    [
        pytest.param(write_no_database, "damaged", id="no database"),
        pytest.param(write_other_database, "another program", id="the database of another program"),
        pytest.param(write_later_layout, "layout 99", id="a later layout"),
        pytest.param(write_damaged_database, "damaged", id="damage in the middle"),
    ],
)
def test_other_files_are_rejected_and_not_changed(
    tmp_path: Path, write: Callable[[str], None], text: str
) -> None:
    write(store_path(tmp_path))
    before = Path(store_path(tmp_path)).read_bytes()
    with pytest.raises(StoreError) as caught:
        EmbeddedStore.open(store_path(tmp_path))
    assert text in one_line(caught.value)
    assert Path(store_path(tmp_path)).read_bytes() == before


def test_reports_a_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        EmbeddedStore.open(str(tmp_path / "missing" / "coordination.db"))
    assert "Create its directory" in one_line(caught.value)


class FailingDatabase(Database):
    """A database on a disk that is full while ``full`` is set: SQLite itself rejects the pages."""

    full = False

    def commit(self, rows, last_id):  # type: ignore[no-untyped-def]
        """Limits the file to its current size while the disk is full."""
        (pages,) = self._connection.execute("PRAGMA page_count").fetchone()
        self._connection.execute(f"PRAGMA max_page_count={pages if self.full else 1_000_000}")
        super().commit(rows, last_id)


async def test_a_full_disk_rejects_the_write_and_reverts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_store, "database_class", FailingDatabase)

    store = EmbeddedStore.open(store_path(tmp_path))
    await store.transact([Create("/a", b"kept")])
    seen: list[Event] = []
    await store.watch("/a", seen.append)
    monkeypatch.setattr(FailingDatabase, "full", True)
    outcomes = await asyncio.gather(
        store.transact([SetData("/a", b"lost"), Create("/big", b"x" * 100_000)]),
        store.transact([Create("/big/child", b"rests on what failed")]),
        store.get("/a"),
        return_exceptions=True,
    )
    assert all(isinstance(outcome, StoreError) for outcome in outcomes[:2])
    assert "the disk is full" in one_line(outcomes[0])  # type: ignore[arg-type]
    node = await store.get("/a")
    assert node is not None
    assert (node.data, node.version) == (b"kept", 0)
    assert await store.children("/") == ["a"]
    assert seen == []
    monkeypatch.setattr(FailingDatabase, "full", False)
    await store.transact([SetData("/a", b"again", 0), Create("/big", b"x" * 100_000)])
    await store.close()
    again = EmbeddedStore.open(store_path(tmp_path))
    assert await again.children("/") == ["a", "big"]
    await again.close()


async def test_a_cancelled_caller_does_not_revert_its_write(tmp_path: Path) -> None:
    store = EmbeddedStore.open(store_path(tmp_path))
    task = asyncio.ensure_future(store.transact([Create("/a")]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await store.exists("/a")
    await store.close()


async def test_a_slow_disk_does_not_block_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    gate = threading.Event()

    class SlowDatabase(Database):
        def commit(self, rows, last_id):  # type: ignore[no-untyped-def]
            gate.wait(30)
            super().commit(rows, last_id)

    monkeypatch.setattr(embedded_store, "database_class", SlowDatabase)

    store = EmbeddedStore.open(store_path(tmp_path))
    write = asyncio.ensure_future(store.transact([Create("/a")]))
    read = asyncio.ensure_future(store.get("/a"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not write.done()
    assert not read.done()
    gate.set()
    assert await read is not None
    assert write.done()
    await store.close()


async def test_thousands_of_nodes_in_one_transaction(tmp_path: Path) -> None:
    store = EmbeddedStore.open(store_path(tmp_path))
    await ensure_paths(store, ["/t"])
    await store.transact([Create(f"/t/{number}") for number in range(5000)])
    with pytest.raises(NoNode):
        await store.transact([*(Delete(f"/t/{number}") for number in range(5000)), Delete("/missing")])
    assert len(await store.children("/t")) == 5000
    await store.close()
