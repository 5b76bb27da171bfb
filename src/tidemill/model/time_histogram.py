"""A histogram of durations, which the metrics endpoint reads at each scrape."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

# fmt: off
TIME_BOUNDS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)
# fmt: on
"""Upper bounds of the buckets of durations, in seconds."""


class TimeHistogram:
    """A histogram of durations: cheap to update (one bisection), exact in count and sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = TIME_BOUNDS_S) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def record(self, seconds: float) -> None:
        """Counts one duration."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """Returns (upper bound, number of durations up to it) for every bucket, ``+Inf`` last."""
        total = 0
        found: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found
