"""Output of commands: tables and colours on a terminal, tabs for pipes, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tidemill.cli.record_text import for_terminal
from tidemill.cli.table_layout import GAP, blocks, fit, wrap

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

F = TypeVar("F", bound=Callable[..., Any])

FAILED = 1
"""The exit code of a command that could not do its work, or found a problem."""

INDENT = 4
"""Indentation of lines that belong to the line above, in spaces."""

_BREAKS = str.maketrans("\t\r\n", "   ")
"""Characters that end a cell or a line for programs; client ids and group ids may contain them."""


def json_option(function: F) -> F:
    """Adds ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(function)


def on_terminal() -> bool:
    """Returns whether standard output is a terminal."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def print_json(value: Any) -> None:
    """Prints one JSON document on standard output."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def console(*, error: bool = False) -> Console:
    """Returns a Rich console on stdout, or on stderr."""
    from rich.console import Console

    return Console(stderr=error, highlight=False)


def bytes_bar(description: str, *more: str) -> Progress:
    """Returns a transient bar on stderr that counts bytes; ``more`` are texts beside it."""
    from rich import progress

    return progress.Progress(
        progress.TextColumn(description),
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
    spare: Sequence[str] = (),
    settings: bool = False,
    empty: str = "no rows",
) -> None:
    """Prints ``rows`` under ``columns``: a table on a terminal, lines with tabs and a header elsewhere.

    ``right`` names the columns of numbers, ``spare`` the columns that are dropped on a narrow terminal. With
    ``settings`` the first two columns are a key and its value, which stay together where the table is too
    wide. ``empty`` is printed on a terminal when there are no rows.
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
    shown = _shown(listed)
    terminal = console()
    layout = fit(columns, shown, terminal.width)
    for name in spare:
        if layout is None:
            index = list(columns).index(name)
            columns = [*columns[:index], *columns[index + 1 :]]
            shown = [[*row[:index], *row[index + 1 :]] for row in shown]
            layout = fit(columns, shown, terminal.width)
    if layout is None:
        _print_blocks(columns, shown, terminal.width, settings)
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    # A line between the columns is one space; with the padding the gap is the one that fit() counts.
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, GAP - 1, 0, 0))
    for column, head in zip(columns, layout.heads, strict=True):
        table.add_column(
            Text(head),
            justify="right" if column in right else "left",
            vertical="bottom",
            header_style="bold cyan",
        )
    for row in layout.rows:
        table.add_row(*map(Text, row))
    terminal.print(table)


def fits(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> bool:
    """Returns whether the terminal is wide enough for a table."""
    return fit(columns, _shown(rows), console().width) is not None


def _shown(rows: Iterable[Sequence[Any]]) -> list[list[str]]:
    return [["" if cell is None else for_terminal(str(cell)) for cell in row] for row in rows]


def _print_blocks(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int, settings: bool) -> None:
    """Prints rows that are too wide for a table as blocks of lines."""
    if settings:
        for key, value, *facts in rows:
            click.echo(f"{click.style(key, fg='cyan', bold=True)}={value}")
            details = [f"{name} {fact}" for name, fact in zip(columns[2:], facts, strict=True) if fact]
            lines = wrap("; ".join(details), width - INDENT)
            if len(lines) > 1:
                lines = [line for fact in details for line in wrap(fact, width - INDENT)]
            for line in lines:
                click.secho(" " * INDENT + line, dim=True)
        return
    for number, block in enumerate(blocks(columns, rows, width)):
        if number:
            click.echo()
        for name, value in block:
            click.echo(click.style(name, fg="cyan", bold=True) + value)


def done(text: str) -> None:
    """Prints a completed action, in green on a terminal."""
    click.secho(text, fg="green" if on_terminal() else None)


def is_interactive() -> bool:
    """Whether standard input and standard output are terminals."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def require_yes(question: str, yes: bool) -> None:
    """Asks for confirmation, unless ``--yes`` was given or there is no terminal.

    Without a terminal the answer is yes: scripts run commands without ``--yes``, and standard input may not
    be for them. Raises ClickException after no; ctrl-C and ctrl-D abort.
    """
    if not yes and is_interactive() and not click.confirm(question):
        raise click.ClickException("nothing was done: not confirmed")


def yes_option(function: F) -> F:
    """Adds ``--yes`` to a command that calls :func:`require_yes`."""
    return _yes("Do not ask for confirmation. It is asked only on a terminal.")(function)


def required_yes_option(*names: str, action: str = "") -> Callable[[F], F]:
    """``--yes``, also by other ``names``, of a command that does nothing without confirmation."""
    return _yes(f"Do not ask for confirmation{action}. Required without a terminal.", *names)


def _yes(text: str, *names: str) -> Callable[[F], F]:
    return click.option("-y", "--yes", *names, is_flag=True, help=text)


def report_failures(problems: Collection[object]) -> int:
    """Prints errors, one per line. Returns the exit code."""
    for problem in problems:
        click.echo(f"tidemill: {problem}", err=True)
    return FAILED if problems else 0


def count_text(number: float) -> str:
    """Formats a number as ``1,234,567``."""
    return f"{number:,.0f}"


def counted(number: int, noun: str, several: str = "") -> str:
    """Formats ``1 partition``, ``2 partitions``; ``several`` is an irregular plural."""
    return f"{count_text(number)} {noun if number == 1 else several or noun + 's'}"


def first_of(items: Sequence[object], most: int) -> str:
    """Formats the first items, as ``a, b and 3 more``."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return f"{', '.join(map(str, items[:most]))}{more}"


def print_interrupted(text: str) -> None:
    """Prints a message at ctrl-C: on a terminal it begins on the line below ``^C``.

    The caller then raises click.Abort: click prints another line end after a KeyboardInterrupt.
    """
    start = "\n" if sys.stderr.isatty() else ""
    click.echo(f"{start}interrupted: {text}", err=True)


def bytes_text(number: float) -> str:
    """Formats bytes as ``12.3 MB``, in powers of ten, as disks and networks count."""
    if abs(number) < 1000:
        return f"{number:.0f} B"
    for unit in ("kB", "MB", "GB"):
        number /= 1000
        if abs(number) < 1000:
            return f"{number:.1f} {unit}"
    return f"{number / 1000:.1f} TB"


def time_text(timestamp_ms: int) -> str:
    """Formats a timestamp as local date and time; ``-`` where there is none."""
    if timestamp_ms < 0:
        return "-"
    from datetime import datetime

    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000).astimezone()
    except (OverflowError, OSError, ValueError):
        return f"{timestamp_ms} ms"
    return moment.isoformat(sep=" ", timespec="milliseconds")
