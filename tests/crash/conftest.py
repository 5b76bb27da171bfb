"""Brokers in this process, for tests of what a disk may do to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from crash_machine import Machine, NewMachine
from faulty_files import FaultyFiles


@pytest.fixture
def new_machine(tmp_path: Path) -> Iterator[NewMachine]:
    """``new_machine(files, log_dirs=...)`` is a broker over these files, cleared away at the end."""
    made: list[Machine] = []

    def make(files: FaultyFiles, **config: str) -> Machine:
        made.append(Machine(tmp_path / "data", files, **config))
        return made[-1]

    yield make
    for machine in made:
        machine.close()
