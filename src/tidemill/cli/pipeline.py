"""``tidemill pipeline``: runs Spark jobs on topics."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli.mirror import mirror
from tidemill.cli.options import (
    F,
    Target,
    WholeNumber,
    bootstrap_option,
    brokers_of,
    client_file_option,
    client_settings,
    pairs,
)
from tidemill.cli.output import console, counted
from tidemill.cli.spark_session import print_result, session_options, with_spark, wrong_usage

if TYPE_CHECKING:
    from tidemill.pipeline.sink_options import ExactlyOnce


def _client_options(function: F) -> F:
    """Adds the options of a job with one cluster."""
    for decorate in (
        bootstrap_option,
        client_file_option,
        click.option(
            "--option",
            "extra",
            multiple=True,
            metavar="NAME=VALUE",
            help="Set an option of the format tidemill, as kafka.client.id=me; can be repeated.",
        ),
        session_options,
    ):
        function = decorate(function)
    return function


@click.group("pipeline")
def command() -> None:
    """Run Spark jobs: load topics into Parquet, publish files, mirror clusters.

    Needs the extra tidemill[pipeline] and a Java runtime of version 17 or later.
    """


command.add_command(mirror)


@command.command()
@_client_options
@click.option("-t", "--topic", "topics", multiple=True, help="Topic to load; can be repeated.")
@click.option("--pattern", help="Regular expression for whole topic names, instead of --topic.")
@click.option("-o", "--output", required=True, help="Directory of the Parquet files.")
@click.option("--checkpoint", help="Directory of Spark's checkpoint.  [default: OUTPUT.checkpoint]")
@click.option("--schema", help='JSON fields of the values, as DDL: "carrier string, delay double".')
@click.option(
    "--event-time",
    default="kafka_timestamp",
    show_default=True,
    help="Column whose local date is the event date, which names the directories.",
)
@click.option("--time-zone", help="Time zone of the event date, as America/New_York.  [default: local]")
@click.option(
    "--trigger",
    default="available-now",
    show_default=True,
    help='available-now loads existing messages and ends; an interval ("10 seconds") runs until ctrl-C.',
)
@click.option("--max-offsets", type=WholeNumber(1), help="Largest number of messages in a micro-batch.")
@click.option("--group", help="Consumer group whose committed offsets show the progress to lag tools.")
@click.option(
    "--tasks", type=WholeNumber(1), help="Number of tasks that write files.  [default: one per core]"
)
def load(**given: Any) -> None:
    """Load topics into Parquet, each message exactly once.

    The directories are named by event date. A second run with the same output and checkpoint continues where
    the first ended, also after a crash. A value that its fields cannot represent in full is kept unchanged in
    the column raw_value, and counted.

    \b
    tidemill pipeline load -t flights -o flights.parquet --time-zone America/New_York \\
        --schema "carrier string, dep_delay double"
    """
    from tidemill.pipeline.jobs.load import LoadJob, check_load
    from tidemill.pipeline.jobs.load import load as run
    from tidemill.pipeline.jobs.preflight_checks import check_master, check_topics_to_load

    source = _kafka_options(given)
    if named := {"subscribe", "subscribepattern", "assign"} & {name.lower() for name in source}:
        raise click.UsageError(f"--option {min(named)}: name topics with --topic or --pattern")
    source.update(_selection(given["topics"], given["pattern"]))
    if given["max_offsets"] is not None:
        source["maxOffsetsPerTrigger"] = str(given["max_offsets"])
    if given["group"] is not None:
        source.update({"kafka.group.id": given["group"], "commitOffsets": "true"})
    job = LoadJob(
        source=source,
        output=given["output"],
        checkpoint=given["checkpoint"] or given["output"].rstrip("/") + ".checkpoint",
        schema=given["schema"],
        event_time=given["event_time"],
        time_zone=given["time_zone"],
        trigger=given["trigger"],
        tasks=given["tasks"],
    )
    with wrong_usage():
        options = check_load(job)
        check_master(given["master"])
    Target(options.bootstrap, {}).check_reachable()
    check_topics_to_load(options, job.checkpoint)
    result = with_spark(given, lambda spark: _shown(given["as_json"], lambda tell: run(spark, job, tell)))
    count = len(result.batches)
    batches = counted(count, "micro-batch", "micro-batches")
    print_result(
        given["as_json"],
        {
            "rows": result.rows,
            "batches": count,
            "seconds": round(result.seconds, 3),
            "raw": dict(result.raw),
        },
        f"loaded {counted(result.rows, 'message')} in {batches}, {result.seconds:.1f} s",
    )
    _warn_of_raw_values(result.raw)


@command.command()
@_client_options
@click.argument("paths", nargs=-1, required=True)
@click.option("-t", "--topic", required=True, help="Topic to write to; it must exist.")
@click.option(
    "--format",
    "form",
    default="csv",
    show_default=True,
    type=click.Choice(["csv", "json", "parquet", "orc"]),
    help="Format of the files.",
)
@click.option("--key", help="Column of the message key; without it, messages are spread over the partitions.")
@click.option("--timestamp", help="Column of the message timestamp.  [default: now]")
@click.option(
    "--field", "fields", multiple=True, help="Column of the JSON value; can be repeated.  [default: all]"
)
@click.option("--schema", help='Types of CSV columns as DDL: "delay double".  [default: inferred]')
@click.option(
    "--read-option",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set an option of Spark's reader; can be repeated.",
)
def publish(**given: Any) -> None:
    """Publish CSV, JSON, Parquet or ORC files to a topic.

    Each row becomes one JSON message.

    \b
    tidemill pipeline publish flights.csv -t flights --key carrier --timestamp time_hour
    """
    from tidemill.pipeline.jobs.preflight_checks import check_master, check_publish
    from tidemill.pipeline.jobs.publish import PublishJob, read_files
    from tidemill.pipeline.jobs.publish import publish as run
    from tidemill.pipeline.sink_columns import refuse_missing_topic

    job = PublishJob(
        sink=_kafka_options(given),
        topic=given["topic"],
        key=given["key"],
        timestamp=given["timestamp"],
        fields=given["fields"],
        reader=pairs("--read-option", given["read_option"]),
        schema=given["schema"],
    )
    with wrong_usage():
        options = check_publish(job, given["paths"], given["form"])
        check_master(given["master"])
    Target(options.bootstrap, {}).check_reachable()
    refuse_missing_topic(options)
    result = with_spark(given, lambda spark: run(read_files(spark, given["paths"], given["form"], job), job))
    print_result(
        given["as_json"],
        {"rows": result.rows, "seconds": round(result.seconds, 3)},
        f"{_outcome(options.exactly_once, counted(result.rows, 'message'), given['topic'])},"
        f" {result.seconds:.1f} s",
    )


def _outcome(delivery: ExactlyOnce | None, messages: str, topic: str) -> str:
    """Returns what a publication has done; one with the ids of an earlier one adds nothing."""
    if delivery is None:
        return f"published {messages} to {topic}"
    return (
        f"{topic} has the {messages} of writeId={delivery.write_id}, batchId={delivery.batch_id}, each once"
    )


def _kafka_options(given: dict[str, Any]) -> dict[str, str]:
    """Returns options of the format ``tidemill``: those of ``--option`` override the keys of the file."""
    keys = client_settings(given["client_file"], ())
    keys["bootstrap.servers"] = brokers_of(click.get_current_context(), given["bootstrap"], keys)
    return {**{f"kafka.{name}": value for name, value in keys.items()}, **pairs("--option", given["extra"])}


def _selection(topics: tuple[str, ...], pattern: str | None) -> dict[str, str]:
    if bool(topics) == bool(pattern):
        raise click.UsageError("give either --topic or --pattern")
    return {"subscribe": ",".join(topics)} if topics else {"subscribePattern": str(pattern)}


def _warn_of_raw_values(raw: Mapping[str, int]) -> None:
    """Prints how many rows do not have all of their value in the fields, with the reasons."""
    if not raw:
        return
    from tidemill.pipeline.jobs.round_trip import REASONS

    reasons = "; ".join(f"{count:,}: {REASONS.get(code, code)}" for code, count in raw.items())
    click.echo(
        f"tidemill: {sum(raw.values()):,} messages contain more than their fields can hold, and are kept in "
        f"full in raw_value ({reasons})",
        err=True,
    )


def _shown(as_json: bool, work: Callable[[Any], Any]) -> Any:
    """Runs ``work`` with a line of progress on a terminal."""
    if as_json or not sys.stderr.isatty():
        return work(None)
    with console(error=True).status("starting") as status:
        return work(
            lambda seen: status.update(f"{seen.rows:,} messages, {seen.batches} micro-batches: {seen.state}")
        )
