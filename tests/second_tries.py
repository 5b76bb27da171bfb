"""Second tries: only for tests named here, each with its reason; a run ends by listing those that needed one.

A test that passes only on a second try has found a bug: of the code, or of the test. A name in this table
says that neither can be mended, and why: what the test measures is a promise in seconds, say, and a machine
that gives the test's processes no time breaks it as well. A test that waits for an event has no place here:
it waits with a limit that no busy machine overruns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

SECOND_TRIES: dict[str, str] = {
    "test_crash_stop.py::test_a_signal_during_recovery_stops_soon_and_the_next_start_finds_everything": (
        "That a stop takes less than two seconds is the promise; a machine without time breaks it as well."
    ),
    "test_testing_broker.py::test_a_broker_is_there_in_well_under_half_a_second": (
        "Half a second to start is the promise; the fastest of five starts takes longer on a busy machine."
    ),
}
"""By file and function: why a test may fail at first."""


class SecondTry(NamedTuple):
    """A test that failed at first, and how it ended."""

    test: str
    passed: bool
    failure: str
    reason: str


def name_of(test: str) -> str:
    """The name in the table: ``tests/log/test_log.py::test_it[7]@group`` is ``test_log.py::test_it``."""
    path, _, function = test.partition("::")
    return f"{path.rpartition('/')[2]}::{function.partition('[')[0].partition('@')[0]}"


def second_tries(stats: dict[str, list[pytest.TestReport]]) -> Iterator[SecondTry]:
    """What the reports of a run tell of second tries."""
    passed = {report.nodeid for report in stats.get("passed", ())}
    for report in stats.get("rerun", ()):
        said = report.longreprtext.strip().splitlines() or ["it does not say why"]
        failure = next((line[1:].strip() for line in said if line.startswith("E ")), said[-1])
        reason = SECOND_TRIES.get(name_of(report.nodeid), "it is not named in tests/second_tries.py")
        yield SecondTry(report.nodeid, report.nodeid in passed, failure, reason)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that may be tried a second time."""
    for item in items:
        if name_of(item.nodeid) in SECOND_TRIES:
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=2))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Lists them as the last that a run prints; not in the processes of pytest-xdist."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or hasattr(config, "workerinput") or config.option.collectonly:
        return
    found = list(second_tries(terminal.stats))
    if not found:
        terminal.write_line("No test needed a second try.")
        return
    terminal.write_line(
        f"{len(found)} tests needed a second try; each has found a bug, or says why it may fail:"
    )
    for one in found:
        terminal.write_line(f"- {one.test}: {'passed' if one.passed else 'failed again'}")
        terminal.write_line(f"  at first: {one.failure}")
        terminal.write_line(f"  reason: {one.reason}")
