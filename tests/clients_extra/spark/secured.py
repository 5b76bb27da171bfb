"""Reads and writes a secured cluster with Spark, and tells what Spark shows of it.

For test_extra_secured_spark.py. The settings come as JSON on standard input: ``logins`` (options of the
format, by name), ``topics`` (a filled and an empty one for each), ``wrong`` (options whose login is
refused) and ``directory``. The answer is one line of JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tidemill.pipeline.jobs.session import local_session


def main() -> None:
    given: dict[str, Any] = json.load(sys.stdin)
    directory = Path(given["directory"])
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(directory / "events"),
        "spark.eventLog.compress": "false",
        "spark.sql.maxPlanStringLength": "10000000",
        "spark.sql.ui.explainMode": "extended",
    }
    spark = local_session("secured", master="local[2]", settings=settings)
    # As in a user's session with Spark's default settings.
    spark.conf.unset("spark.sql.redaction.options.regex")
    results: dict[str, Any] = {"shown": []}
    explain = spark.sparkContext._jvm.PythonSQLUtils.explainString
    for name, options in given["logins"].items():
        filled, empty = given["topics"][name]
        rows = spark.range(100).selectExpr("cast(id as string) as value")
        rows.write.format("tidemill").options(**options, topic=filled).mode("append").save()
        frame = spark.read.format("tidemill").options(**options, subscribe=filled).load()
        values = sorted(int(row.value) for row in frame.select("value").collect())
        stream = spark.readStream.format("tidemill").options(**options, subscribe=filled)
        query = (
            stream.option("startingOffsets", "earliest")
            .load()
            .writeStream.format("tidemill")
            .options(**options, topic=empty)
            .option("checkpointLocation", str(directory / "checkpoint" / name))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        copied = spark.read.format("tidemill").options(**options, subscribe=empty).load().count()
        results[name] = {"values": values, "copied": copied}
        results["shown"].append(explain(frame._jdf.queryExecution(), "extended"))
        results["shown"].append(query._jsq.explainInternal(True))
        results["shown"] += [str(progress) for progress in query.recentProgress]
    try:
        spark.read.format("tidemill").options(**given["wrong"], subscribe="any").load().count()
    except Exception as problem:  # noqa: BLE001 - whatever Spark makes of it
        results["wrong"] = str(problem)
    spark.stop()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
