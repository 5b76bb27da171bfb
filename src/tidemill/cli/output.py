"""What commands print: tables and colours for people on a terminal, tabs for pipes, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tidemill.cli.records import for_terminal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

F = TypeVar("F", bound=Callable[..., Any])

_BREAKS = str.maketrans("\t\r\n", "   ")
"""What ends a cell or a line for programs; ids of clients and groups may have it in them."""


def json_option(function: F) -> F:
    """Adds ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(function)


def on_terminal() -> bool:
    """Whether a person reads standard output."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def console(*, error: bool = False) -> Console:
    """Rich's console on stdout, or on stderr."""
    from rich.console import Console

    return Console(stderr=error, highlight=False)


def bytes_bar(what: str, *more: str) -> Progress:
    """A bar on stderr that counts bytes, and goes when it has ended; ``more`` are texts beside it."""
    from rich import progress

    return progress.Progress(
        progress.TextColumn(what),
        progress.BarColumn(),
        *map(progress.TextColumn, more),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=console(error=True),
        transient=True,
    )


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    right: Sequence[str] = (),
    empty: str = "nothing there",
) -> None:
    """``rows`` under ``columns``: a table on a terminal, lines with tabs (and a head line) elsewhere.

    ``right`` names the columns of numbers. ``empty`` is said on a terminal when there are no rows.
    """
    listed = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if not on_terminal():
        click.echo("\t".join(columns))
        for row in listed:
            click.echo("\t".join(cell.translate(_BREAKS) for cell in row))
        return
    if not listed:
        click.secho(empty, dim=True)
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
    )
    for column in columns:
        is_right = column in right
        table.add_column(
            column, justify="right" if is_right else "left", overflow="fold", header_style="bold cyan"
        )
    for row in listed:
        table.add_row(*(Text(for_terminal(cell)) for cell in row))
    console().print(table)


def done(text: str) -> None:
    """Says on a terminal, in green, what was done; elsewhere plainly."""
    click.secho(text, fg="green" if on_terminal() else None)


def count_text(number: float) -> str:
    """``1,234,567``."""
    return f"{number:,.0f}"


def counted(number: int, what: str) -> str:
    """``1 partition``, ``2 partitions``."""
    return f"{count_text(number)} {what}" if number == 1 else f"{count_text(number)} {what}s"


def bytes_text(number: float) -> str:
    """``12.3 MB``: powers of ten, as disks and networks count."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(number) < 1000 or unit == "TB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError(number)


def time_text(timestamp_ms: int) -> str:
    """Local date and time of a timestamp; ``-`` where there is none."""
    if timestamp_ms < 0:
        return "-"
    from datetime import datetime

    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000).astimezone()
    except (OverflowError, OSError, ValueError):
        return f"{timestamp_ms} ms"
    return moment.isoformat(sep=" ", timespec="milliseconds")
