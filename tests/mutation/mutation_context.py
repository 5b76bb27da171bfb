"""A pytest plugin of the mutation run: sets the coverage context of each test, and records the results."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest
from hypothesis import settings

settings.register_profile("mutation", database=None, derandomize=True)
settings.load_profile("mutation")

_failed: set[str] = set()


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker of a disabled plugin: no test is repeated."""
    config.addinivalue_line("markers", "flaky(reruns, reruns_delay): the test may be tried again")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Records failed and skipped tests: these cannot find a mutant."""
    if report.outcome != "passed":
        _failed.add(report.nodeid)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, None, None]:
    """Runs a test in a coverage context that has the test's name."""
    if (measured := coverage.Coverage.current()) is not None:
        measured.switch_context(item.nodeid)
    began = time.monotonic()
    yield
    if times := os.environ.get("MUTATION_TIMES"):
        with Path(times).open("a") as file:
            passed = item.nodeid not in _failed
            file.write(json.dumps([item.nodeid, time.monotonic() - began, passed]) + "\n")
