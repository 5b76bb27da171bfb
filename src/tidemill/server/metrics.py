"""Metrics in the exposition format of Prometheus.

Each scrape creates a :class:`Family` from the counters of the broker. ``prometheus_client`` renders the
families; the first scrape imports it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable

from tidemill import __version__, _build_mode
from tidemill.model.time_histogram import TimeHistogram

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"


class Family:
    """A metric: its name, kind and help text, and a value for each set of labels.

    The names of counters have no ``_total``; the exposition adds it.
    """

    __slots__ = ("help", "kind", "name", "samples")

    def __init__(self, name: str, kind: str, help: str) -> None:
        self.name = name
        self.kind = kind
        self.help = help
        self.samples: list[tuple[dict[str, str], float | TimeHistogram]] = []

    def add(self, value: float | TimeHistogram, **labels: str) -> Family:
        """Adds a value with its labels."""
        self.samples.append((labels, value))
        return self


def counter(name: str, help: str, value: float | None = None, **labels: str) -> Family:
    """A metric that only increases."""
    family = Family(name, COUNTER, help)
    return family if value is None else family.add(value, **labels)


def gauge(name: str, help: str, value: float | None = None, **labels: str) -> Family:
    """A metric that increases and decreases."""
    family = Family(name, GAUGE, help)
    return family if value is None else family.add(value, **labels)


class ProcessMetrics:
    """The metrics of the process."""

    def __init__(self) -> None:
        self._started = time.time()
        self._began = time.monotonic()

    def families(self) -> Iterable[Family]:
        """Version, mode, uptime, memory, CPU time, open files."""
        mode = "compiled" if _build_mode.compiled else "plain"
        python = ".".join(map(str, sys.version_info[:3]))
        about = gauge("tidemill_info", "Always 1; its labels name version, data path and Python.")
        yield about.add(1, version=__version__, mode=mode, python=python)
        compiled = float(_build_mode.compiled)
        yield gauge("tidemill_compiled", "1 if the data path is compiled, 0 if it is plain Python.", compiled)
        uptime = time.monotonic() - self._began
        yield gauge("tidemill_uptime_seconds", "Seconds since the broker started.", uptime)
        yield gauge("process_start_time_seconds", "Start time in seconds since 1970.", self._started)
        yield gauge("process_resident_memory_bytes", "Resident memory of the process.", resident_bytes())
        times = os.times()
        yield counter("process_cpu_seconds", "CPU time of the process.", times.user + times.system)
        opened = open_files()
        if opened is not None:
            yield gauge("process_open_fds", "Open files and sockets.", opened)


def resident_bytes() -> int:
    """The resident memory of this process; its maximum so far on systems without ``/proc``."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        import resource

        highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return highest if sys.platform == "darwin" else highest * 1024


def open_files() -> int | None:
    """The number of open descriptors; None if the system does not provide it."""
    for directory in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(directory))
        except OSError:
            continue
    return None


def render(families: Iterable[Family | None], accept: str = "") -> tuple[str, bytes]:
    """The content type and body for a scrape with the ``Accept`` header ``accept``."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector, CollectorRegistry

    def translated(family: Family) -> Metric:
        names = list(dict.fromkeys(name for labels, _ in family.samples for name in labels))
        made: Metric
        if family.kind == HISTOGRAM:
            made = HistogramMetricFamily(family.name, family.help, labels=names)
            for labels, value in family.samples:
                if isinstance(value, TimeHistogram):
                    made.add_metric([labels.get(n, "") for n in names], value.cumulative(), value.sum)
            return made
        kind = CounterMetricFamily if family.kind == COUNTER else GaugeMetricFamily
        made = kind(family.name, family.help, labels=names)
        for labels, value in family.samples:
            if not isinstance(value, TimeHistogram):
                made.add_metric([labels.get(n, "") for n in names], value)
        return made

    gathered = [translated(family) for family in families if family is not None]

    class Gathered(Collector):
        def collect(self) -> Iterable[Metric]:
            return gathered

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Gathered())
    encode, content_type = choose_encoder(accept)
    return content_type, encode(registry)
