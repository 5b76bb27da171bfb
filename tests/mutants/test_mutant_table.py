"""The rows of the page that the table keeps, and the faults by which a run is judged."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any, ClassVar

import mutant_run
import pytest
from mutant_table import (
    BEGIN,
    END,
    Result,
    Row,
    State,
    are_enough,
    not_run,
    rows_in_table,
    seeds_in_table,
    summary_of,
    write_table,
)
from planted_faults import FAULTS
from planting import Fault

DOCS = Path(__file__).parent.parent.parent / "docs"
UNTESTED = [fault for fault in FAULTS if not fault.test]
TESTED = [fault for fault in FAULTS if fault.test]


def found(fault: Fault, seed: int) -> Result:
    return Result(fault, 9, 5, 3, seed, "in-sync: a | b", None)


def missed(fault: Fault) -> Result:
    return Result(fault, 9, 5, 5, 0, "", None)


def page_in(directory: Path, *results: Result, highest: int = 9) -> Path:
    page = directory / "page.md"
    page.write_text(f"# Faults\n{BEGIN}\n{END}\n")
    if results:
        write_table(page, results, [], highest)
    return page


def test_a_fault_that_did_not_run_keeps_its_row(tmp_path: Path) -> None:
    first, second, third = UNTESTED[:3]
    page = page_in(tmp_path, found(first, 7), found(second, 40), missed(third), highest=50)
    before = rows_in_table(page)
    write_table(page, [found(first, 3), not_run(second), not_run(third)], [("cluster", 5, "x")], 10)
    after = rows_in_table(page)
    assert after[first.name].seed == 3
    assert [after[name] for name in (second.name, third.name)] == [
        before[name] for name in (second.name, third.name)
    ]
    assert seeds_in_table(page) == {first.name: 3, second.name: 40}
    assert "the highest seed that was run is 50." in page.read_text()
    write_table(page, [not_run(first), found(second, 4), not_run(third)], [], 10)
    assert "- cluster 5: x" in page.read_text()


def test_a_fault_that_is_no_longer_found_loses_its_seed(tmp_path: Path) -> None:
    page = page_in(tmp_path, found(UNTESTED[0], 7))
    write_table(page, [missed(UNTESTED[0])], [], 9)
    assert seeds_in_table(page) == {}


class FakeRun:
    """Replaces :class:`mutant_run.Run`: seed 7 finds each fault."""

    asked: ClassVar[list[str]] = []

    def __init__(self, options: Namespace, kind: str, faults: list[Fault]) -> None:
        self.faults = faults
        self.unchanged: dict[int, dict[str, Any]] = {7: {"text": "", "hits": {}}}
        FakeRun.asked += [fault.name for fault in faults]

    async def run(self, directory: Path) -> None:
        pass

    def result(self, fault: Fault) -> Result:
        return found(fault, 7)._replace(is_noticed=True if fault.test else None)


def test_a_run_of_some_faults_is_judged_by_these_and_leaves_the_other_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutant_run, "Run", FakeRun)
    monkeypatch.setattr(FakeRun, "asked", [])
    page = page_in(tmp_path)
    page.write_text((DOCS / "mutants.md").read_text())
    before = rows_in_table(page)
    name = UNTESTED[0].name
    assert mutant_run.main(["--faults", name, "--seeds", "50", "--page", str(page)]) == 0
    after = rows_in_table(page)
    assert after.pop(name).seed == 7
    before.pop(name)
    assert after == before


def test_a_run_without_seeds_is_judged_by_the_faults_that_name_a_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutant_run, "Run", FakeRun)
    monkeypatch.setattr(FakeRun, "asked", [])
    assert mutant_run.main(["--seeds", "0"]) == 0
    assert sorted(FakeRun.asked) == sorted(fault.name for fault in TESTED)


def test_a_fault_runs_with_the_seed_of_the_page_above_the_requested_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = UNTESTED[0]
    monkeypatch.setattr(mutant_run, "PAGE", page_in(tmp_path, found(fault, 293)))
    monkeypatch.setattr(mutant_run, "STATES", tmp_path / "states")
    run = mutant_run.Run(Namespace(seeds=50, workers=1, most=50), "cluster", [fault])
    assert run.earlier_seeds(fault) == [293]
    assert mutant_run.Run(Namespace(seeds=0, workers=1, most=50), "cluster", []).earlier_seeds(fault) == []


@pytest.mark.parametrize(
    ("results", "enough"),
    [
        ([found(UNTESTED[0], 1)], True),
        ([missed(UNTESTED[0])], False),
        ([found(UNTESTED[0], 1), missed(TESTED[0])._replace(is_noticed=True)], True),
        ([found(UNTESTED[0], 1), missed(TESTED[0])._replace(is_noticed=False)], False),
        ([found(UNTESTED[0], 1), missed(TESTED[0])], False),
        ([found(UNTESTED[number], 1) for number in range(19)] + [missed(UNTESTED[19])], True),
        ([found(fault, 1) for fault in TESTED[:19]] + [missed(UNTESTED[19])], False),
    ],
)
def test_the_share_is_that_of_the_faults_that_name_no_test(results: list[Result], enough: bool) -> None:
    assert are_enough(results) == enough


def test_the_summary_has_the_share_of_the_faults_without_a_test() -> None:
    faults = [*UNTESTED[:4], *TESTED[:2]]
    by = ("7", "3", "5", "-", "test", "test")
    rows = {fault.name: Row("", one) for fault, one in zip(faults, by, strict=True)}
    assert summary_of(faults, rows, 9) == (
        "3 of the 4 faults without a test were found by seeds (75%), half of these by seed 5 or before;"
        " the highest seed that was run is 9. Tests find 2 others."
    )


def test_the_page_begins_with_the_summary_of_its_rows() -> None:
    page = DOCS / "mutants.md"
    rows = rows_in_table(page)
    summary = page.read_text().partition(BEGIN)[2].split("\n\n")[1]
    known = [fault for fault in FAULTS if fault.name in rows]
    assert summary == summary_of(
        known, rows, int(summary.partition("seed that was run is ")[2].partition(".")[0])
    )


def test_the_page_names_the_test_of_each_fault_as_the_fault_does() -> None:
    rows = {
        line.split("`")[1]: line
        for line in (DOCS / "mutants.md").read_text().splitlines()
        if line[:3] == "| `"
    }
    stale = [
        fault.name for fault in TESTED if fault.name in rows and f"`{fault.test}`" not in rows[fault.name]
    ]
    assert stale == []


def test_no_fault_with_a_finding_seed_has_a_reason() -> None:
    seeds = seeds_in_table(DOCS / "mutants.md")
    assert [fault.name for fault in FAULTS if fault.name in seeds and (fault.reason or fault.test)] == []


def test_a_fault_that_did_not_run_is_marked() -> None:
    assert missed(UNTESTED[0])._replace(run=0).summary == "not run: it has an effect in 5 of 9 seeds"
    assert not_run(UNTESTED[0]).summary == "not run"
    assert not_run(UNTESTED[0]).has_run is False


@pytest.mark.parametrize(
    ("outcome", "found_by", "is_settled", "summary"),
    [
        ("violated", 4, True, "found by seed 4: the text"),
        ("endless", 4, True, "found by seed 4: the text"),
        ("edit", 0, True, "no program: the text"),
        ("dead", 0, True, "no program: the text"),
        ("simulator", 0, False, "the simulator fails with seed 4: the text"),
        ("kept", 0, False, "not found in 1 of the 1 seeds with an effect, of 1"),
    ],
)
def test_only_a_broken_promise_is_a_find(
    tmp_path: Path, outcome: str, found_by: int, is_settled: bool, summary: str
) -> None:
    state = State(tmp_path / "state.json", {})
    state.note(4, outcome, "the text")
    result = state.result(UNTESTED[0], 1, 1, "")
    assert (state.found_by, state.is_settled) == (found_by, is_settled)
    assert summary in result.summary
