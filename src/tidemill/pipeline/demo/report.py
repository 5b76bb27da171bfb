"""The report: one self-contained HTML file."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path

from tidemill.client.partitioners import murmur2_partition
from tidemill.pipeline.demo import plots
from tidemill.pipeline.demo.flights import FLIGHTS, WEATHER
from tidemill.pipeline.demo.results import Results

CSS = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; color: #1e293b;
  background: #f1f5f9; margin: 0; }
main { max-width: 1040px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 8px; letter-spacing: -0.02em; }
h2 { font-size: 20px; margin: 0 0 6px; letter-spacing: -0.01em; }
p { margin: 0 0 12px; max-width: 78ch; }
section { background: #fff; border: 1px solid #e2e8f0; border-radius: 12px; padding: 22px 24px;
  margin: 18px 0; }
svg { width: 100%; height: auto; display: block; margin: 10px 0 2px; }
table { border-collapse: collapse; width: 100%; font-size: 14.5px; margin-top: 6px; }
th { text-align: left; color: #64748b; font-weight: 600; border-bottom: 1px solid #cbd5e1;
  padding: 6px 10px 6px 0; }
td { border-bottom: 1px solid #eef2f7; padding: 6px 10px 6px 0; vertical-align: top; }
tr:last-child td { border-bottom: 0; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.ok { color: #15803d; font-weight: 600; white-space: nowrap; }
.bad { color: #b91c1c; font-weight: 700; white-space: nowrap; }
.verdict { border-left: 6px solid #16a34a; }
.verdict.failed { border-left-color: #dc2626; }
.verdict h1 { margin-top: 2px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(250px, 42%), 1fr)); gap: 12px;
  margin-top: 18px; }
.tile { background: #f8fafc; border: 1px solid #e2e8f0; border-radius: 10px; padding: 12px 14px; }
.tile b { display: block; font-size: 23px; letter-spacing: -0.02em; }
.tile span { color: #64748b; font-size: 13.5px; }
.bar { background: #dbeafe; height: 12px; border-radius: 3px; min-width: 2px; }
.muted { color: #64748b; font-size: 14px; }
.wide { overflow-x: auto; }
.wide > svg { min-width: 620px; }
@media (max-width: 640px) {
  main { padding: 12px 10px 40px; }
  section { padding: 16px 14px; }
  table { font-size: 13px; }
  td:first-child { min-width: 11em; }
  .short td:first-child { min-width: 0; }
}
"""


def sections(results: Results) -> str:
    """Renders the page below the verdict. The plots take seconds."""
    parts = [
        _days(results),
        _partitions(results),
        _restart(results),
        _delays(results),
        _checks(results),
        _files(results),
        _timings(results),
    ]
    return "".join(parts)


def write_report(path: Path, results: Results, body: str) -> None:
    """Writes the page: the verdict, then ``body`` from :func:`sections`."""
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Tidemill: the flights of 2013</title><style>{CSS}</style></head>"
        f"<body><main>{_verdict(results)}{body}</main></body></html>"
    )
    path.write_text(page, encoding="utf-8")


def _verdict(results: Results) -> str:
    failed = [check for check in results.checks if not check.passed]
    count = len(results.checks)
    head = f"All {count} checks passed" if results.passed else f"{len(failed)} of {count} checks failed"
    flights, weather = (results.topics[topic].published for topic in (FLIGHTS, WEATHER))
    tiles = [
        (f"{flights.rows:,}", "flights, each once in Parquet"),
        (f"{weather.rows:,}", "weather reports, likewise"),
        (f"{(flights.value_bytes + weather.value_bytes) / 1e6:,.0f} MB", "of JSON through the log"),
        ("1", "load killed (SIGKILL) and restarted"),
        (f"{results.aggregate_rows:,}", "rows of delays, in Parquet and in a topic"),
        (f"{results.seconds:,.0f} s", "from start to this page"),
    ]
    text = "".join(f'<div class="tile"><b>{number}</b><span>{label}</span></div>' for number, label in tiles)
    failures = "".join(
        f'<p class="bad">{html.escape(check.question)}: expected {check.expected}, found {check.found}</p>'
        for check in failed
    )
    return (
        f'<section class="verdict{"" if results.passed else " failed"}">'
        f"<h1>{head}</h1><p>The flights that left New York in 2013, and the weather there, were published "
        "to a tidemill broker, loaded by Spark into Parquet while the load was killed once, joined, and "
        "the result published again. Each check compares two numbers. The <b>expected</b> number is counted "
        "in the CSV files, with Python's csv module, or computed from the broker's offsets; the number "
        "<b>found</b> comes from the Parquet files, or from the topics read again. For the aggregate, "
        'topic and Parquet are compared with each other. <a href="#checks">All checks, with their '
        f"numbers</a>.</p>{failures}<div "
        f'class="tiles">{text}</div></section>'
    )


def _days(results: Results) -> str:
    published = {topic: loaded.published.by_date for topic, loaded in results.topics.items()}
    loaded = {
        topic: {
            row["event_date"].isoformat(): row["count"]
            for row in loaded.days
            if row["event_date"] is not None
        }
        for topic, loaded in results.topics.items()
    }
    return _section(
        "Published and loaded, day by day",
        "The area is the count of the producer; the line is the number of rows in the folder of that "
        "date. A date is the local date in New York of the record's time: the scheduled departure of a "
        "flight, the hour of a weather report. In UTC, more than a tenth of the flights would have "
        "another date.",
        plots.messages_a_day(published, loaded),
    )


def _partitions(results: Results) -> str:
    rows = {
        topic: {partition: end - first for partition, (first, end) in loaded.ends.items()}
        for topic, loaded in results.topics.items()
    }
    keys = {topic: loaded.published.by_key for topic, loaded in results.topics.items()}
    flights = rows[FLIGHTS]
    largest = max(flights, key=lambda partition: flights[partition])
    share = flights[largest] / max(1, sum(flights.values()))
    empty = [str(partition) for partition, count in flights.items() if count == 0]
    text = (
        "All messages of a key go to one partition: murmur2 of the key, modulo the number of partitions, "
        f"as with every Kafka client. Few keys therefore spread unevenly. Partition {largest} has "
        f"{share:.0%} of the flights"
        + (f", partition {' and '.join(empty)} none at all" if empty else "")
        + f", and the {len(keys[WEATHER])} airports of the weather fill "
        f"{sum(1 for count in rows[WEATHER].values() if count)} partitions. That is the cost of order by "
        "key, not a defect; Spark balances it when it repartitions the rows by date."
    )
    return _section(
        "Why partitions are uneven",
        text,
        plots.rows_a_partition(rows, keys, lambda key, count: murmur2_partition(key.encode(), count)),
    )


def _restart(results: Results) -> str:
    again = (
        " The second run found the offsets of the unfinished batch in the checkpoint and repeated it, from "
        "the same first message to the same last message. Files of the first attempt were in a staging "
        "folder, which was removed: no reader has seen them."
    )
    largest = max((batch.rows for batch in results.batches), default=1)
    lines = []
    for batch in results.batches:
        done = batch.seconds is not None
        state = (
            f'<span class="ok">{batch.seconds:.1f} s</span>' if done else '<span class="bad">killed</span>'
        )
        width = 100 * batch.rows / largest
        lines.append(
            f'<tr><td>{batch.run}</td><td class="n">{batch.batch}</td><td class="n">{batch.rows:,}</td>'
            f'<td style="width:45%"><div class="bar" style="width:{width:.1f}%;'
            f'{"" if done else "background:#fecaca"}"></div></td><td>{state}</td></tr>'
        )
    table = (
        '<table class="short"><tr><th>run</th><th class="n">batch</th><th '
        'class="n">messages</th><th></th><th>took</th></tr>'
        f"{''.join(lines)}</table>"
    )
    return _section(
        "The load that was killed",
        html.escape(results.killed)
        + (again if any(batch.seconds is None for batch in results.batches) else ""),
        table,
    )


def _delays(results: Results) -> str:
    first = _section(
        "Delay by hour and carrier",
        "Delay grows over the day, and so does the difference between carriers. From the aggregate that "
        "was written to Parquet and to the topic.",
        plots.delay_by_hour_and_carrier(results.delays),
    )
    second = _section(
        "Delay and weather",
        "Each flight with the weather of its airport in the hour of its scheduled departure. The number "
        "above a bar is the number of flights in the class: the ends are small. Poor visibility, rain and "
        "wind cost minutes, and flights.",
        plots.delay_by_weather(results.weather),
    )
    return first + second


def _checks(results: Results) -> str:
    body = "".join(
        f'<tr><td>{html.escape(check.question)}</td><td class="n">{check.expected}</td>'
        f'<td class="n">{check.found}</td>'
        f'<td class="{"ok" if check.passed else "bad"}">{"agrees" if check.passed else "differs"}</td></tr>'
        for check in results.checks
    )
    head = '<tr><th>check</th><th class="n">expected</th><th class="n">found</th><th></th></tr>'
    table = f"<table>{head}{body}</table>"
    return _section(
        "Every check, with its numbers",
        "The expected number comes from the files, read with Python's csv module, or from the "
        "broker's offsets; the number found comes from Parquet, or from the topic read again.",
        table,
        "checks",
    )


def _files(results: Results) -> str:
    rows = [
        [
            topic,
            f"{loaded.files.folders:,}",
            f"{loaded.files.count:,}",
            f"{loaded.files.size_bytes / 1e6:,.1f} MB",
            f"{loaded.files.size_bytes / max(1, loaded.published.value_bytes):.0%}",
            f"{loaded.files.discarded:,}",
        ]
        for topic, loaded in results.topics.items()
    ]
    head = ["table", "dates", "files", "bytes", "of the JSON", "staged by the killed attempt"]
    return _section(
        "Files",
        "Rows are repartitioned by date before they are written: about one file per date and "
        "micro-batch, where independent tasks would write six. Every file in the folder is valid, "
        "for every reader.",
        _table(head, rows),
    )


def _timings(results: Results) -> str:
    longest = max((step.seconds for step in results.steps), default=1)
    lines = "".join(
        f'<tr><td>{html.escape(step.name)}</td><td class="n">{step.seconds:.1f} s</td>'
        '<td style="width:38%"><div class="bar" '
        f'style="width:{100 * step.seconds / longest:.1f}%"></div></td>'
        f'<td class="muted">{html.escape(step.note)}</td></tr>'
        for step in results.steps
    )
    facts = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>"
        for name, value in {**results.facts, **results.versions}.items()
    )
    return _section("Time", "", f"<table>{lines}</table>") + _section(
        "This run", "", f"<table>{facts}</table>"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    names = "".join(f"<th{' class=n' if index else ''}>{name}</th>" for index, name in enumerate(head))
    body = "".join(
        "<tr>"
        + "".join(f"<td{' class=n' if index else ''}>{cell}</td>" for index, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return f"<table><tr>{names}</tr>{body}</table>"


def _section(title: str, text: str, body: str, name: str = "") -> str:
    """Renders a section. On a narrow screen plots and tables scroll in their own frame."""
    mark = f' id="{name}"' if name else ""
    words = f"<p>{text}</p>" if text else ""
    return f'<section{mark}><h2>{title}</h2>{words}<div class="wide">{body}</div></section>'
