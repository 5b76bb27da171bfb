"""``python -m tidemill.pipeline.demo``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from tidemill.model.errors import TidemillError


@click.command()
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo"),
    show_default=True,
    help="Where data, tables and the report go; emptied at the start.",
)
@click.option(
    "--bootstrap-server",
    default=lambda: os.environ.get("TIDEMILL_DEMO_BOOTSTRAP"),
    help="A cluster that is there, instead of a broker of the demo's own (also TIDEMILL_DEMO_BOOTSTRAP).",
)
@click.option("--limit", type=click.IntRange(1000), help="Rows of each file, at most.  [default: all]")
def main(directory: Path, bootstrap_server: str | None, limit: int | None) -> None:
    """Publishes the flights of 2013, loads them with Spark, checks everything, and writes a report."""
    try:
        sys.exit(_run(directory, bootstrap_server, limit))
    except TidemillError as problem:
        click.echo(f"tidemill: {problem}", err=True)
        sys.exit(1)


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
