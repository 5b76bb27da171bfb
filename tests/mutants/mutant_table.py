"""What is known of each planted fault, and the table of it in the documentation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from planting import Fault

BEGIN, END = "<!-- begin: make mutants -->", "<!-- end: make mutants -->"
TEXT_MAX = 110


class Result(NamedTuple):
    """What came of one fault."""

    fault: Fault
    seeds: int
    """Among which it was looked for: so many ran without it."""
    matters: int
    """In how many of them it matters, so that it may be found."""
    run: int
    """With how many of these it was run."""
    found_by: int
    """The seed that found it; 0 without one."""
    text: str
    """Which promise was broken; of an edit that makes no program what is wrong with it."""

    @property
    def is_found(self) -> bool:
        """Whether the simulator has found it."""
        return self.found_by > 0

    @property
    def told(self) -> str:
        """In a few words."""
        if self.is_found:
            return f"found by seed {self.found_by}: {self.text}"
        return f"{self.missed} {self.text}".rstrip()

    @property
    def missed(self) -> str:
        """How far it was looked for."""
        if self.matters == 0:
            return f"not found: it matters in none of {self.seeds} seeds"
        return f"not found in {self.run} of the {self.matters} seeds in which it matters, of {self.seeds}"


class State:
    """What is known of a fault, kept in a file."""

    def __init__(self, path: Path, known: dict[str, Any]) -> None:
        self._path = path
        self._known: dict[str, Any] = {"seeds": [], "found_by": 0, "text": "", **known}

    @property
    def seeds(self) -> list[int]:
        """Those that it was run with."""
        seeds: list[int] = self._known["seeds"]
        return seeds

    @property
    def found_by(self) -> int:
        """The seed that found it; 0 without one."""
        return int(self._known["found_by"])

    @property
    def is_settled(self) -> bool:
        """Whether nothing more is to be run: it is found, or its edit makes no program of the source."""
        return bool(self._known["text"])

    def kept(self, seed: int) -> None:
        """This seed does not find it."""
        self.seeds.append(seed)

    def found(self, seed: int, outcome: str, text: str) -> None:
        """This seed finds it."""
        self.seeds.append(seed)
        self._known |= {"found_by": seed, "text": text.partition(" steps: ")[2] or f"{outcome}: {text}"}

    def no_program(self, text: str) -> None:
        """The edit is nothing that runs."""
        self._known["text"] = f"no program: {text}"

    def save(self) -> None:
        """Writes it down."""
        self._path.write_text(json.dumps(self._known))

    def result(self, fault: Fault, seeds: int, matters: int) -> Result:
        """For the table."""
        known = self._known
        return Result(fault, seeds, matters, len(self.seeds), self.found_by, str(known["text"]))


def summary_of(results: Sequence[Result]) -> str:
    """All results in a sentence."""
    seeds = [result.found_by for result in results if result.is_found]
    run = sum(result.run > 0 for result in results)
    summary = (
        f"{len(results)} faults are planted, {run} were run,"
        f" {len(seeds)} were found ({len(seeds) / len(results):.0%} of all)"
    )
    if seeds:
        summary += f", half of them by seed {median(seeds):g} or before"
    return f"{summary}. They were looked for among {max(result.seeds for result in results)} seeds."


def write_table(page: Path, results: Sequence[Result], unsound: Sequence[tuple[int, str]]) -> None:
    """Puts the table into the page, between its marks."""
    lines = [
        summary_of(results),
        "",
        "| fault | rule that it breaks | seed | promise that is broken, or why none is |",
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
    seed = str(result.found_by) if result.is_found else "-"
    how = result.text if result.is_found else fault.reason or result.told
    return f"| `{fault.name}` | {_cell(fault.rule, None)} | {seed} | {_cell(how)} |"


def _cell(text: str, length: int | None = TEXT_MAX) -> str:
    text = text.replace("|", "\\|")
    return text if length is None or len(text) <= length else f"{text[: length - 3]}..."
