"""The Spark session of a command: its options, its start, and its errors as one line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

from tidemill.cli.options import F, pairs
from tidemill.model.errors import ConfigError, TidemillError


def session_options(function: F) -> F:
    """Adds the options that every job has."""
    for decorate in (
        click.option("--master", default="local[*]", show_default=True, help="Master URL of Spark."),
        click.option(
            "--conf", multiple=True, metavar="KEY=VALUE", help="Set a Spark setting; can be repeated."
        ),
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, for programs."),
        click.option(
            "-v",
            "--verbose",
            is_flag=True,
            help="Show the output of Spark, and the stack trace of a failure.",
        ),
    ):
        function = decorate(function)
    return function


@contextmanager
def wrong_usage() -> Iterator[None]:
    """Converts ConfigError of the checks before a job to UsageError."""
    try:
        yield
    except ConfigError as problem:
        raise click.UsageError(str(problem)) from None


def with_spark(
    given: dict[str, Any], work: Callable[[Any], Any], on_interrupt: Callable[[], object] | None = None
) -> Any:
    """Runs ``work`` with a session. A failure in Spark becomes one line, and a stack trace if asked.

    ``given`` has the values of :func:`session_options`. ``on_interrupt`` is called before an interrupt ends
    the queries.
    """
    from tidemill.pipeline.java import require_java
    from tidemill.pipeline.jobs.session import interruptible
    from tidemill.pipeline.spark_errors import explained

    require_java()
    spark = _started(given)
    try:
        return interruptible(spark, lambda: work(spark), on_interrupt)
    except (TidemillError, OSError, click.ClickException):
        _show_trace(given)
        raise
    except Exception as problem:  # noqa: BLE001 - of Spark, Java or Python workers; printed as one line
        _show_trace(given)
        raise click.ClickException(explained(problem) + _next_step(given)) from None
    finally:
        with suppress(OSError):
            spark.stop()


def _started(given: dict[str, Any]) -> Any:
    """Returns a session that prints nothing, or with --verbose everything."""
    from tidemill.pipeline.jobs import session
    from tidemill.pipeline.spark_errors import start_failure

    settings = pairs("--conf", given["conf"])
    if given["verbose"]:
        spark = session.local_session("tidemill pipeline", master=given["master"], settings=settings)
        spark.sparkContext.setLogLevel("WARN")
        return spark
    with session.java_output_kept() as output:
        try:
            spark = session.local_session("tidemill pipeline", master=given["master"], settings=settings)
        except (TidemillError, ImportError):
            raise
        except Exception as problem:  # noqa: BLE001 - as above
            raise click.ClickException(start_failure(problem, output.text) + _next_step(given)) from None
    # Failures come back as exceptions; the log would repeat them as stack traces.
    spark.sparkContext.setLogLevel("OFF")
    output.forward()
    return spark


def _next_step(given: dict[str, Any]) -> str:
    return "" if given["verbose"] else ". The same command with --verbose shows the output of Spark"


def _show_trace(given: dict[str, Any]) -> None:
    if given["verbose"]:
        import traceback

        click.echo(traceback.format_exc(), err=True)


def print_result(as_json: bool, table: dict[str, Any], text: str) -> None:
    """Prints the result of a job, as JSON or as text."""
    click.echo(json.dumps(table) if as_json else text)
