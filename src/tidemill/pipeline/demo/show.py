"""The demo's terminal output: steps, progress bars, the final table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from tidemill.pipeline.demo.results import Results, Step


class Show:
    """Shows a line for each finished step, and a bar or a spinner for the running one."""

    def __init__(self, console: Console | None = None) -> None:
        # Without a terminal the width is unknown, and 80 columns would break the table.
        self.console = console or Console(highlight=False, width=None if sys.stdout.isatty() else 120)
        self._step = ""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Sets the name of the running step, which prefixes its output."""
        self._step = name
        yield

    def done(self, step: Step) -> None:
        """Prints the line of a finished step."""
        self.console.print(f"[green]✓[/] {step.name:<48} [bold]{step.seconds:6.1f} s[/]  [dim]{step.note}[/]")

    @contextmanager
    def progress(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """Shows a bar for ``total`` messages, on a terminal only; yields a function that advances it."""
        if not self.console.is_terminal:
            yield lambda count: None
            return
        columns = (
            TextColumn("  {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console, transient=True) as bars:
            task = bars.add_task(name, total=total)
            yield lambda count: bars.advance(task, count)

    @contextmanager
    def waiting(self) -> Iterator[Callable[[str], None]]:
        """Shows a spinner, on a terminal only; yields a function that sets its text."""
        if not self.console.is_terminal:
            yield lambda text: None
            return
        with self.console.status(f"  {self._step}") as status:
            yield lambda text: status.update(f"  {self._step}: {text}")

    def summary(self, results: Results, report: Path) -> None:
        """Prints the final table and the verdict."""
        table = Table(title="Results", title_justify="left", title_style="bold", header_style="bold")
        table.add_column("check")
        table.add_column("expected", justify="right")
        table.add_column("found", justify="right")
        table.add_column("")
        for check in results.checks:
            mark = "[green]✓[/]" if check.passed else "[bold red]✗ differs[/]"
            table.add_row(check.question, check.expected, check.found, mark)
        self.console.print(table)
        failed = sum(not check.passed for check in results.checks)
        verdict = (
            f"[bold green]All {len(results.checks)} checks passed[/]"
            if results.passed
            else f"[bold red]{failed} of {len(results.checks)} checks failed[/]"
        )
        self.console.print(
            f"{verdict} in {results.seconds:.0f} s. The report: [bold]{report}[/]", soft_wrap=True
        )
