"""The faults that ``make mutants`` plants match the source."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mutant_table import BEGIN, END, Result, seeds_in_table, write_table
from planted_faults import FAULTS
from planting import COUNTERS_SOURCE, Fault, NotApplicable, plant, probe_of, with_probes

TESTS = Path(__file__).parent.parent
PACKAGE = TESTS.parent / "src" / "tidemill"
FAULTS_MIN = 60


def test_enough_faults_are_planted_with_unique_names() -> None:
    assert len(FAULTS) >= FAULTS_MIN
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_matches_the_source_exactly_once(fault: Fault) -> None:
    source = (PACKAGE / fault.file).read_text()
    assert plant(fault, source) != source


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.test], ids=lambda fault: fault.name)
def test_a_fault_that_names_a_test_has_a_reason_and_the_test_exists(fault: Fault) -> None:
    file, _, name = fault.test.partition("::")
    assert fault.reason
    assert f"def {name.partition('[')[0]}(" in (TESTS / file).read_text()


@pytest.mark.parametrize("file", sorted({fault.file for fault in FAULTS}))
def test_the_source_with_the_probes_of_all_faults_is_python(file: str) -> None:
    faults = [fault for fault in FAULTS if fault.file == file]
    probed = with_probes(faults, (PACKAGE / file).read_text())
    compile(probed, file, "exec")
    for fault in faults:
        assert probed.count(f"hits[{fault.name!r}] += 1") == 1


SOURCE = '''\
def first(number: int) -> int:
    """Is documented."""
    if number > 1:
        return 1
    elif number > 0:
        return number
    return 0


def second(number: int) -> int:
    return number
'''


def hits_of(old: str, new: str, *numbers: int) -> int:
    """Returns how often the probe of a fault counts while the source without the fault is called."""
    counters: dict[str, Any] = {}
    exec(COUNTERS_SOURCE, counters)
    probed = with_probes([Fault("one", "one.py", old, new, "")], SOURCE)
    functions: dict[str, Any] = {
        "__builtins__": {"__import__": lambda name: SimpleNamespace(**counters), "int": int}
    }
    exec(probed, functions)
    for number in numbers:
        functions["first"](number)
        functions["second"](number)
    return int(counters["hits"]["one"])


@pytest.mark.parametrize(
    ("old", "new", "hits"),
    [
        pytest.param("        return 1\n", "        return 2\n", 1, id="a changed statement, when it runs"),
        pytest.param(
            "if number > 1:\n        return 1", "if False:\n        return 1", 1, id="a check, where it finds"
        ),
        pytest.param("    elif number > 0:\n", "    elif False:\n", 1, id="a second check, where it finds"),
        pytest.param("    if number > 1:\n", "    if True:\n", 2, id="a check, where it finds nothing"),
        pytest.param("number > 0", "number > 5", 3, id="a changed condition, with all that it is part of"),
        pytest.param(
            "def second(number: int)", "def second(number: int = 1)", 3, id="a signature, with each call"
        ),
    ],
)
def test_a_probe_counts_the_runs_of_its_fault(old: str, new: str, hits: int) -> None:
    assert hits_of(old, new, 0, 1, 2) == hits


@pytest.mark.parametrize(
    ("old", "new"),
    [("number", "other"), ("nowhere", "other"), ("return 1", "return 1"), ("return 1", "return 1 +")],
)
def test_a_fault_that_does_not_match_is_refused(old: str, new: str) -> None:
    with pytest.raises(NotApplicable):
        probe_of(Fault("one", "one.py", old, new, ""), SOURCE)


def test_the_seeds_of_the_table_round_trip(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Faults\n{BEGIN}\n{END}\n")
    found, missed = FAULTS[0], FAULTS[1]._replace(rule="One | or the other.")
    results = [Result(found, 9, 5, 3, 7, "in-sync: a | b", None), Result(missed, 9, 5, 5, 0, "", None)]
    write_table(page, results, [], 9)
    assert seeds_in_table(page) == {found.name: 7}
    write_table(page, [results[0], results[1]._replace(found_by=12)], [], 9)
    assert seeds_in_table(page) == {found.name: 7, missed.name: 12}
