"""What is wrong with a job, as far as that can be known before Spark is started: it takes seconds to come up.

Spark checks most of it again, in words of its own.
"""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.model.errors import ConfigError
from tidemill.pipeline.connect import open_cluster
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
    for what, path in (("output", job.output), ("checkpoint", job.checkpoint)):
        check_folder(what, path)
    check_pair(job.output, job.checkpoint)
    return options


def check_publish(job: PublishJob, paths: Sequence[str]) -> SinkOptions:
    """The options of a publication's sink. Raises ConfigError for what cannot be used; asks no broker."""
    options = parse_sink_options({**job.sink, "topic": job.topic})
    for path in paths:
        if is_local(path) and not os.path.exists(path) and not glob.glob(path):
            raise ConfigError(
                f"there is no file {path}: give files or folders to publish, or patterns as *.csv"
            )
    return options


def check_topics_to_load(options: SourceOptions, checkpoint: str) -> None:
    """Raises ConfigError for a topic that is not there.

    A load that goes on is left alone: what became of its topics, its own errors tell better.
    """
    if is_local(checkpoint) and not (Path(checkpoint) / "offsets").exists():
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
    import difflib
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
    """Raises ConfigError for a local folder that cannot be written."""
    if not is_local(path):
        return
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"the {what} {path} is a file: give a folder, or the name of one to be made")
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    if not there.is_dir():
        raise ConfigError(f"the {what} {path} cannot be made: {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"the {what} {path} cannot be written: {there} does not let you; give another")


def check_pair(output: str, checkpoint: str) -> None:
    """Refuses an output without its checkpoint, and the other way round (local paths only).

    With a new checkpoint batch numbers begin at 0 again; the file sink has those, and drops their rows.
    """
    if not is_local(output) or not is_local(checkpoint):
        return
    written = (Path(output) / "_spark_metadata").exists()
    known = (Path(checkpoint) / "offsets").exists()
    if written and not known:
        raise ConfigError(
            f"the output {output} was loaded with another checkpoint than {checkpoint}: Spark would drop "
            "rows silently. Give the checkpoint that belongs to it, or remove the output as well to start "
            "clean"
        )
    if known and not written and any((Path(checkpoint) / "commits").glob("[0-9]*")):
        raise ConfigError(
            f"the checkpoint {checkpoint} has loaded messages into another output than {output}: they "
            "would be missing here. Give that output, or remove the checkpoint as well to start clean"
        )


def is_local(path: str) -> bool:
    """Whether a path is one of this machine, and no URL."""
    return re.match(r"[a-zA-Z][\w+.-]*:", path) is None


def _patient(client: Mapping[str, str]) -> dict[str, str]:
    return {"default.api.timeout.ms": str(LOOK_TIMEOUT_MS), **client}
