"""Loads with Spark that are killed, Java included, between any two steps; four readers check the table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import loads
import pytest

pytestmark = [
    pytest.mark.spark,
    pytest.mark.matrix,
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("spark"),
]

DAY_MS = 86_400_000
FIRST_DAY_MS = 1_357_041_600_000
"""Noon of 2013-01-01 in UTC."""
MESSAGES = 12

WANTED = list(range(MESSAGES))
STEPS = {
    "the files are staged and not synced": ("sync_directory", "/tidemill/batch-", "1", []),
    "the manifest is not there yet": ("replace", "manifest.json", "1", []),
    "the manifest is there, and nothing was moved": ("rename", "/out/event_date=", "1", []),
    "one file was moved": ("rename", "/out/event_date=", "2", WANTED[::3]),
    "all files were moved, and not synced": ("sync_directory", "/out/event_date=", "2", WANTED),
    "the staging folder is to be removed": ("remove", "/tidemill/batch-", "1", WANTED),
    "Spark has not committed": ("commit", "", "0", WANTED),
}
"""What was done when the kill comes; the call that it comes before; and the numbers that readers find then.

Each run continues where the one before was killed: from the third on, the steps are those of a recovery.
"""


def read_with_spark(spark: Any, folder: Path) -> list[int]:
    """Returns the numbers of a table, sorted."""
    return sorted(row.n for row in spark.read.parquet(str(folder)).select("n").collect())


def run(bootstrap: str, topic: str, folder: Path, *step: str) -> int:
    """Runs a load; returns its exit code."""
    program = str(Path(__file__).with_name("killed_load.py"))
    done = subprocess.run(
        [sys.executable, program, bootstrap, topic, str(folder), *step],
        # Compiled classes have no interpreted subclasses, which the program needs to kill itself.
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "TIDEMILL_PLAIN": "1"},
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
    )
    assert done.returncode in (0, -9), done.stderr
    return done.returncode


def test_a_load_that_is_killed_between_any_two_steps_has_each_message_once_for_every_reader(
    lab: Any, tmp_path: Path
) -> None:
    topic = lab.cluster.topic()

    def send(numbers: list[int]) -> None:
        for number in numbers:
            moment = FIRST_DAY_MS + number % 3 * DAY_MS
            lab.cluster.send(topic, json.dumps({"n": number}).encode(), timestamp=moment)

    send(WANTED)
    for name, (operation, part, number, found) in STEPS.items():
        assert run(lab.cluster.bootstrap, topic, tmp_path, operation, part, number) == -9, name
        check(lab.spark, tmp_path / "out", found, name)
    send([MESSAGES])
    assert run(lab.cluster.bootstrap, topic, tmp_path, "none", "", "0") == 0
    check(lab.spark, tmp_path / "out", [*WANTED, MESSAGES], "the end")


def check(spark: Any, table: Path, numbers: list[int], name: str) -> None:
    """Checks that all four readers find these numbers."""
    if not numbers:
        assert not list(table.rglob("*.parquet")), name
        return
    for reader in loads.READERS.values():
        assert reader(table, "n") == numbers, (name, reader)
    assert read_with_spark(spark, table) == numbers, name
