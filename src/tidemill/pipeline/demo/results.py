"""What a run of the demo found; the report shows nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill.pipeline.demo.checks import Check
from tidemill.pipeline.demo.publish import Published


@dataclass(frozen=True)
class Step:
    """One step of the run and how long it took."""

    name: str
    seconds: float
    note: str = ""


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch of the load. ``seconds`` is None for one that was interrupted."""

    run: int
    batch: int
    rows: int
    seconds: float | None


@dataclass(frozen=True)
class Files:
    """The files of a loaded table, all of which count, and how many an interrupted batch wrote in vain."""

    folders: int
    count: int
    size_bytes: int
    in_vain: int


@dataclass
class Loaded:
    """One topic, as it lies in Parquet."""

    published: Published
    ends: Mapping[int, tuple[int, int]]
    places: list[Any] = field(default_factory=list)
    days: list[Any] = field(default_factory=list)
    files: Files = field(default_factory=lambda: Files(0, 0, 0, 0))


@dataclass
class Results:
    """Everything that the table in the terminal and the report show.

    ``seconds`` go from the start to the writing of the report.
    """

    topics: dict[str, Loaded] = field(default_factory=dict)
    batches: list[MicroBatch] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    delays: list[Any] = field(default_factory=list)
    weather: list[Any] = field(default_factory=list)
    aggregate_rows: int = 0
    seconds: float = 0.0
    killed: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether there were checks, and none failed."""
        return bool(self.checks) and all(check.passed for check in self.checks)
