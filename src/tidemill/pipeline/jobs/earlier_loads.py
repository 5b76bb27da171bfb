"""Checks that a load continues with the topics and the schema of the earlier loads into its output.

The checkpoint has the offsets of each micro-batch, and therefore the topics. Spark writes the columns of a
table into the footer of each Parquet file. Both are therefore known without a file of their own.

==========================================  =========================================================
file                                        content
==========================================  =========================================================
CHECKPOINT/offsets/BATCH                    a line with the version, a line with settings, a line with
                                            the offsets (:mod:`tidemill.pipeline.stream_offsets`)
``org.apache.spark.sql.parquet.row``        the columns as JSON of Spark (``StructType.json``): a key of the
``.metadata`` in a footer                   metadata
==========================================  =========================================================

A file of another program has no such metadata, and is skipped. Spark reports a damaged checkpoint itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tidemill.log.system_files import SystemFiles
from tidemill.model.errors import ConfigError
from tidemill.model.types import TopicPartition
from tidemill.pipeline.jobs.load_manifest import STAGING
from tidemill.pipeline.jobs.schema import Array, Kind, Map, Struct, parse_schema, type_text
from tidemill.pipeline.jobs.table_folder import PARTITION, SUFFIX, read_manifest
from tidemill.pipeline.jobs.transforms import columns_of
from tidemill.pipeline.options import SourceOptions
from tidemill.pipeline.stream_offsets import StreamPosition, describe_partitions, parse_position

COLUMNS = b"org.apache.spark.sql.parquet.row.metadata"
NEW_OUTPUT = "or load into a new output with a new checkpoint"


def check_same_topics(options: SourceOptions, output: str, checkpoint: str) -> None:
    """Raises ConfigError if the load does not read a partition that is in the output.

    A load may read more topics than the earlier loads.
    """
    loaded = last_position(Path(checkpoint)).offsets()
    omitted = {place.topic for place in loaded if not _reads(options, place)}
    if omitted:
        topics = ", ".join(sorted(omitted))
        raise ConfigError(
            f"the output {output} was loaded from {topics}, and this load reads {_selection(options)}: "
            f"include {topics}, {NEW_OUTPUT}"
        )


def check_same_schema(schema: Struct | None, output: str, checkpoint: str) -> None:
    """Raises ConfigError if the files of the output have other columns than a load with ``schema`` writes.

    The order of the columns may differ.
    """
    stored, written = _stored_columns(output, checkpoint), columns_of(schema)
    if stored is None:
        return
    different = [name for name in {**stored, **written} if stored.get(name) != written.get(name)]
    if different:
        raise ConfigError(
            f"the files of the output {output} have {_shown(different, stored)}, and this load writes "
            f"{_shown(different, written)}: set the schema of the output, {NEW_OUTPUT}"
        )


def _reads(options: SourceOptions, partition: TopicPartition) -> bool:
    if options.pattern is not None:
        return re.fullmatch(options.pattern, partition.topic) is not None
    return partition.topic in options.topics or partition in options.assigned


def _selection(options: SourceOptions) -> str:
    if options.pattern is not None:
        return f"topics that match {options.pattern}"
    return ", ".join(options.topics) or describe_partitions(options.assigned)


def batches_in(log: Path) -> list[int]:
    """Returns the micro-batches in a log of a checkpoint (``offsets``, ``commits``), in order."""
    return sorted(int(path.name) for path in log.glob("*") if path.name.isdigit())


def position_after(checkpoint: Path, batch: int) -> StreamPosition:
    """Returns the planned end of a micro-batch. Raises OSError, ValueError and IndexError."""
    return parse_position(json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[2]))


def last_position(checkpoint: Path) -> StreamPosition:
    """Returns the position after the last micro-batch; an empty one if there is none that can be read."""
    try:
        return position_after(checkpoint, batches_in(checkpoint / "offsets")[-1])
    except (IndexError, ValueError):
        return StreamPosition({})


def _stored_columns(output: str, checkpoint: str) -> dict[str, Kind] | None:
    """Returns the columns of a file of the table, preferably of the last micro-batch; None without a file.

    The event date is not in the files, but in the names of their folders.
    """
    import pyarrow.parquet

    for path in _files(output, checkpoint):
        try:
            columns = (pyarrow.parquet.read_schema(path).metadata or {})[COLUMNS]
            return dict(_fields(json.loads(columns)))
        except (OSError, KeyError, ValueError):  # moved or removed, of another program, damaged
            continue
    return None


def _files(output: str, checkpoint: str) -> Iterator[Path]:
    manifest = read_manifest(SystemFiles(), output)
    if manifest is not None:
        for file in manifest.files:
            yield Path(output, file.name)
            yield Path(checkpoint, STAGING, manifest.staging or "", file.staged)
    yield from sorted(Path(output).glob(f"{PARTITION}*/*{SUFFIX}"))


def _fields(columns: Mapping[str, Any]) -> tuple[tuple[str, Kind], ...]:
    return tuple((field["name"], _kind(field["type"])) for field in columns["fields"])


def _kind(described: Any) -> Kind:
    """Returns the type that Spark describes as JSON: a name in DDL, or an object for a type with parts."""
    if isinstance(described, str):
        return parse_schema(f"x {described}").fields[0][1]
    if described["type"] == "array":
        return Array(_kind(described["elementType"]))
    if described["type"] == "map":
        return Map(_kind(described["keyType"]), _kind(described["valueType"]))
    return Struct(_fields(described))


def _shown(names: list[str], columns: Mapping[str, Kind]) -> str:
    there = ", ".join(f"{name} {type_text(columns[name])}" for name in names if name in columns)
    return there or f"no column {', '.join(names)}"
