"""Brokers in this process for tests of disk failures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from crash_machine import Machine, NewMachine
from faulty_files import FaultyFiles


@pytest.fixture
def new_machine(tmp_path: Path) -> Iterator[NewMachine]:
    """``new_machine(files, log_dirs=...)`` creates a broker with these files; it is closed at the end."""
    made: list[Machine] = []

    def make(files: FaultyFiles, **config: str) -> Machine:
        made.append(Machine(tmp_path / "data", files, **config))
        return made[-1]

    yield make
    for machine in made:
        machine.close()
