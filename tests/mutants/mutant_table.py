"""What is known of each planted fault, and the table of it in the documentation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from planting import Fault

BEGIN, END = "<!-- begin: make mutants -->", "<!-- end: make mutants -->"
FOUND_TEXT_MAX = 110


class Result(NamedTuple):
    """What came of one fault."""

    fault: Fault
    seeds: int
    """Run so far; the last of them found it, where it was found."""
    reached: int
    """In how many of them the faulty line ran."""
    outcome: str
    """``found``, ``not found``, ``not run``, or ``broken`` for an edit that is no fault but nonsense."""
    text: str
    """Which promise was broken."""

    @property
    def is_found(self) -> bool:
        """Whether the simulator has found it."""
        return self.outcome == "found"

    @property
    def told(self) -> str:
        """In a few words."""
        if self.is_found:
            return f"found by seed {self.seeds}: {self.text}"
        return f"{self.outcome} in {self.seeds} seeds, reached in {self.reached} of them {self.text}".rstrip()


class State:
    """What is known of a fault, kept in a file."""

    def __init__(self, path: Path, known: dict[str, Any]) -> None:
        self._path = path
        self._known: dict[str, Any] = {"seeds": 0, "reached": 0, "outcome": "", "text": "", **known}

    @property
    def next_seed(self) -> int:
        """The seed that comes next."""
        return int(self._known["seeds"]) + 1

    @property
    def is_found(self) -> bool:
        """Whether a seed has found it."""
        return bool(self._known["outcome"] == "found")

    @property
    def is_broken(self) -> bool:
        """Whether its edit makes no program of the source."""
        return bool(self._known["outcome"] == "broken")

    def kept(self, hits: int) -> None:
        """The next seed has not found it."""
        self._count(hits)

    def found(self, outcome: str, text: str) -> None:
        """The next seed has found it."""
        self._count(1)
        promise = text.partition(" steps: ")[2] or f"{outcome}: {text}"
        self._known |= {"outcome": "found", "text": promise}

    def broken(self, text: str) -> None:
        """The edit is no Python that runs."""
        self._count(1)
        self._known |= {"outcome": "broken", "text": text}

    def _count(self, hits: int) -> None:
        self._known["seeds"] += 1
        self._known["reached"] += bool(hits)

    def save(self) -> None:
        """Writes it down."""
        self._path.write_text(json.dumps(self._known))

    def result(self, fault: Fault) -> Result:
        """For the table."""
        seeds, known = int(self._known["seeds"]), self._known
        outcome = str(known["outcome"]) or ("not found" if seeds else "not run")
        return Result(fault, seeds, int(known["reached"]), outcome, str(known["text"]))


def summary_of(results: Sequence[Result], seeds_max: int) -> str:
    """All results in a sentence."""
    found = [result.seeds for result in results if result.is_found]
    run = sum(result.outcome != "not run" for result in results)
    summary = (
        f"{len(results)} faults are planted, {run} were run with up to {seeds_max} seeds,"
        f" {len(found)} were found ({len(found) / len(results):.0%})"
    )
    if found:
        summary += f", half of them within {median(found):g} seeds, the last within {max(found)}"
    return f"{summary}."


def write_table(
    page: Path, results: Sequence[Result], unsound: Sequence[tuple[int, str]], seeds_max: int
) -> None:
    """Puts the table into the page, between its marks."""
    lines = [
        summary_of(results, seeds_max),
        "",
        "| fault | rule that it breaks | seeds | how it is found, or why not |",
        "|---|---|---|---|",
        *map(_row, results),
    ]
    if unsound:
        lines += ["", "Seeds that fail without any fault, and count for none:", ""]
        lines += [f"- {seed}: {_cell(text)}" for seed, text in unsound]
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text("\n".join([f"{before}{BEGIN}", "", *lines, "", f"{END}{after}"]))


def _row(result: Result) -> str:
    fault = result.fault
    if result.is_found:
        seeds, how = str(result.seeds), result.text
    elif result.outcome == "not run":
        seeds, how = "not run", fault.reason
    else:
        seeds, how = f"not in {result.seeds}", fault.reason or f"reached in {result.reached} seeds"
    return f"| `{fault.name}` | {_cell(fault.rule, None)} | {seeds} | {_cell(how)} |"


def _cell(text: str, length: int | None = FOUND_TEXT_MAX) -> str:
    text = text.replace("|", "\\|")
    return text if length is None or len(text) <= length else f"{text[: length - 3]}..."
