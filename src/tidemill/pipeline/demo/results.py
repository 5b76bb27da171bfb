"""The results of a demo run, which the report shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill.pipeline.demo.checks import Check
from tidemill.pipeline.demo.publish import Published


@dataclass(frozen=True)
class Step:
    """A step of the run and its duration."""

    name: str
    seconds: float
    note: str = ""


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch of the load. ``seconds`` is None for an interrupted one."""

    run: int
    batch: int
    rows: int
    seconds: float | None


@dataclass(frozen=True)
class Files:
    """The files of a loaded table, and the number of discarded files of an interrupted batch."""

    folders: int
    count: int
    size_bytes: int
    discarded: int


@dataclass
class Loaded:
    """A topic loaded into Parquet."""

    published: Published
    ends: Mapping[int, tuple[int, int]]
    places: list[Any] = field(default_factory=list)
    days: list[Any] = field(default_factory=list)
    files: Files = field(default_factory=lambda: Files(0, 0, 0, 0))


@dataclass
class Results:
    """The data of the summary in the terminal and of the report.

    ``seconds`` is the time from the start until the report is written.
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
        """Whether checks were run, and none failed."""
        return bool(self.checks) and all(check.passed for check in self.checks)
