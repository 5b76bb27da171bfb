"""Checks a job before Spark starts, which takes half a minute.

Spark checks most of it again, and reports it in its own words.
"""

from __future__ import annotations

import difflib
import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from tidemill.log.files import SystemFiles
from tidemill.model.errors import ConfigError
from tidemill.pipeline.connect import open_cluster
from tidemill.pipeline.jobs.file_sink_migration import read_sink_log
from tidemill.pipeline.jobs.publish_files import check_files, check_not_empty
from tidemill.pipeline.jobs.schema import Plain, Struct, parse_schema
from tidemill.pipeline.jobs.table_folder import query_of, read_manifest
from tidemill.pipeline.jobs.transforms import EVENT_DATE, columns_of
from tidemill.pipeline.options import (
    SinkOptions,
    SourceOptions,
    parse_sink_options,
    parse_source_options,
)
from tidemill.pipeline.targets import select_topics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tidemill.pipeline.jobs.load import LoadJob
    from tidemill.pipeline.jobs.publish import PublishJob

AVAILABLE_NOW = "available-now"

LOOK_TIMEOUT_MS = 15_000
"""How long the look at the topics may take."""

MASTER = re.compile(
    r"local(\[(\d+|\*)(,\s*\d+)?\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]|yarn|k8s://.+"
    r"|spark://[^\s:,/]+:\d+(,[^\s:,/]+:\d+)*"
)
"""Where Spark can run (``SparkMasterRegex``, ``SparkContext.createTaskScheduler``)."""
MASTER_TIMEOUT_S = 3
MOMENTS = ("timestamp", "timestamp_ntz", "date", "string")
"""Types whose values have a date; a number does not say its unit."""

NUMBER = r"[+]?(\d+(\.\d*)?|\.\d+)"
UNIT = r"(microsecond|millisecond|second|minute|hour|day|week)s?"
INTERVAL = re.compile(rf"\s*(interval\s+)?{NUMBER}\s+{UNIT}(\s+{NUMBER}\s+{UNIT})*\s*", re.IGNORECASE)
"""Spark's intervals (``IntervalUtils.stringToInterval``) without months and years, which triggers refuse."""

ZONE_OFFSET = re.compile(r"(UTC|GMT|UT)?([+-](0?\d|1[0-8])(:[0-5]\d(:[0-5]\d)?)?)?|Z")
# fmt: off
ZONE_SHORT = frozenset((
    "ACT", "AET", "AGT", "ART", "AST", "BET", "BST", "CAT", "CNT", "CST", "CTT", "EAT", "ECT", "EST", "HST",
    "IET", "IST", "JST", "MIT", "MST", "NET", "NST", "PLT", "PNT", "PRT", "PST", "SST", "VST",
))
# fmt: on
"""Names that Java resolves beside those of the time zone database (``java.time.ZoneId.SHORT_IDS``)."""


def source_of(job: LoadJob) -> dict[str, str]:
    """The options of a load's source: its start is ``earliest`` where the job names none."""
    source = {"startingOffsets": "earliest", **job.source}
    names = {name.lower() for name in job.source}
    if names & {"startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"}:
        source = dict(job.source)
    return source


def check_load(job: LoadJob) -> SourceOptions:
    """The options of a load's source. Raises ConfigError for what cannot be used; asks no broker."""
    options = parse_source_options(source_of(job), streaming=True)
    check_trigger(job.trigger)
    check_time_zone(job.time_zone)
    schema = None if job.schema is None else parse_schema(job.schema)
    if schema is not None:
        check_fields(schema)
    if job.transform is None:  # which may make columns of its own
        check_event_time(job.event_time, schema)
    for what, path in (("output", job.output), ("checkpoint", job.checkpoint)):
        check_folder(what, local_path(path, what))
    check_pair(local_path(job.output), local_path(job.checkpoint))
    return options


def check_fields(schema: Struct) -> None:
    """Raises ConfigError for a field that has the name of a column which the load adds."""
    added = {name.lower() for name in (*columns_of(Struct(())), EVENT_DATE)}
    for name, _ in schema.fields:
        if name.lower() in added:
            raise ConfigError(
                f"the schema has a field {name}, and the load adds a column of that name: leave it out; a "
                "value with such a field keeps its raw value"
            )


def check_event_time(column: str, schema: Struct | None) -> None:
    """Raises ConfigError for an event time that is no column, or none that can be a moment."""
    moments = {"kafka_timestamp"}
    fields = schema.fields if schema is not None else ()
    moments |= {name for name, kind in fields if isinstance(kind, Plain) and kind.name in MOMENTS}
    if column in moments:
        return
    can_be = ", ".join(sorted(moments))
    if column not in columns_of(schema):
        near = difflib.get_close_matches(column, moments, 1, 0.6)
        hint = f"; did you mean {near[0]}?" if near else "."
        missing = "" if schema is not None else ", and without a schema there are no fields"
        raise ConfigError(f"the event time {column} is no column{missing}{hint} It can be {can_be}")
    raise ConfigError(
        f"the event time {column} is no timestamp, date or text, so that its date is not known: it can be "
        f"{can_be}"
    )


def check_master(master: str) -> None:
    """Raises ConfigError for a master that Spark does not know, and for one that cannot be reached."""
    if os.environ.get("SPARK_REMOTE"):
        raise ConfigError(
            "SPARK_REMOTE is set, and jobs need a Spark of their own, not Spark Connect: unset it, and name "
            "the cluster with --master"
        )
    master = os.environ.get("MASTER", master)
    if MASTER.fullmatch(master) is None:
        raise ConfigError(
            f"master {master!r} is not known: local[*], local[4], spark://HOST:PORT, yarn and "
            "k8s://https://HOST:PORT are allowed"
        )
    if master == "yarn" and not {"HADOOP_CONF_DIR", "YARN_CONF_DIR"} & os.environ.keys():
        raise ConfigError("master yarn needs HADOOP_CONF_DIR: set it to the folder of Hadoop's configuration")
    if master.startswith("spark://"):
        _check_reachable(master)


def _check_reachable(master: str) -> None:
    problems = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), MASTER_TIMEOUT_S).close()
        except UnicodeError:
            problems.append(f"{address}: it is no host name")
        except (OSError, OverflowError) as problem:
            problems.append(f"{address}: {getattr(problem, 'strerror', None) or problem}")
        else:
            return
    raise ConfigError(
        f"the master cannot be reached ({'; '.join(problems)}): start it, or run on this machine with "
        "--master 'local[*]'"
    )


def check_publish(job: PublishJob, paths: Sequence[str], form: str = "csv") -> SinkOptions:
    """The options of a publication's sink. Raises ConfigError for what cannot be used; asks no broker."""
    options = parse_sink_options({**job.sink, "topic": job.topic})
    if job.schema is not None and form != "csv":
        raise ConfigError(f"a schema is for CSV: files of the format {form} name their types themselves")
    wanted = {"key": job.key, "timestamp": job.timestamp}
    local = [path for path in paths if is_local(path)]
    check_files(
        local,
        form,
        job.reader,
        {
            **{what: name for what, name in wanted.items() if name},
            **{f"field {name}": name for name in job.fields},
        },
        None if job.schema is None else parse_schema(job.schema),
    )
    if len(local) == len(paths):
        check_not_empty(local)
    return options


def check_topics_to_load(options: SourceOptions, checkpoint: str) -> None:
    """Raises ConfigError for a topic that is not there.

    A load that goes on is left alone: what became of its topics, its own errors tell better.
    """
    if not (Path(local_path(checkpoint)) / "offsets").exists():
        with open_cluster(_patient(options.client)) as cluster:
            select_topics(cluster, options, strict=True)


def check_topic_to_write(options: SinkOptions) -> None:
    """Raises ConfigError when the topic is not there."""
    if options.topic is None:
        return
    with open_cluster(_patient(options.client)) as cluster:
        if options.topic not in cluster.describe([options.topic]):
            raise ConfigError(
                f"there is no topic {options.topic} at {options.bootstrap}: make it with tidemill topic "
                f"create {options.topic}"
            )


def check_trigger(text: str) -> None:
    """Raises ConfigError for neither ``available-now`` nor an interval of Spark's."""
    if text != AVAILABLE_NOW and INTERVAL.fullmatch(text) is None:
        raise ConfigError(
            f"trigger {text!r}: {AVAILABLE_NOW} is allowed, or an interval of weeks to microseconds in "
            'words, as "10 seconds" or "1 minute 30 seconds"'
        )


def check_time_zone(zone: str | None) -> None:
    """Raises ConfigError for a time zone that neither the database nor Java knows."""
    if zone is None or zone in ZONE_SHORT or zone.startswith("SystemV/"):
        return
    if zone and ZONE_OFFSET.fullmatch(zone) is not None:
        return
    import zoneinfo

    known = zoneinfo.available_timezones()
    if zone in known or not known:  # without a database Spark is the judge
        return
    lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(zone.lower(), lower, n=1, cutoff=0.7)
    hint = f"; did you mean {lower[near[0]]}?" if near else "."
    raise ConfigError(
        f"time zone {zone!r} is not known{hint} Names as America/New_York and offsets as +01:00 are allowed"
    )


def check_folder(what: str, path: str) -> None:
    """Raises ConfigError for a folder of this machine that cannot be written."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"the {what} {path} is a file: give a folder, or the name of one to be made")
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    if not there.is_dir():
        raise ConfigError(f"the {what} {path} cannot be made: {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"the {what} {path} cannot be written: {there} does not let you; give another")


def check_pair(output: str, checkpoint: str) -> None:
    """Refuses an output without its checkpoint, and the other way round, and files of somebody else.

    Raises ConfigError, ManifestDamaged.
    """
    if Path(output) == Path(checkpoint) or Path(output) in Path(checkpoint).parents:
        raise ConfigError(
            f"the checkpoint {checkpoint} lies in the output {output}, where readers would find its files: "
            "give one beside it. One that is there already can be moved"
        )
    files = SystemFiles()
    manifest, log = read_manifest(files, output), read_sink_log(files, output)
    known = (Path(checkpoint) / "offsets").exists()
    query = query_of(files, checkpoint)
    if (manifest is not None or log is not None) and (
        not known or (manifest is not None and manifest.query != query)
    ):
        raise ConfigError(
            f"the output {output} was loaded with another checkpoint than {checkpoint}: rows would be there "
            "twice. Give the checkpoint that belongs to it, or remove the output as well to start clean"
        )
    if manifest is not None or log is not None:
        return
    if known and any((Path(checkpoint) / "commits").glob("[0-9]*")):
        raise ConfigError(
            f"the checkpoint {checkpoint} has loaded messages into another output than {output}: they "
            "would be missing here. Give that output, or remove the checkpoint as well to start clean"
        )
    strange = _strange_file(Path(output))
    if strange is not None:
        raise ConfigError(
            f"the output {output} has files that no load has written ({strange}): readers would take "
            "them for rows of it. Give another output, or move them away"
        )


def _strange_file(output: Path) -> Path | None:
    """A file that readers of a table in ``output`` would try to read as a part of it.

    Spark and Arrow read every file but those behind a dot or an underscore, DuckDB all with Parquet's suffix.
    """
    for path in output.rglob("*"):
        hidden = any(part.startswith((".", "_")) for part in path.relative_to(output).parts)
        if (path.suffix == ".parquet" or not hidden) and not path.is_dir():
            return path
    return None


def local_path(path: str, what: str = "folder") -> str:
    """The absolute path of a folder of this machine. Raises ConfigError for a URL of another store.

    A file becomes visible by being renamed, which an object store does by copying it.
    """
    if not path.strip():
        raise ConfigError(f"the {what} is empty: name a folder")
    if path.startswith("file:"):
        path = unquote(urlsplit(path).path)
    elif not is_local(path):
        raise ConfigError(
            f"the {what} {path} is on {urlsplit(path).scheme}: load writes to file systems of this "
            "machine, also mounted ones, because it needs a cheap rename. For an object store write a "
            "table format, Delta "
            'Lake or Apache Iceberg, from a query with format("tidemill"): see docs/pipeline.md'
        )
    return os.path.abspath(path)


def is_local(path: str) -> bool:
    """Whether a path is one of this machine, and no URL."""
    return re.match(r"[a-zA-Z][\w+.-]*:", path) is None


def _patient(client: Mapping[str, str]) -> dict[str, str]:
    return {"default.api.timeout.ms": str(LOOK_TIMEOUT_MS), **client}
