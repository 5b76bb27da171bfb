"""The results of planted faults, and their table in the documentation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from planting import Fault

BEGIN, END = "<!-- begin: make mutants -->", "<!-- end: make mutants -->"
TEXT_MAX = 110
FOUND_SHARE_MIN = 0.95
"""The minimum share of the faults without a test that seeds must find."""
FOUND = ("violated", "endless")
"""Outcomes of a seed with which a fault is found (:mod:`mutant_seeds`)."""
NO_PROGRAM = ("edit", "dead")
"""Outcomes of an edit with which the source is not valid."""
NOT_FOUND, BY_TEST = "-", "test"
"""Values of the seed column."""
HIGHEST = "the highest seed that was run is"


class Result(NamedTuple):
    """The result of one fault."""

    fault: Fault
    seeds: int
    """The number of seeds that ran without the fault."""
    effects: int
    """The number of these seeds in which the fault has an effect."""
    run: int
    """The number of these seeds that ran with the fault."""
    found_by: int
    """The seed that found it; 0 without one."""
    text: str
    """The broken promise; for an invalid edit the error."""
    is_noticed: bool | None
    """Whether the test that the fault names fails with it, and passes without it; None if it did not run."""

    @property
    def is_found(self) -> bool:
        """Whether the simulator has found the fault."""
        return self.found_by > 0

    @property
    def has_run(self) -> bool:
        """Whether the fault has a result."""
        return bool(self.run or self.text or (self.seeds and not self.effects)) or self.is_noticed is not None

    @property
    def summary(self) -> str:
        """Formats the result in a few words."""
        if self.is_found:
            return f"found by seed {self.found_by}: {self.text}"
        if self.is_noticed:
            return f"found by {self.fault.test}"
        return f"{self.missed} {self.text}".rstrip()

    @property
    def missed(self) -> str:
        """Formats the extent of an unsuccessful search."""
        if self.seeds == 0:
            return "not run"
        if self.effects == 0:
            return f"not found: it has no effect in {self.seeds} seeds"
        if self.run == 0:
            return f"not run: it has an effect in {self.effects} of {self.seeds} seeds"
        return f"not found in {self.run} of the {self.effects} seeds with an effect, of {self.seeds}"


def not_run(fault: Fault) -> Result:
    """Returns the result of a fault that did not run."""
    return Result(fault, 0, 0, 0, 0, "", None)


class State:
    """The state of a fault, stored in a file."""

    def __init__(self, path: Path, known: dict[str, Any]) -> None:
        self._path = path
        self._known: dict[str, Any] = {
            "seeds": [],
            "found_by": 0,
            "text": "",
            "failed": "",
            "tests": {},
            **known,
        }

    @property
    def seeds(self) -> list[int]:
        """Returns the seeds that ran with the fault."""
        seeds: list[int] = self._known["seeds"]
        return seeds

    @property
    def found_by(self) -> int:
        """Returns the seed that found the fault; 0 without one."""
        return int(self._known["found_by"])

    @property
    def is_settled(self) -> bool:
        """Whether no more runs are needed: the fault is found, or its edit makes the source invalid."""
        return bool(self._known["text"])

    def note(self, seed: int, outcome: str, text: str) -> None:
        """Records the outcome of a seed. Errors of the simulator are reported, but have no effect."""
        if outcome in NO_PROGRAM:
            self._known["text"] = f"no program: {text}"
            return
        self.seeds.append(seed)
        if outcome in FOUND:
            self._known |= {"found_by": seed, "text": text}
        elif outcome == "simulator":
            self._known["failed"] = f"the simulator fails with seed {seed}: {text}"

    def tested(self, key: str, is_noticed: bool) -> None:
        """Whether a test finds the fault; ``key`` is that of the current test."""
        self._known["tests"] = {key: is_noticed}

    def is_tested(self, key: str) -> bool:
        """Whether the result of the current test is known."""
        return key in self._known["tests"]

    def save(self) -> None:
        """Writes the file."""
        self._path.write_text(json.dumps(self._known))

    def result(self, fault: Fault, seeds: int, effects: int, key: str) -> Result:
        """Returns the result for the table; ``key`` is that of the test that the fault names."""
        known = self._known
        is_noticed = known["tests"].get(key)
        text = str(known["text"] or known["failed"])
        return Result(fault, seeds, effects, len(self.seeds), self.found_by, text, is_noticed)


class Row(NamedTuple):
    """A row of the table."""

    line: str
    found_by: str
    """The seed; or :data:`BY_TEST` or :data:`NOT_FOUND`."""

    @property
    def seed(self) -> int:
        """The seed that found the fault; 0 without one."""
        return int(self.found_by) if self.found_by.isdecimal() else 0


def are_enough(results: Sequence[Result]) -> bool:
    """Whether seeds find their share of the faults without a test, and seeds or tests all the others."""
    simulated = [result for result in results if not result.fault.test]
    noticed = all(result.is_noticed or result.is_found for result in results if result.fault.test)
    return noticed and sum(result.is_found for result in simulated) >= FOUND_SHARE_MIN * len(simulated)


def summary_of(faults: Sequence[Fault], rows: Mapping[str, Row], highest: int) -> str:
    """Returns a summary of the table in a few sentences."""
    untested = [fault for fault in faults if not fault.test]
    seeds = [seed for fault in untested if (seed := rows[fault.name].seed)]
    text = f"{len(seeds)} of the {len(untested)} faults without a test were found by seeds"
    if seeds:
        text += f" ({len(seeds) / len(untested):.0%}), half of these by seed {median(seeds):g} or before"
    text += f"; {HIGHEST} {highest}. "
    tested = [rows[fault.name] for fault in faults if fault.test]
    text += f"Tests find {sum(row.found_by == BY_TEST for row in tested)} others."
    if missed := sum(row.found_by == NOT_FOUND for row in tested):
        text += f" {missed} name a test that does not find them."
    if simulated := sum(row.seed > 0 for row in tested):
        text += f" {simulated} name a test, and are found by seeds."
    return text


def rows_of(results: Sequence[Result], kept: Mapping[str, Row]) -> dict[str, Row]:
    """Returns the row of each fault: that of the page if the fault did not run."""
    return {
        name: kept[name] if not result.has_run and name in kept else _row(result)
        for result in results
        for name in [result.fault.name]
    }


def write_table(
    page: Path, results: Sequence[Result], unsound: Sequence[tuple[str, int, str]], highest: int
) -> None:
    """Writes the table into the page, between its marks; ``highest`` is the highest seed of this run.

    Rows of faults that did not run stay unchanged; the page may then contain a higher seed.
    """
    text = page.read_text()
    rows = rows_of(results, rows_in_table(page))
    is_partial = not all(result.has_run for result in results)
    if is_partial:
        highest = max(highest, *map(int, re.findall(rf"{HIGHEST} (\d+)", text)), 0)
    highest = max(highest, *(row.seed for row in rows.values()), 0)
    lines = [
        summary_of([result.fault for result in results], rows, highest),
        "",
        "| fault | broken rule | seed | broken promise, or reason for a test |",
        "|---|---|---|---|",
        *(row.line for row in rows.values()),
    ]
    before, _, rest = text.partition(BEGIN)
    table, _, after = rest.partition(END)
    failing = [f"- {kind} {seed}: {_cell(text)}" for kind, seed, text in unsound]
    if is_partial:
        failing += [line for line in table.splitlines() if line.startswith("- ") and line not in failing]
    if failing:
        lines += ["", "Seeds that fail without any fault, and count for none:", "", *failing]
    page.write_text("\n".join([f"{before}{BEGIN}", "", *lines, "", f"{END}{after}"]))


def rows_in_table(page: Path) -> dict[str, Row]:
    """Returns the rows of the page by the fault's name."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("| `")]
    cells = {line: [cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in lines}
    return {row[1].strip("`"): Row(line, row[3]) for line, row in cells.items()}


def seeds_in_table(page: Path) -> dict[str, int]:
    """Returns, by name of a fault, the seed that found it when the page was written."""
    return {name: row.seed for name, row in rows_in_table(page).items() if row.seed}


def _row(result: Result) -> Row:
    fault = result.fault
    if result.is_found:
        found_by, how = str(result.found_by), _cell(result.text)
    elif result.is_noticed:
        found_by, how = BY_TEST, _cell(f"{fault.reason} Found by `{fault.test}`.", None)
    else:
        found_by, how = NOT_FOUND, _cell(result.summary, None)
    return Row(f"| `{fault.name}` | {_cell(fault.rule, None)} | {found_by} | {how} |", found_by)


def _cell(text: str, length: int | None = TEXT_MAX) -> str:
    text = text.replace("|", "\\|")
    return text if length is None or len(text) <= length else f"{text[: length - 3]}..."
