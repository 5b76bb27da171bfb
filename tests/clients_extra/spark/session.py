"""A Spark process that executes requests: one line each on standard input, one line of response each.

Both are JSON: ``{"do": "read", ...}``, and the response ``{"result": ...}`` or ``{"error": "..."}``. It is a
separate program because its PySpark is another version than that of the tests.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession

PLACES = ("topic", "partition", "offset")
COLUMNS = ("hex(key)", "hex(value)", *PLACES, "unix_millis(timestamp)", "timestampType")
HEADERS = "transform(headers, one -> array(one.key, hex(one.value)))"


class Session:
    """The requests: one method each."""

    def __init__(self, jars: str) -> None:
        self.spark = (
            SparkSession.builder.master("local[2]")
            .appName("connector")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.jars", jars)
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .getOrCreate()
        )
        self.spark.sparkContext.setLogLevel("ERROR")

    def version(self) -> str:
        """Returns the version of Spark."""
        return str(self.spark.version)

    def set(self, key: str, value: str) -> None:
        """Changes a setting of the session."""
        self.spark.conf.set(key, value)

    def read(self, source: str, options: dict[str, str]) -> dict[str, Any]:
        """Returns the rows of a batch by position, its schema, and its number of tasks."""
        frame = self.spark.read.format(source).options(**options).load()
        columns = [*COLUMNS, HEADERS] if "headers" in frame.columns else COLUMNS
        rows = frame.orderBy(*PLACES).selectExpr(*columns).collect()
        return {
            "rows": [list(row) for row in rows],
            "schema": frame.dtypes,
            "tasks": frame.rdd.getNumPartitions(),
        }

    def count(self, source: str, options: dict[str, str]) -> int:
        """Returns the number of rows of a batch."""
        return self.spark.read.format(source).options(**options).load().count()

    def stream(self, source: str, options: dict[str, str], output: str, checkpoint: str) -> list[int]:
        """Runs a stream into Parquet up to the current end; returns the rows of each micro-batch."""
        query = (
            self.spark.readStream.format(source)
            .options(**options)
            .load()
            .writeStream.format("parquet")
            .option("path", output)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]

    def places(self, output: str) -> list[list[Any]]:
        """Returns topic, partition and offset of each row that streams have written."""
        rows = self.spark.read.parquet(output).select(*PLACES).collect()
        return sorted(list(row) for row in rows)

    def write(self, sink: str, query: str, options: dict[str, str]) -> None:
        """Writes the result of an SQL query."""
        self.spark.sql(query).write.format(sink).options(**options).mode("append").save()

    def forward(
        self, source: str, options: dict[str, str], sink: str, written: dict[str, str], checkpoint: str
    ) -> None:
        """Runs a stream from topic to topic up to the current end."""
        frame: DataFrame = self.spark.readStream.format(source).options(**options).load()
        query = (
            frame.select("key", "value", "headers")
            .writeStream.format(sink)
            .options(**written)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


def main() -> None:
    # Output of Java must not be mistaken for a response.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    session = Session(os.environ["JARS"])
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": getattr(session, request.pop("do"))(**request)}
        except Exception as problem:  # noqa: BLE001 - each failure is an answer
            answer = {"error": str(problem)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    session.spark.stop()


if __name__ == "__main__":
    main()
