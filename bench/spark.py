"""Spark reading one topic: with our source, and with Spark's own Kafka connector.

    JARS=a.jar,b.jar python bench/spark.py BOOTSTRAP TOPIC ROWS

The topic holds ROWS messages (``bench/spark.py fill BOOTSTRAP TOPIC ROWS`` writes them, 100 B each, 4
partitions). Without ``JARS`` only our source is measured. The connector needs spark-sql-kafka-0-10,
spark-token-provider-kafka-0-10, kafka-clients and commons-pool2 of the version of PySpark.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from typing import Any

ROUNDS = 4


def fill(bootstrap: str, topic: str, rows: int) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(topic, 4, 1)]).values():
        made.result()
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "batch.size": 900_000,
            "queue.buffering.max.messages": 2_000_000,
        }
    )
    for number in range(rows):
        producer.produce(topic, b"x" * 100, partition=number % 4)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()


def session() -> Any:
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
    )
    if os.environ.get("JARS"):
        builder = builder.config("spark.jars", os.environ["JARS"])
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def measure(spark: Any, source: str, bootstrap: str, topic: str, rows: int, out: str) -> tuple[float, float]:
    """Rows a second, counted and written to Parquet."""
    frame = (
        spark.read.format(source)
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .load()
    )
    begin = time.perf_counter()
    found = frame.selectExpr("sum(length(value))", "count(1)").collect()[0][1]
    counted_s = time.perf_counter() - begin
    if found != rows:
        raise SystemExit(f"bench: {source} counted {found} rows, the topic holds {rows}")
    begin = time.perf_counter()
    frame.select("offset", "key", "value").write.mode("overwrite").parquet(out)
    return rows / counted_s, rows / (time.perf_counter() - begin)


def main(arguments: list[str]) -> None:
    if len(arguments) == 4 and arguments[0] == "fill":
        fill(arguments[1], arguments[2], int(arguments[3]))
        return
    if len(arguments) != 3:
        raise SystemExit(__doc__)
    bootstrap, topic, rows = arguments[0], arguments[1], int(arguments[2])
    out = tempfile.mkdtemp(prefix="tidemill-spark-")
    sources = ["tidemill", *(["kafka"] if os.environ.get("JARS") else [])]
    spark = session()
    rates: dict[str, list[tuple[float, float]]] = {source: [] for source in sources}
    for turn in range(ROUNDS):
        for source in sources:
            figures = measure(spark, source, bootstrap, topic, rows, out)
            if turn:
                rates[source].append(figures)
    shutil.rmtree(out, ignore_errors=True)
    print("| source | count, rows/s | to Parquet, rows/s |\n|---|---|---|")
    for source, figures_of in rates.items():
        count, parquet = (statistics.median(column) for column in zip(*figures_of, strict=True))
        print(f"| {source} | {count:,.0f} | {parquet:,.0f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
