"""``python -m tidemill.pipeline.demo``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from tidemill.model.errors import TidemillError
from tidemill.pipeline.demo.directory import DIRECTORY_VARIABLE

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@click.command()
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo"),
    show_default=True,
    envvar=DIRECTORY_VARIABLE,
    help=f"Folder of data, tables and the report; emptied at the start (also {DIRECTORY_VARIABLE}).",
)
@click.option(
    "--bootstrap-server",
    default=lambda: os.environ.get("TIDEMILL_DEMO_BOOTSTRAP"),
    help="An existing cluster, instead of the demo's own broker (also TIDEMILL_DEMO_BOOTSTRAP).",
)
@click.option("--limit", type=click.IntRange(1000), help="Rows of each file, at most.  [default: all]")
def main(directory: Path, bootstrap_server: str | None, limit: int | None) -> None:
    """Publishes the flights of 2013, loads them with Spark, checks everything, and writes a report."""
    for number in SIGNALS:
        # A SIGHUP that the parent process ignores (nohup) stays ignored.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        sys.exit(_run(directory, bootstrap_server, limit))
    except TidemillError as problem:
        click.echo(f"tidemill: {problem}", err=True)
        sys.exit(1)
    except Exception as problem:
        if os.environ.get("TIDEMILL_TRACEBACK"):
            raise
        from tidemill.pipeline.spark_errors import explained

        click.echo(
            f"tidemill: {explained(problem)}. The logs in {directory} have details; TIDEMILL_TRACEBACK=1 "
            "shows the trace",
            err=True,
        )
        sys.exit(1)


def stop(number: int, _: FrameType | None) -> NoReturn:
    """Ends the demo as ctrl-C does, and stops the processes it started. A second signal kills it at once."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    click.echo(f"tidemill: {signal.Signals(number).name}: stopping", err=True)
    sys.exit(128 + number)


def _run(directory: Path, bootstrap: str | None, limit: int | None) -> int:
    from tidemill.pipeline.java import require_java

    require_java()
    from tidemill.pipeline.demo.run import Demo
    from tidemill.pipeline.demo.show import Show

    show = Show()
    results = Demo(directory.absolute(), show, bootstrap, limit).run()
    show.summary(results, directory / "report.html")
    return 0 if results.passed else 1


if __name__ == "__main__":
    main()
