"""The faults that ``make mutants`` plants fit the source."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted_faults import FAULTS
from planting import PROBE, Fault, NotApplicable, plant

PACKAGE = Path(__file__).parent.parent.parent / "src" / "tidemill"
FAULTS_MIN = 60


def test_enough_faults_are_planted_and_each_has_a_name_of_its_own() -> None:
    assert len(FAULTS) >= FAULTS_MIN
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_fits_the_source_exactly_once(fault: Fault) -> None:
    planted = plant(fault, (PACKAGE / fault.file).read_text())
    assert planted.is_probed
    assert planted.source.count(PROBE) == 1


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


def planted(old: str, new: str) -> str:
    return plant(Fault("one", "one.py", old, new, ""), SOURCE).source


def test_the_probe_counts_where_the_statement_is_that_is_changed() -> None:
    assert f"        {PROBE}\n        return 2\n" in planted("        return 1\n", "        return 2\n")


def test_the_probe_of_a_removed_line_counts_although_the_line_is_gone() -> None:
    source = planted("    if number > 1:\n        return 1\n    elif", "    if")
    assert f"    {PROBE}\n    if number > 0:\n" in source


def test_the_probe_of_a_changed_elif_counts_before_the_whole_condition() -> None:
    assert f"    {PROBE}\n    if number > 1:\n" in planted("number > 0", "number > 5")


def test_the_probe_of_a_changed_signature_counts_in_the_body() -> None:
    assert f"    {PROBE}\n    return number\n" in planted(
        "def second(number: int)", "def second(number: int = 1)"
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [("number", "other"), ("nowhere", "other"), ("return 1", "return 1"), ("return 1", "return 1 +")],
)
def test_a_fault_that_does_not_fit_is_refused(old: str, new: str) -> None:
    with pytest.raises(NotApplicable):
        planted(old, new)
