"""Checks a job before Spark starts, since a start takes half a minute.

Spark repeats most checks, with its own messages.
"""

from __future__ import annotations

import os
import re
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from tidemill.log.system_files import SystemFiles
from tidemill.model.errors import ConfigError
from tidemill.model.similar_names import did_you_mean
from tidemill.pipeline.client_pool import open_for_planning
from tidemill.pipeline.jobs.file_sink_migration import read_sink_log
from tidemill.pipeline.jobs.publish_files import check_files, check_not_empty
from tidemill.pipeline.jobs.schema import Plain, Struct, parse_schema
from tidemill.pipeline.jobs.table_folder import query_of, read_manifest
from tidemill.pipeline.jobs.transforms import EVENT_DATE, columns_of
from tidemill.pipeline.offset_ranges import select_topics
from tidemill.pipeline.options import SourceOptions
from tidemill.pipeline.sink_options import SinkOptions, parse_sink_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidemill.pipeline.jobs.publish import PublishJob

AVAILABLE_NOW = "available-now"

MASTER = re.compile(
    r"local(\[(\d+|\*)(,\s*\d+)?\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]|yarn|k8s://.+"
    r"|spark://[^\s:,/]+:\d+(,[^\s:,/]+:\d+)*"
)
"""Spark's master URLs (``SparkMasterRegex``, ``SparkContext.createTaskScheduler``)."""
MASTER_TIMEOUT_S = 3
MOMENTS = ("timestamp", "timestamp_ntz", "date", "string")
"""Types whose values have a date; a number has no unit."""

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
"""Names that Java resolves in addition to the time zone database (``java.time.ZoneId.SHORT_IDS``)."""


def check_fields(schema: Struct) -> None:
    """Raises ConfigError for a field with the name of a column that the load adds."""
    added = {name.lower() for name in (*columns_of(Struct(())), EVENT_DATE)}
    for name, _ in schema.fields:
        if name.lower() in added:
            raise ConfigError(
                f"the schema has a field {name}, and the load adds a column of that name: omit it; a "
                "value with such a field keeps its raw value"
            )


def check_event_time(column: str, schema: Struct | None) -> None:
    """Raises ConfigError for an event time that is not a column, or not of a type with a date."""
    moments = {"kafka_timestamp"}
    fields = schema.fields if schema is not None else ()
    moments |= {name for name, kind in fields if isinstance(kind, Plain) and kind.name in MOMENTS}
    if column in moments:
        return
    can_be = ", ".join(sorted(moments))
    if column not in columns_of(schema):
        hint = did_you_mean(column, moments) or "."
        missing = "" if schema is not None else ", and without a schema there are no fields"
        raise ConfigError(f"the event time {column} is not a column{missing}{hint} It can be {can_be}")
    raise ConfigError(
        f"the event time {column} is not a timestamp, date or text, so that its date is unknown: it can "
        f"be {can_be}"
    )


def check_master(master: str) -> None:
    """Raises ConfigError for an unknown master, or one that cannot be reached."""
    if os.environ.get("SPARK_REMOTE"):
        raise ConfigError(
            "SPARK_REMOTE is set, but jobs need their own Spark session, not Spark Connect: unset it, and "
            "set the cluster with --master"
        )
    master = os.environ.get("MASTER", master)
    if MASTER.fullmatch(master) is None:
        raise ConfigError(
            f"master {master!r} is unknown: local[*], local[4], spark://HOST:PORT, yarn and "
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
            problems.append(f"{address}: it is not a host name")
        except (OSError, OverflowError) as problem:
            problems.append(f"{address}: {getattr(problem, 'strerror', None) or problem}")
        else:
            return
    raise ConfigError(
        f"the master cannot be reached ({'; '.join(problems)}): start it, or run on this machine with "
        "--master 'local[*]'"
    )


def check_publish(job: PublishJob, paths: Sequence[str], form: str = "csv") -> SinkOptions:
    """Returns the sink options of a publication. Raises ConfigError; asks no broker."""
    options = parse_sink_options({**job.sink, "topic": job.topic}, streaming=False)
    if job.schema is not None and form != "csv":
        raise ConfigError(f"a schema is for CSV: files of the format {form} contain their types")
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
    """Raises ConfigError for a topic that does not exist.

    Does not check a load that continues: its own errors describe its topics better.
    """
    if not (Path(local_path(checkpoint)) / "offsets").exists():
        with open_for_planning(options.client) as cluster:
            select_topics(cluster, options, strict=True)


def check_trigger(text: str) -> None:
    """Raises ConfigError unless the text is ``available-now`` or an interval of Spark."""
    if text != AVAILABLE_NOW and INTERVAL.fullmatch(text) is None:
        raise ConfigError(
            f"trigger {text!r}: {AVAILABLE_NOW} is allowed, or an interval of weeks to microseconds in "
            'words, such as "10 seconds" or "1 minute 30 seconds"'
        )


def check_time_zone(zone: str | None) -> None:
    """Raises ConfigError for a time zone that is neither in the database nor known to Java."""
    if zone is None or zone in ZONE_SHORT or zone.startswith("SystemV/"):
        return
    if zone and ZONE_OFFSET.fullmatch(zone) is not None:
        return
    import zoneinfo

    known = zoneinfo.available_timezones()
    if zone in known or not known:  # without a database, Spark decides
        return
    hint = did_you_mean(zone, known) or "."
    raise ConfigError(
        f"time zone {zone!r} is unknown{hint} Names like America/New_York and offsets like +01:00 are allowed"
    )


def check_folder(description: str, path: str) -> None:
    """Raises ConfigError for a local folder that cannot be written."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"the {description} {path} is a file: set an existing folder, or one to be created")
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not there.is_dir():
        raise ConfigError(f"the {description} {path} cannot be created: {there} is a file")
    try:
        # Permissions are not enough: /proc, a read-only mount and a full disk accept no folder.
        tempfile.TemporaryDirectory(prefix=".tidemill-", dir=there).cleanup()
    except OSError as problem:
        raise ConfigError(
            f"the {description} {path} cannot be written: {there}: {problem.strerror}; set another"
        ) from None


def check_pair(output: str, checkpoint: str) -> None:
    """Checks that output and checkpoint belong together, and that the output has no other files.

    Raises ConfigError, ManifestDamaged.
    """
    if Path(output) == Path(checkpoint) or Path(output) in Path(checkpoint).parents:
        raise ConfigError(
            f"the checkpoint {checkpoint} is in the output {output}, where readers would find its files: "
            "set one beside it. An existing one can be moved"
        )
    files = SystemFiles()
    manifest, log = read_manifest(files, output), read_sink_log(files, output)
    known = (Path(checkpoint) / "offsets").exists()
    query = query_of(files, checkpoint)
    if (manifest is not None or log is not None) and (
        not known or (manifest is not None and manifest.query != query)
    ):
        raise ConfigError(
            f"the output {output} was loaded with another checkpoint than {checkpoint}: rows would be "
            "duplicated. Set the checkpoint that belongs to it, or remove the output as well to start clean"
        )
    if manifest is not None or log is not None:
        return
    if known and any((Path(checkpoint) / "commits").glob("[0-9]*")):
        raise ConfigError(
            f"the checkpoint {checkpoint} has loaded messages into another output than {output}: they "
            "would be missing here. Set that output, or remove the checkpoint as well to start clean"
        )
    foreign = _foreign_file(Path(output))
    if foreign is not None:
        raise ConfigError(
            f"the output {output} has files that no load has written ({foreign}): readers would read "
            "them as part of the table. Set another output, or move them away"
        )


def _foreign_file(output: Path) -> Path | None:
    """Returns a file that readers of a table in ``output`` would read as part of it.

    Spark and Arrow read every file whose path has no part that begins with a dot or an underscore, DuckDB
    every file with Parquet's suffix.
    """
    for path in output.rglob("*"):
        hidden = any(part.startswith((".", "_")) for part in path.relative_to(output).parts)
        if (path.suffix == ".parquet" or not hidden) and not path.is_dir():
            return path
    return None


def local_path(path: str, description: str = "folder") -> str:
    """Returns the absolute path of a local folder. Raises ConfigError for a URL of another store.

    A load makes a file visible by renaming it, which an object store does by copying.
    """
    if not path.strip():
        raise ConfigError(f"the {description} is empty: set a folder")
    if path.startswith("file:"):
        path = unquote(urlsplit(path).path)
    elif not is_local(path):
        raise ConfigError(
            f"the {description} {path} is on {urlsplit(path).scheme}: load writes to file systems of this "
            "machine, including mounted ones, because it needs a cheap rename. For an object store write "
            "a table format, Delta "
            'Lake or Apache Iceberg, from a query with format("tidemill"): see docs/pipeline.md'
        )
    return os.path.abspath(path)


def is_local(path: str) -> bool:
    """Whether a path is local and not a URL."""
    return re.match(r"[a-zA-Z][\w+.-]*:", path) is None
