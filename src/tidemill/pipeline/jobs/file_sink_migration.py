"""Migrates a table that Spark's file sink has written: folders with ``_spark_metadata``.

The file sink lists the valid files in a log beside them, which only Spark reads: ``_spark_metadata/N`` has
the files of micro-batch N, ``N.compact`` those of all micro-batches up to N. Files of an interrupted
micro-batch are in the same folders, and other readers see them. The migration removes these files, and then
the log.

====  =======================================================
step  action
====  =======================================================
1     remove files that the log does not list, durably
2     write a manifest with the log's last micro-batch, durably
3     move ``_spark_metadata`` to ``_tidemill/spark_metadata``
====  =======================================================

A kill between two steps leaves ``_spark_metadata``, and the next run repeats the migration.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from tidemill.model.errors import ConfigError
from tidemill.model.os_error_texts import fault_of
from tidemill.model.system_interfaces import Files
from tidemill.pipeline.jobs.load_manifest import FOLDER
from tidemill.pipeline.jobs.table_folder import PARTITION, SUFFIX, TableFolder, query_of, remove_tree

LOG = "_spark_metadata"
KEPT_LOG = f"{FOLDER}/spark_metadata"
COMPACT = ".compact"
OF_SPARK = re.compile(r"part-\d{5}-[0-9a-f-]{36}[.-]c\d+(\.\w+)?\.parquet")
"""The names of files that Spark's tasks write."""


class SinkLog(NamedTuple):
    """The content of the file sink's log: its last micro-batch, and the size of each file by name."""

    batch: int
    sizes: dict[str, int]


def read_sink_log(files: Files, output: str) -> SinkLog | None:
    """Reads the log of Spark's file sink; returns None without one. Raises ConfigError if it is damaged."""
    folder = f"{output}/{LOG}"
    if not files.exists(folder):
        return None
    names = [name for name in files.list(folder) if name.removesuffix(COMPACT).isdigit()]
    compacted = max((_number(name) for name in names if name.endswith(COMPACT)), default=-1)
    sizes: dict[str, int] = {}
    last = -1
    for name in sorted(names, key=_number):
        number = _number(name)
        if number < compacted or (number == compacted and not name.endswith(COMPACT)):
            continue
        path = f"{folder}/{name}"
        try:
            for line in files.read(path).decode().splitlines()[1:]:
                entry = json.loads(line)
                sizes[entry["path"].rpartition("/")[2]] = int(entry["size"])
        except (ValueError, KeyError, TypeError) as problem:
            raise ConfigError(
                f"{path} is damaged ({fault_of(problem)}): restore it from a backup, or load into a "
                "new output with a new checkpoint"
            ) from None
        last = max(last, number)
    return SinkLog(last, sizes)


def migrate(files: Files, table: TableFolder, output: str, checkpoint: str) -> int | None:
    """Migrates a table of Spark's file sink; returns the number of removed files.

    Returns None if ``output`` is not such a table. Raises ConfigError for files that Spark did not write.
    """
    log = read_sink_log(files, output)
    if log is None:
        return None
    unlisted = list(_unlisted(files, output, log))
    foreign = [path for path in unlisted if OF_SPARK.fullmatch(path.rpartition("/")[2]) is None]
    if foreign:
        raise ConfigError(
            f"{output} was loaded by an earlier release, whose list of files does not name {foreign[0]}"
            f"{f' and {len(foreign) - 1} more' if foreign[1:] else ''}: move files that are not of the load "
            "out of the folder, and start again"
        )
    for path in unlisted:
        files.remove(path)
    # Step 3 removes the log: a file that reappeared after a power cut would then be valid.
    for folder in sorted({os.path.dirname(path) for path in unlisted}):
        files.sync_directory(folder)
    table.adopt(query_of(files, checkpoint), log.batch if log.batch >= 0 else None)
    kept = f"{output}/{KEPT_LOG}"
    if files.exists(kept):
        remove_tree(files, kept)
    files.rename(f"{output}/{LOG}", kept)
    files.sync_directory(output)
    files.sync_directory(f"{output}/{FOLDER}")
    return len(unlisted)


def _unlisted(files: Files, output: str, log: SinkLog) -> Iterator[str]:
    for folder in files.list(output):
        if not folder.startswith(PARTITION):
            continue
        for name in files.list(f"{output}/{folder}"):
            if name.endswith(SUFFIX) and not name.startswith((".", "_")) and name not in log.sizes:
                yield f"{output}/{folder}/{name}"


def _number(name: str) -> int:
    return int(name.removesuffix(COMPACT))
