"""What is known of each planted fault, and the table of it in the documentation."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from planting import Fault

BEGIN, END = "<!-- begin: make mutants -->", "<!-- end: make mutants -->"
TEXT_MAX = 110
FOUND_SHARE_MIN = 0.95
"""Of the faults that name no test."""


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
    is_noticed: bool
    """Whether the test that the fault names fails with it, and passes without it."""

    @property
    def is_found(self) -> bool:
        """Whether the simulator has found it."""
        return self.found_by > 0

    @property
    def told(self) -> str:
        """In a few words."""
        if self.is_found:
            return f"found by seed {self.found_by}: {self.text}"
        if self.is_noticed:
            return f"found by {self.fault.test}"
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
        self._known: dict[str, Any] = {"seeds": [], "found_by": 0, "text": "", "tests": {}, **known}

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

    def tested(self, key: str, is_noticed: bool) -> None:
        """Whether a test notices it; ``key`` stands for the test as it is."""
        self._known["tests"] = {key: is_noticed}

    def is_tested(self, key: str) -> bool:
        """Whether it is known if this test notices it."""
        return key in self._known["tests"]

    def save(self) -> None:
        """Writes it down."""
        self._path.write_text(json.dumps(self._known))

    def result(self, fault: Fault, seeds: int, matters: int, key: str) -> Result:
        """For the table; ``key`` stands for the test that the fault names."""
        known = self._known
        is_noticed = bool(known["tests"].get(key))
        return Result(fault, seeds, matters, len(self.seeds), self.found_by, str(known["text"]), is_noticed)


def are_enough(results: Sequence[Result]) -> bool:
    """Whether the simulator finds its share of the faults that it is to find, and tests find the others."""
    simulated = [result for result in results if not result.fault.test or result.is_found]
    noticed = all(result.is_noticed for result in results if result.fault.test and not result.is_found)
    return noticed and sum(result.is_found for result in simulated) >= FOUND_SHARE_MIN * len(simulated)


def summary_of(results: Sequence[Result]) -> str:
    """All results in a few sentences."""
    seeds = [result.found_by for result in results if result.is_found]
    summary = (
        f"{len(results)} faults are planted. Simulated clusters found {len(seeds)} of them"
        f" ({len(seeds) / len(results):.0%}) among {max(result.seeds for result in results)} seeds"
    )
    if seeds:
        summary += f", half of these by seed {median(seeds):g} or before"
    noticed = sum(result.is_noticed and not result.is_found for result in results)
    missed = [result for result in results if not result.is_found and not result.is_noticed]
    not_run = sum(result.run == 0 and result.matters > 0 for result in missed)
    summary += f". Tests find {noticed} others. {len(missed)} are not found"
    return f"{summary}; {not_run} of these were not run." if not_run else f"{summary}."


def write_table(page: Path, results: Sequence[Result], unsound: Sequence[tuple[str, int, str]]) -> None:
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
        lines += [f"- {kind} {seed}: {_cell(text)}" for kind, seed, text in unsound]
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text("\n".join([f"{before}{BEGIN}", "", *lines, "", f"{END}{after}"]))


def seeds_in_table(page: Path) -> dict[str, int]:
    """By name of a fault the seed that found it when the page was written."""
    rows = [re.split(r"(?<!\\)\|", line) for line in page.read_text().splitlines() if line.startswith("| `")]
    return {row[1].strip(" `"): int(row[3]) for row in rows if row[3].strip().isdecimal()}


def _row(result: Result) -> str:
    fault = result.fault
    if result.is_found:
        return f"| `{fault.name}` | {_cell(fault.rule, None)} | {result.found_by} | {_cell(result.text)} |"
    how = f"{fault.reason} Found by `{fault.test}`." if result.is_noticed else fault.reason or result.told
    seed = "test" if result.is_noticed else "-"
    return f"| `{fault.name}` | {_cell(fault.rule, None)} | {seed} | {_cell(how.strip(), None)} |"


def _cell(text: str, length: int | None = TEXT_MAX) -> str:
    text = text.replace("|", "\\|")
    return text if length is None or len(text) <= length else f"{text[: length - 3]}..."
