"""Second tries of the tests named here, each with a reason. A run ends with a list of the tests that needed
one.

A test that passes only on a second try has a bug, or has found one. A test in this table has none: it
measures a guarantee in seconds, for example, which a busy machine exceeds. A test that waits for an event
must not be in the table: its timeout must be long enough for any busy machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

SECOND_TRIES: dict[str, str] = {
    "test_crash_stop.py::test_a_signal_stops_a_recovery_and_the_next_start_has_every_record": (
        "That a stop takes less than two seconds is the promise; a machine without time breaks it as well."
    ),
    "test_testing_broker.py::test_a_broker_starts_in_less_than_half_a_second": (
        "Half a second to start is the promise; the fastest of five starts takes longer on a busy machine."
    ),
}
"""The reason for a second try, by file and function."""


class SecondTry(NamedTuple):
    """A test that failed in the first try, and its final result."""

    test: str
    passed: bool
    failure: str
    reason: str


def name_of(test: str) -> str:
    """The name in the table: ``tests/log/test_log.py::test_it[7]@group`` is ``test_log.py::test_it``."""
    path, _, function = test.partition("::")
    return f"{path.rpartition('/')[2]}::{function.partition('[')[0].partition('@')[0]}"


def second_tries(stats: dict[str, list[pytest.TestReport]]) -> Iterator[SecondTry]:
    """The second tries in the reports of a run."""
    passed = {report.nodeid for report in stats.get("passed", ())}
    for report in stats.get("rerun", ()):
        said = report.longreprtext.strip().splitlines() or ["it does not say why"]
        failure = next((line[1:].strip() for line in said if line.startswith("E ")), said[-1])
        reason = SECOND_TRIES.get(name_of(report.nodeid), "it is not named in tests/second_tries.py")
        yield SecondTry(report.nodeid, report.nodeid in passed, failure, reason)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that may have a second try."""
    for item in items:
        if name_of(item.nodeid) in SECOND_TRIES:
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=2))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Prints the second tries at the end of a run, except in the workers of pytest-xdist."""
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
