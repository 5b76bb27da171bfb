"""A table has each row once, for every reader, despite kills and power failures at any time."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import loads
import pytest
from faulty_files import FaultyFiles, Killed

from tidemill.log.system_files import SystemFiles
from tidemill.model.errors import ConfigError
from tidemill.pipeline.jobs.file_sink_migration import migrate
from tidemill.pipeline.jobs.load_manifest import (
    LoadedFile,
    Manifest,
    ManifestDamaged,
    decode_manifest,
    encode_manifest,
)
from tidemill.pipeline.jobs.table_folder import (
    FilesMissing,
    LoadStopped,
    TableFolder,
    UnderWay,
    Written,
    open_table,
    read_manifest,
)

MESSAGES = 34
"""Four micro-batches of ten."""


def read(folder: Path) -> dict[str, list[int]]:
    """Returns the content for each reader; empty if there is no file yet."""
    if not list((folder / "out").glob("event_date=*/*.parquet")):
        return same([])
    return {name: reader(folder / "out", "n") for name, reader in loads.READERS.items()}


def same(numbers: list[int]) -> dict[str, list[int]]:
    """Returns the expected content for every reader."""
    return dict.fromkeys(loads.READERS, numbers)


def loader(folder: Path) -> loads.Loader:
    """A loader without a kill."""
    return loads.Loader(SystemFiles(), str(folder), loads.stage_parquet, loads.rows_of_parquet)


def run_killed(folder: Path, messages: int, left: int) -> bool:
    """Runs a load in a process that kills itself; returns whether it reached its end instead."""
    program = str(Path(loads.__file__))
    done = subprocess.run(
        [sys.executable, program, str(folder), str(messages), str(left)],
        env={**os.environ, "TIDEMILL_PLAIN": "1"},  # Compiled classes have no interpreted subclasses.
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, -9), done.stderr
    return done.returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_kill_before_any_change_of_the_disk_causes_no_loss_and_no_duplicate(tmp_path: Path) -> None:
    """Every run is killed one step later than the last, from its start on, until a run reaches its end."""
    messages, left, seen = 10, 1, 0
    while not run_killed(tmp_path, messages, left):
        found = read(tmp_path)
        for reader, numbers in found.items():
            assert numbers == sorted(set(numbers)), (reader, left)
            assert set(range(seen)) <= set(numbers) <= set(range(messages)), (reader, left)
        assert len({tuple(numbers) for numbers in found.values()}) == 1, left
        left += 1
        # Sometimes a whole batch precedes the batch that is killed at the same step.
        if left % 3 == 0:
            loader(tmp_path).run(messages)
            seen, messages = messages, messages + 10
            assert read(tmp_path) == same(list(range(seen)))
    assert left > 20
    assert read(tmp_path) == same(list(range(messages)))


class Memory:
    """A disk that loses its power, or its process, before change number ``left``."""

    def __init__(self, seed: int) -> None:
        self.files = FaultyFiles()
        self.random = Random(seed)
        self.left = 0
        check = self.files.check

        def counted(operation: str, path: str) -> None:
            if operation in (*loads.CHANGES, "open", "append", "sync"):
                self.left -= 1
                if self.left == 0:
                    raise Killed
            check(operation, path)

        self.files.check = counted  # type: ignore[method-assign]

    def stage(self, path: str, numbers: list[int]) -> None:
        self.files.write_unsynced(path, json.dumps(numbers).encode())

    def rows_of(self, path: str) -> int:
        return len(json.loads(self.files.read(path)))

    def loader(self) -> loads.Loader:
        return loads.Loader(self.files, "/d", self.stage, self.rows_of, random=self.random)

    def table(self) -> list[int]:
        """Returns the numbers in the valid files."""
        found: list[int] = []
        if self.files.exists("/d/out"):
            for folder in self.files.list("/d/out"):
                if folder.startswith("event_date="):
                    for name in self.files.list(f"/d/out/{folder}"):
                        found += json.loads(self.files.read(f"/d/out/{folder}/{name}"))
        return sorted(found)


@pytest.mark.parametrize("cut", [True, False], ids=["power", "kill"])
@pytest.mark.parametrize("seed", range(40))
def test_the_loss_of_unsynced_data_causes_no_loss_and_no_duplicate(
    seed: int, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tidemill.pipeline.jobs.table_folder as module

    monkeypatch.setattr(module, "SYNCS_AT_ONCE", 1)
    disk = Memory(seed)
    promised: list[int] = []
    for _ in range(disk.random.randint(1, 4)):
        disk.left = disk.random.randint(1, 160)
        with contextlib.suppress(Killed):
            disk.loader().run(MESSAGES)
        # A returned commit is guaranteed; a durable manifest is the middle of a commit.
        disk.left = 0
        if cut:
            disk.files.power_cut(disk.random)
        else:
            disk.files.kill()
        there = disk.table()
        assert Counter(there) <= Counter(range(MESSAGES))
        assert set(promised) <= set(there)
        disk.loader().run(disk.random.choice([0, 5, 20]))
        promised = disk.table()
        assert promised == list(range(len(promised)))
    disk.loader().run(MESSAGES)
    assert disk.table() == list(range(MESSAGES))


def written(folder: Path, rows: int = 3, batch: int = 0) -> Any:
    """Plans a micro-batch, and returns a function that stages ``rows`` rows of it."""
    for log in ("offsets", "commits"):
        (folder / "checkpoint" / log).mkdir(parents=True, exist_ok=True)
    (folder / "checkpoint" / "metadata").write_text('{"id":"9d3c"}')
    (folder / "checkpoint" / "offsets" / str(batch)).write_text(f"[{batch}]")

    def write(path: str) -> Written:
        os.makedirs(f"{path}/event_date=2013-01-01")
        loads.stage_parquet(f"{path}/event_date=2013-01-01/part-0.snappy.parquet", list(range(rows)))
        (Path(path) / "_SUCCESS").touch()
        return Written(rows=3)

    return write


def opened(folder: Path) -> TableFolder:
    return open_table(SystemFiles(), str(folder / "out"), str(folder / "checkpoint"))


def test_a_batch_that_spark_runs_again_is_not_written_again(tmp_path: Path) -> None:
    write = written(tmp_path)
    table = opened(tmp_path)
    table.commit(0, write)
    table.close()
    table = opened(tmp_path)
    table.recover()
    table.commit(0, lambda path: pytest.fail("written again"))
    assert table.manifest is not None
    assert (table.manifest.batch, table.manifest.rows) == (0, 3)
    assert [path.name for path in (tmp_path / "out").glob("*/*.parquet")] == [
        "batch-000000000-9d3c-00000.snappy.parquet"
    ]
    table.close()


def test_a_plan_that_differs_from_the_loaded_one_is_refused(tmp_path: Path) -> None:
    write = written(tmp_path)
    table = opened(tmp_path)
    table.commit(0, write)
    (tmp_path / "checkpoint" / "offsets" / "0").write_text("[other]")
    with pytest.raises(
        ConfigError, match=r"with other offsets than the checkpoint .* Load into a new output"
    ):
        table.commit(0, write)
    written(tmp_path, batch=4)
    with pytest.raises(ConfigError, match=r"has micro-batch 0, and the checkpoint .* continues with 4"):
        table.commit(4, write)
    table.close()


def test_rows_invisible_on_this_machine_do_not_count_as_loaded(tmp_path: Path) -> None:
    write = written(tmp_path, rows=2)
    table = opened(tmp_path)
    with pytest.raises(FilesMissing, match=r"wrote 3 rows of micro-batch 0, and .* has 2: use an output and"):
        table.commit(0, write)
    assert not list((tmp_path / "out").glob("*/*.parquet"))
    assert read_manifest(SystemFiles(), str(tmp_path / "out")) is None
    table.close()


def test_the_error_of_a_second_load_names_the_owner(tmp_path: Path) -> None:
    table = opened(tmp_path)
    with pytest.raises(UnderWay, match=f"process {os.getpid()} on .* already loads into .*/out: wait"):
        opened(tmp_path)
    table.close()
    opened(tmp_path).close()


def test_an_ended_load_makes_no_files_visible(tmp_path: Path) -> None:
    write = written(tmp_path)
    table = opened(tmp_path)

    def ended(path: str) -> Written:
        table.close()
        return Written(rows=write(path).rows)

    with pytest.raises(LoadStopped, match="micro-batch 0 was not loaded"):
        table.commit(0, ended)
    assert not list((tmp_path / "out").glob("*/*.parquet"))


def test_an_output_on_another_file_system_gets_copies_that_appear_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def replace_within(old: str, new: str) -> None:
        if "/checkpoint/" in old and "/out/" in new:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), old)
        replace(old, new)

    monkeypatch.setattr(os, "replace", replace_within)
    write = written(tmp_path)
    table = open_table(SystemFiles(), str(tmp_path / "out"), str(tmp_path / "checkpoint"))
    table.commit(0, write)
    table.close()
    assert read(tmp_path) == same([0, 1, 2])
    assert sorted(path.name for path in (tmp_path / "out" / "event_date=2013-01-01").iterdir()) == [
        "batch-000000000-9d3c-00000.snappy.parquet"
    ]
    assert list((tmp_path / "checkpoint" / "tidemill").iterdir()) == []


def test_files_removed_before_their_move_are_an_error(tmp_path: Path) -> None:
    files = SystemFiles()
    staged = tmp_path / "checkpoint" / "tidemill" / "batch-0-x"
    staged.mkdir(parents=True)
    table = opened(tmp_path)
    lost = LoadedFile(name="event_date=1/a.parquet", staged="event_date=1/b.parquet", size_bytes=9, rows=1)
    path = tmp_path / "out" / "_tidemill" / "manifest.json"
    files.replace(
        str(path), encode_manifest(Manifest(query="q", batch=0, staging="batch-0-x", files=(lost,)))
    )
    table.close()
    table = opened(tmp_path)
    with pytest.raises(FilesMissing, match=r"event_date=1/a\.parquet exists neither there nor at"):
        table.recover()
    table.close()


def test_the_error_of_an_invalid_manifest_has_the_next_step(tmp_path: Path) -> None:
    for data, words in (
        (b"{", "damaged"),
        (b"[]", "damaged"),
        (b'{"version": 2}', "has version 2, and this"),
    ):
        with pytest.raises(ManifestDamaged, match=words):
            decode_manifest(data, "x")


def test_the_manifest_of_the_page_is_read() -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats" / "load-manifest.md").read_text()
    example = page.partition("```json\n")[2].partition("```")[0].encode()
    manifest = decode_manifest(example, "page")
    assert encode_manifest(manifest) == example
    assert sum(one.rows for one in manifest.files) == manifest.rows


SPARKS = "part-0000{}-7bb0b6d5-0ef0-4b6c-8f0e-d0a2b9f3d1aa.c000.snappy.parquet"


def file_sink_table(folder: Path) -> None:
    """A table of Spark's file sink after a kill: two batches, and invalid files of a third."""
    log, dates = folder / "out" / "_spark_metadata", folder / "out" / "event_date=2013-01-01"
    log.mkdir(parents=True)
    dates.mkdir()
    written(folder, batch=1)

    def entry(number: int, numbers: list[int]) -> str:
        path = dates / SPARKS.format(number)
        loads.stage_parquet(str(path), numbers)
        return json.dumps({"path": f"file://{path}", "size": path.stat().st_size, "action": "add"})

    (log / "0").write_text("v1\n" + entry(0, [0, 1]))
    (log / "1.compact").write_text("\n".join(["v1", entry(0, [0, 1]), entry(1, [2])]))
    (log / ".1.compact.crc").write_text("crc")
    loads.stage_parquet(str(dates / SPARKS.format(2)), [2, 3])
    (dates / SPARKS.format(3)).write_bytes(b"")
    (folder / "checkpoint" / "offsets" / "0").write_text("[0, 2]")
    (folder / "checkpoint" / "offsets" / "1").write_text("[2, 3]")
    (folder / "checkpoint" / "commits" / "0").write_text("{}")


@pytest.mark.parametrize("left", range(1, 14))
def test_a_table_of_sparks_file_sink_is_migrated_despite_kills(tmp_path: Path, left: int) -> None:
    file_sink_table(tmp_path)
    with pytest.raises(Exception, match="Parquet"):
        loads.read_with_pandas(tmp_path / "out", "n")
    run_killed(tmp_path, 20, left)
    loader(tmp_path).run(20)
    assert read(tmp_path) == same(list(range(20)))
    assert not (tmp_path / "out" / "_spark_metadata").exists()
    manifest = read_manifest(SystemFiles(), str(tmp_path / "out"))
    assert manifest is not None
    assert manifest.batch == 3


def test_a_power_cut_after_the_migration_restores_no_removed_file() -> None:
    files = FaultyFiles()
    dates, log = "/out/event_date=2013-01-01", "/out/_spark_metadata"
    listed, unlisted = (f"{dates}/{SPARKS.format(number)}" for number in range(2))
    for folder in ("/out", dates, log, "/checkpoint"):
        files.make_directory(folder)
    entry = json.dumps({"path": f"file://{listed}", "size": 1, "action": "add"})
    for path, text in ((f"{log}/0", f"v1\n{entry}"), (listed, "x"), (unlisted, "y")):
        files.replace(path, text.encode())
    files.replace("/checkpoint/metadata", b'{"id":"9d3c"}')
    for folder in ("/", "/out"):
        files.sync_directory(folder)
    table = open_table(files, "/out", "/checkpoint", len)
    assert migrate(files, table, "/out", "/checkpoint") == 1
    files.power_cut()
    assert (files.exists(listed), files.exists(unlisted), files.exists(log)) == (True, False, False)


def test_an_unlisted_file_is_named_and_stays(tmp_path: Path) -> None:
    file_sink_table(tmp_path)
    mine = tmp_path / "out" / "event_date=2013-01-01" / "mine.parquet"
    loads.stage_parquet(str(mine), [99])
    table = opened(tmp_path)
    with pytest.raises(
        ConfigError, match=r"does not name .*mine\.parquet: move files that are not of the load out"
    ):
        migrate(SystemFiles(), table, str(tmp_path / "out"), str(tmp_path / "checkpoint"))
    assert mine.exists()
    table.close()
