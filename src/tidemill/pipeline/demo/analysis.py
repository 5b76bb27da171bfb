"""Analyses the loaded tables with Spark: DataFrame to DataFrame, without access to brokers or files."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

WEATHER_FIELDS = ("temp", "wind_speed", "precip", "visib")

PRECIPITATION_EDGES = (0.0, 0.01, 0.05, 0.1, 0.2)
"""Lower bounds of the classes, in inches per hour."""
WIND_MAX = 34.0
"""In miles per hour; the class from 30 includes all higher values."""


def with_weather(flights: DataFrame, weather: DataFrame) -> DataFrame:
    """Joins each flight with the weather of its airport in the hour of its scheduled departure.

    A left join: a flight without a report for that hour is kept, with ``has_weather`` false. The hour is the
    timestamp ``time_hour``: local year, month, day and hour are ambiguous when clocks go back.
    """
    reports = weather.select("origin", "time_hour", *WEATHER_FIELDS, f.lit(True).alias("reported"))
    joined = flights.join(reports, ["origin", "time_hour"], "left")
    return joined.withColumn("has_weather", f.coalesce(f.col("reported"), f.lit(False))).drop("reported")


def delays_by_carrier_and_hour(joined: DataFrame) -> DataFrame:
    """Aggregates by carrier and hour of the day (local time): flights, delays in minutes, weather."""
    return (
        joined.groupBy("carrier", "hour")
        .agg(
            f.count(f.lit(1)).alias("flights"),
            f.count("dep_delay").alias("departed"),
            f.avg("dep_delay").alias("dep_delay_mean"),
            f.percentile_approx("dep_delay", 0.9).alias("dep_delay_p90"),
            f.avg("arr_delay").alias("arr_delay_mean"),
            f.count_if("has_weather").alias("with_weather"),
            f.avg("visib").alias("visib_mean"),
            f.avg("wind_speed").alias("wind_speed_mean"),
            f.avg("precip").alias("precip_mean"),
        )
        .orderBy("carrier", "hour")
    )


def delay_by_weather(joined: DataFrame) -> DataFrame:
    """Computes the mean departure delay and the number of flights by visibility, precipitation and wind.

    Rows of (``measure``, ``class_from``, ``flights``, ``dep_delay_mean``, ``cancelled``); units are miles,
    inches per hour and miles per hour, ``cancelled`` is a fraction. A flight without a measurement has no
    class.
    """
    rain = f.lit(PRECIPITATION_EDGES[0])
    for edge in PRECIPITATION_EDGES[1:]:
        rain = f.when(f.col("precip") >= edge, f.lit(edge)).otherwise(rain)
    classes = {
        "visib": f.floor("visib").cast("double"),
        "precip": f.when(f.col("precip").isNotNull(), rain),
        # least() ignores null, which would put flights without a measurement into the strongest class.
        "wind_speed": f.when(
            f.col("wind_speed").isNotNull(),
            (f.floor(f.least(f.col("wind_speed"), f.lit(WIND_MAX)) / 5) * 5).cast("double"),
        ),
    }
    parts = [
        joined.select(f.lit(measure).alias("measure"), value.alias("class_from"), "dep_delay")
        for measure, value in classes.items()
    ]
    together = reduce(lambda left, right: left.unionByName(right), parts)
    return (
        together.where(f.col("class_from").isNotNull())
        .groupBy("measure", "class_from")
        .agg(
            f.count(f.lit(1)).alias("flights"),
            f.avg("dep_delay").alias("dep_delay_mean"),
            (1 - f.count("dep_delay") / f.count(f.lit(1))).alias("cancelled"),
        )
        .orderBy("measure", "class_from")
    )


def places(loaded: DataFrame) -> DataFrame:
    """Aggregates by partition: rows, distinct offsets, first and last offset, rows with a raw value."""
    return (
        loaded.groupBy("kafka_partition")
        .agg(
            f.count(f.lit(1)).alias("rows"),
            f.countDistinct("kafka_offset").alias("distinct_offsets"),
            f.min("kafka_offset").alias("first_offset"),
            f.max("kafka_offset").alias("last_offset"),
            f.count("raw_value").alias("raw"),
        )
        .orderBy("kafka_partition")
    )


def months(loaded: DataFrame, measure: str) -> DataFrame:
    """Aggregates by month: rows, sum and count of ``measure``, rows with another event date."""
    date = f.make_date("year", "month", "day")
    return (
        loaded.groupBy("month")
        .agg(
            f.count(f.lit(1)).alias("rows"),
            f.sum(measure).alias("total"),
            f.count(measure).alias("values"),
            f.count_if(~f.col("event_date").eqNullSafe(date)).alias("other_date"),
        )
        .orderBy("month")
    )


def days(loaded: DataFrame) -> DataFrame:
    """Counts rows by event date."""
    return loaded.groupBy("event_date").count().orderBy("event_date")
