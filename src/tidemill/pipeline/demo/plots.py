"""The plots of the report, as SVG text."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any

BLUE, TEAL, AMBER, RED, INK = "#2563eb", "#0d9488", "#d97706", "#dc2626", "#1e293b"
SERIES = (
    "#2563eb", "#0d9488", "#d97706", "#7c3aed", "#dc2626", "#0891b2", "#65a30d", "#db2777",
    "#4f46e5", "#ca8a04", "#059669", "#9333ea", "#ea580c", "#0284c7", "#b91c1c", "#64748b",
)  # fmt: skip

STYLE = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#cbd5e1",
    "axes.labelcolor": "#475569",
    "axes.titlecolor": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e2e8f0",
    "grid.linewidth": 0.7,
    "xtick.color": "#64748b",
    "ytick.color": "#64748b",
    "text.color": INK,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "tidemill",
}


def messages_a_day(
    published: Mapping[str, Mapping[str, int]], loaded: Mapping[str, Mapping[str, int]]
) -> str:
    """Plots the messages published and loaded on each day, one panel per topic, and their difference."""

    def draw(figure: Any) -> None:
        axes = figure.subplots(
            len(published), 1, sharex=True, gridspec_kw={"height_ratios": [3, 2][: len(published)]}
        )
        for axis, topic in zip(axes, published, strict=True):
            days = sorted(set(published[topic]) | set(loaded[topic]))
            dates = [date.fromisoformat(day) for day in days]
            sent = [published[topic].get(day, 0) for day in days]
            came = [loaded[topic].get(day, 0) for day in days]
            axis.fill_between(dates, sent, color=BLUE, alpha=0.18, linewidth=0, label="published")
            axis.plot(dates, came, color=BLUE, linewidth=1.1, label="loaded into Parquet")
            wrong = [
                (day, count) for day, count, other in zip(dates, came, sent, strict=True) if count != other
            ]
            if wrong:
                axis.plot(*zip(*wrong, strict=True), "x", color=RED, label="differs")
            axis.set_ylim(0)
            axis.set_ylabel("messages per day")
            axis.set_title(f"{topic}: {len(days)} days, {len(wrong)} of them differ")
            axis.legend(loc="lower right", ncols=3, fontsize=9)
        axes[-1].set_xlabel("local date in New York")

    return _svg(draw, 10, 5.2)


def rows_a_partition(
    topics: Mapping[str, Mapping[int, int]],
    keys: Mapping[str, Mapping[str, int]],
    partition_of: Callable[[str, int], int],
) -> str:
    """Plots the rows of each partition, stacked by key."""

    def draw(figure: Any) -> None:
        axes = figure.subplots(1, len(topics), gridspec_kw={"width_ratios": [3, 2][: len(topics)]})
        for axis, topic in zip(axes, topics, strict=True):
            rows = topics[topic]
            height = dict.fromkeys(rows, 0)
            top = max(rows.values(), default=1)
            for index, (key, count) in enumerate(sorted(keys[topic].items(), key=lambda item: -item[1])):
                partition = partition_of(key, len(rows))
                axis.bar(
                    partition,
                    count,
                    bottom=height[partition],
                    color=SERIES[index % len(SERIES)],
                    edgecolor="white",
                    linewidth=0.8,
                )
                if count > top * 0.045:
                    axis.text(
                        partition,
                        height[partition] + count / 2,
                        key,
                        ha="center",
                        va="center",
                        color="white",
                        fontsize=9,
                        fontweight="bold",
                    )
                height[partition] += count
            for partition, count in rows.items():
                axis.text(partition, count + top * 0.015, f"{count:,}", ha="center", va="bottom", fontsize=9)
            axis.set_xticks(list(rows))
            axis.set_xlabel("partition")
            axis.set_ylim(0, top * 1.1)
            axis.grid(axis="x", visible=False)
            axis.set_title(f"{topic}: rows by partition and key")
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")

    return _svg(draw, 10, 4)


def delay_by_hour_and_carrier(delays: Sequence[Any]) -> str:
    """Plots the mean departure delay by hour and carrier, and the mean of all carriers by hour."""

    def draw(figure: Any) -> None:
        import numpy as np

        hours = sorted({row["hour"] for row in delays if row["departed"]})
        departed = {row["carrier"]: 0 for row in delays}
        for row in delays:
            departed[row["carrier"]] += row["departed"]
        carriers = sorted(departed, key=lambda name: -departed[name])
        field = np.full((len(carriers), len(hours)), np.nan)
        total, weight = dict.fromkeys(hours, 0.0), dict.fromkeys(hours, 0)
        for row in delays:
            if row["departed"]:
                mean, count = row["dep_delay_mean"], row["departed"]
                total[row["hour"]] += mean * count
                weight[row["hour"]] += count
                if count >= 20:
                    field[carriers.index(row["carrier"]), hours.index(row["hour"])] = mean
        above, below = figure.subplots(2, 1, gridspec_kw={"height_ratios": [2, 5]})
        above.bar(hours, [total[hour] / weight[hour] for hour in hours], color=AMBER, width=0.8)
        above.set_title("all carriers: mean departure delay, minutes")
        above.set_xticks(hours)
        above.set_xlim(hours[0] - 0.5, hours[-1] + 0.5)
        above.grid(axis="x", visible=False)
        shown = np.ma.masked_invalid(field)
        drawn = below.pcolormesh(
            [hour - 0.5 for hour in hours] + [hours[-1] + 0.5],
            range(len(carriers) + 1),
            shown,
            cmap="YlOrRd",
            vmin=-5,
            vmax=50,
        )
        for y, carrier in enumerate(carriers):
            for x, hour in enumerate(hours):
                if not np.isnan(field[y, x]):
                    below.text(
                        hour,
                        y + 0.5,
                        str(round(field[y, x])),
                        ha="center",
                        va="center",
                        fontsize=8,
                        color="white" if field[y, x] > 32 else INK,
                    )
            below.text(
                hours[-1] + 0.7, y + 0.5, f"{departed[carrier]:,}", va="center", fontsize=8, color="#64748b"
            )
        below.set_yticks([y + 0.5 for y in range(len(carriers))], carriers)
        below.set_xticks(hours)
        below.set_ylim(len(carriers), 0)
        below.grid(visible=False)
        below.set_xlabel("hour of the scheduled departure, local time")
        below.set_title("by carrier (departures at the right; cells with fewer than 20 are omitted)")
        drawn.set_edgecolor("white")
        drawn.set_linewidth(0.5)

    return _svg(draw, 10, 7.2)


MEASURES = (
    ("visib", "visibility, miles", TEAL, "{:.0f}"),
    ("precip", "precipitation, inches per hour (from)", BLUE, "{:g}"),
    ("wind_speed", "wind, miles per hour (from)", AMBER, "{:.0f}"),
)


def delay_by_weather(rows: Sequence[Any]) -> str:
    """Plots the mean departure delay and the share of cancelled flights by classes of three measures."""

    def draw(figure: Any) -> None:
        grid = figure.subplots(2, len(MEASURES), sharey="row", gridspec_kw={"height_ratios": [3, 2]})
        for column, (measure, label, colour, form) in enumerate(MEASURES):
            classes = [row for row in rows if row["measure"] == measure]
            names = [form.format(row["class_from"]) for row in classes]
            above, below = grid[0][column], grid[1][column]
            delay = [row["dep_delay_mean"] or 0 for row in classes]
            above.bar(names, delay, color=colour)
            for x, row in enumerate(classes):
                above.text(
                    x, delay[x] + 0.6, _short(row["flights"]), ha="center", fontsize=7.5, color="#64748b"
                )
            below.bar(names, [100 * row["cancelled"] for row in classes], color=colour, alpha=0.55)
            below.set_xlabel(label)
            for axis in (above, below):
                axis.grid(axis="x", visible=False)
                axis.tick_params(axis="x", labelsize=8.5)
        grid[0][0].set_ylabel("mean departure delay, minutes")
        grid[1][0].set_ylabel("cancelled, %")

    return _svg(draw, 10, 5.4)


def _short(count: int) -> str:
    return (
        f"{count / 1000:.0f}k" if count >= 10_000 else f"{count / 1000:.1f}k" if count >= 1000 else str(count)
    )


def _svg(draw: Callable[[Any], None], width: float, height: float) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    # The page sets the size; the ids of several plots on one page must differ.
    mark = f"p{abs(hash(svg)) % 10**8}"
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{mark}-\1"', svg)
    svg = re.sub(r'(xlink:href|href)="#([^"]+)"', rf'\1="#{mark}-\2"', svg)
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{mark}-\1)", svg)
