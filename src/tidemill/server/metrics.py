"""What a broker tells about itself, in Prometheus' exposition format.

The broker keeps plain counters; a :class:`Family` is made of them when somebody asks. ``prometheus_client``
renders the families, and is imported by the first scrape only.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable

from tidemill import __version__, _mode
from tidemill.model.counters import TimeHistogram

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"


class Family:
    """One metric: its name, kind and help, and a value for each set of labels.

    Counters are named without ``_total``; the exposition adds it.
    """

    __slots__ = ("help", "kind", "name", "samples")

    def __init__(self, name: str, kind: str, help: str) -> None:
        self.name = name
        self.kind = kind
        self.help = help
        self.samples: list[tuple[dict[str, str], float | TimeHistogram]] = []

    def add(self, value: float | TimeHistogram, **labels: str) -> Family:
        """One value, by its labels."""
        self.samples.append((labels, value))
        return self


def counter(name: str, help: str, value: float | None = None, **labels: str) -> Family:
    """A count that only grows."""
    family = Family(name, COUNTER, help)
    return family if value is None else family.add(value, **labels)


def gauge(name: str, help: str, value: float | None = None, **labels: str) -> Family:
    """A value that goes up and down."""
    family = Family(name, GAUGE, help)
    return family if value is None else family.add(value, **labels)


class ProcessMetrics:
    """What the process knows of itself."""

    def __init__(self) -> None:
        self._started = time.time()
        self._began = time.monotonic()

    def families(self) -> Iterable[Family]:
        """Version, mode, uptime, memory, processor time, open files."""
        mode = "compiled" if _mode.compiled else "plain"
        python = ".".join(map(str, sys.version_info[:3]))
        about = gauge("tidemill_info", "Always 1; its labels name version, data path and Python.")
        yield about.add(1, version=__version__, mode=mode, python=python)
        compiled = float(_mode.compiled)
        yield gauge("tidemill_compiled", "1 when the data path runs compiled, 0 as plain Python.", compiled)
        uptime = time.monotonic() - self._began
        yield gauge("tidemill_uptime_seconds", "Seconds since the broker started.", uptime)
        yield gauge("process_start_time_seconds", "The start, in seconds since 1970.", self._started)
        yield gauge("process_resident_memory_bytes", "Memory of the process in RAM.", resident_bytes())
        times = os.times()
        yield counter("process_cpu_seconds", "Processor time of the process.", times.user + times.system)
        opened = open_files()
        if opened is not None:
            yield gauge("process_open_fds", "Open files and sockets.", opened)


def resident_bytes() -> int:
    """Memory of this process that is in RAM; its highest so far where the system tells no more."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        import resource

        highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return highest if sys.platform == "darwin" else highest * 1024


def open_files() -> int | None:
    """How many descriptors are open; None where the system does not tell."""
    for directory in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(directory))
        except OSError:
            continue
    return None


def render(families: Iterable[Family | None], accept: str = "") -> tuple[str, bytes]:
    """Content type and body for a scrape whose ``Accept`` header is ``accept``."""
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
