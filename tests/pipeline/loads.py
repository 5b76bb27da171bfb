"""A stand-in for Spark that loads numbers through a :class:`TableFolder`, and readers that find them again.

Run as a program it does so in a process of its own, which kills itself before its k-th change of the disk:
``python tests/pipeline/loads.py FOLDER MESSAGES K``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tidemill.log.system_files import SystemFiles
from tidemill.model.system_interfaces import Files
from tidemill.pipeline.jobs.file_sink_migration import migrate
from tidemill.pipeline.jobs.table_folder import Written, open_table

CHANGES = ("replace", "make_directory", "rename", "remove", "sync_directory", "write_unsynced")
"""Calls of the file port that a kill may come before."""
DATES = ("2013-01-01", "2013-01-02")


class KilledFiles(SystemFiles):
    """The system's files; the process kills itself before change number ``left``."""

    def __init__(self, left: int) -> None:
        self.left = left

    def step(self) -> None:
        """Called before every change."""
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def _killed_before(name: str) -> Callable[..., Any]:
    def call(self: KilledFiles, *arguments: Any) -> Any:
        self.step()
        return getattr(SystemFiles, name)(self, *arguments)

    return call


for _name in CHANGES:
    setattr(KilledFiles, _name, _killed_before(_name))


class Loader:
    """Imitates Spark's changes of the disk: plan, load, commit; and again after a crash.

    A micro-batch has the numbers from the end of the previous batch to an end that is planned again if its
    plan is lost. ``stage`` writes numbers into a staged file, ``rows_of`` counts the numbers of a file.
    """

    def __init__(
        self,
        files: Files,
        folder: str,
        stage: Callable[[str, list[int]], None],
        rows_of: Callable[[str], int],
        step: Callable[[], None] = lambda: None,
        random: Random | None = None,
    ) -> None:
        self.files = files
        self.output, self.checkpoint = f"{folder}/out", f"{folder}/checkpoint"
        self._stage = stage
        self._rows_of = rows_of
        self._step = step
        self._random = random

    def run(self, messages: int) -> None:
        """Loads the numbers below ``messages`` that are not loaded yet."""
        files = self.files
        table = open_table(files, self.output, self.checkpoint, self._rows_of)
        try:
            migrate(files, table, self.output, self.checkpoint)
            table.recover()
            for log in ("offsets", "commits"):
                files.make_directory(f"{self.checkpoint}/{log}")
            if not files.exists(f"{self.checkpoint}/metadata"):
                files.write_unsynced(f"{self.checkpoint}/metadata", b'{"id":"9d3c"}')
            batch = self._next_batch()
            while True:
                begin, end = self._plan(batch, messages)
                if begin == end:
                    return
                table.commit(batch, lambda path, begin=begin, end=end: self._write(path, begin, end))
                files.write_unsynced(f"{self.checkpoint}/commits/{batch}", b"{}")
                batch += 1
        finally:
            table.close()

    def _next_batch(self) -> int:
        planned, committed = (self._numbers(log) for log in ("offsets", "commits"))
        return planned[-1] + (planned[-1] in committed) if planned else 0

    def _numbers(self, log: str) -> list[int]:
        names = self.files.list(f"{self.checkpoint}/{log}")
        return sorted(int(name) for name in names if name.isdigit())

    def _plan(self, batch: int, messages: int) -> tuple[int, int]:
        path = f"{self.checkpoint}/offsets/{batch}"
        if self.files.exists(path):
            begin, end = json.loads(self.files.read(path))
            return begin, end
        begin = 0
        if batch:
            begin = json.loads(self.files.read(f"{self.checkpoint}/offsets/{batch - 1}"))[1]
        count = 10 if self._random is None else self._random.randint(1, 15)
        end = max(begin, min(messages, begin + count))
        if begin < end:
            self.files.write_unsynced(path, json.dumps([begin, end]).encode())
        return begin, end

    def _write(self, path: str, begin: int, end: int) -> Written:
        for at, date in enumerate(DATES):
            numbers = list(range(begin + at, end, len(DATES)))
            if numbers:
                self.files.make_directory(f"{path}/event_date={date}")
                self._stage(f"{path}/event_date={date}/part-0000{at}.c000.snappy.parquet", numbers)
                self._step()
        return Written(rows=end - begin)


def stage_parquet(path: str, numbers: list[int]) -> None:
    """Writes a staged file as Spark does."""
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"n": numbers}), path)


def rows_of_parquet(path: str) -> int:
    """Counts rows as the load does."""
    from tidemill.pipeline.jobs.table_folder import rows_of_parquet

    return rows_of_parquet(path)


def read_with_pandas(folder: Path, column: str) -> list[int]:
    """Returns a column of a table, sorted."""
    import pandas

    return sorted(pandas.read_parquet(folder)[column])


def read_with_arrow(folder: Path, column: str) -> list[int]:
    """Returns a column of a table, sorted."""
    import pyarrow.dataset

    return sorted(pyarrow.dataset.dataset(folder, partitioning="hive").to_table()[column].to_pylist())


def read_with_duckdb(folder: Path, column: str) -> list[int]:
    """Returns a column of a table, sorted; reads every Parquet file below the folder."""
    import duckdb

    with duckdb.connect() as connection:
        found = connection.execute(
            f"select {column} from read_parquet('{folder}/**/*.parquet', hive_partitioning = true)"
        )
        return sorted(row[0] for row in found.fetchall())


READERS = {"pandas": read_with_pandas, "arrow": read_with_arrow, "duckdb": read_with_duckdb}


def main(folder: str, messages: int, left: int) -> None:
    """Loads, until the kill before change number ``left``."""
    files = KilledFiles(left)
    Loader(files, folder, stage_parquet, rows_of_parquet, files.step).run(messages)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
