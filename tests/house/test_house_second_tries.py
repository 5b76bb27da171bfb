"""Second tries: only of named tests with a reason, and listed at the end of a run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import second_tries

TESTS = Path(__file__).parents[1]
STORY = """
import pathlib
import pytest

def fails_at_first(name):
    mark = pathlib.Path(__file__).with_name(name)
    first = not mark.exists()
    mark.touch()
    assert not first, "it was too late"

@pytest.mark.parametrize("number", [1])
def test_named(number):
    fails_at_first("named")

def test_not_named():
    fails_at_first("not-named")

def test_named_and_broken():
    raise ValueError("it never works")

def test_good():
    pass
"""
NAMED = {
    "test_story.py::test_named": "A busy machine may be late.",
    "test_story.py::test_named_and_broken": "So may this be.",
}


def run(directory: Path, story: str, *options: str) -> list[str]:
    """The lines that a run of this one file prints."""
    (directory / "test_story.py").write_text(story)
    (directory / "conftest.py").write_text(
        f"import sys\nsys.path.insert(0, {str(TESTS)!r})\nimport second_tries\n"
        f"second_tries.SECOND_TRIES = {json.dumps(NAMED)}\n"
        "from second_tries import pytest_collection_modifyitems, pytest_unconfigure\n"
    )
    (directory / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "pytest_rerunfailures", "-p", "xdist.plugin", *options],
        cwd=directory,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("options", [[], ["-n", "2", "--dist", "loadgroup"]], ids=["one process", "two"])
def test_a_run_ends_by_listing_the_tests_that_needed_a_second_try(tmp_path: Path, options: list[str]) -> None:
    lines = run(tmp_path, STORY, *options)
    begin = next(number for number, line in enumerate(lines) if "needed a second try" in line)
    assert lines[begin].startswith("2 tests needed a second try")
    assert sorted(lines[begin + 1 :]) == sorted(
        [
            "- test_story.py::test_named[1]: passed",
            "  at first: AssertionError: it was too late",
            "  reason: A busy machine may be late.",
            "- test_story.py::test_named_and_broken: failed again",
            "  at first: ValueError: it never works",
            "  reason: So may this be.",
        ]
    )
    assert re.match(r"2 failed, 2 passed, .*2 rerun", lines[begin - 1])
    assert any(line.startswith("FAILED test_story.py::test_not_named") for line in lines)


def test_a_run_without_second_tries_reports_none(tmp_path: Path) -> None:
    assert run(tmp_path, "def test_good():\n    pass\n")[-1] == "No test needed a second try."


def test_names_of_second_tries_are_tests_and_have_reasons() -> None:
    files = {path.name: path.read_text() for path in TESTS.rglob("test_*.py")}
    for name in second_tries.SECOND_TRIES:
        file, _, function = name.partition("::")
        assert re.search(rf"^def {function}\(", files.get(file, ""), re.MULTILINE), f"there is no test {name}"
    assert [name for name, reason in second_tries.SECOND_TRIES.items() if len(reason.split()) < 5] == []


def test_second_tries_are_requested_in_one_place() -> None:
    marked = [
        path.name
        for path in TESTS.rglob("*.py")
        if path != Path(__file__) and re.search(r"mark\.flaky|--reruns", path.read_text())
    ]
    assert marked == ["second_tries.py"]
    options = (TESTS.parent / "pyproject.toml").read_text() + (TESTS.parent / "Makefile").read_text()
    assert "--reruns" not in options
