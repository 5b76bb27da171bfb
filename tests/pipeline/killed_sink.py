"""A streaming query of its own, from one topic into another, exactly once; something happens at one step.

``python tests/pipeline/killed_sink.py BOOTSTRAP SOURCE TARGET CHECKPOINT MASTER TASKS WRITE``
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame

from tidemill.pipeline.jobs.session import local_session

OFFSETS_PER_TRIGGER = 60


def main(
    bootstrap: str, source: str, target: str, checkpoint: str, master: str, tasks: str, write: str
) -> None:
    """Writes what is there. ``tasks`` is a number or ``any``, ``write`` is ``stream`` or ``foreachBatch``."""
    spark = local_session(
        "killed sink",
        master=master,
        settings={
            "spark.task.maxFailures": "4",
            "spark.executor.memory": "1g",
            "spark.sql.adaptive.enabled": "true",
            "spark.speculation": "true",
            "spark.speculation.interval": "50ms",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.quantile": "0.3",
        },
    )
    spark.sparkContext.setLogLevel("OFF")
    messages = (
        spark.readStream.format("tidemill")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", OFFSETS_PER_TRIGGER)
        .load()
        .select("key", "value")
    )
    divided = messages.repartition("value") if tasks == "any" else messages.repartition(int(tasks), "value")
    sink = {"kafka.bootstrap.servers": bootstrap, "topic": target, "delivery": "exactly-once"}

    def put(batch: DataFrame, batch_id: int) -> None:
        identity = {"writeId": target, "batchId": str(batch_id)}
        batch.write.format("tidemill").options(**sink, **identity).mode("append").save()

    if write == "stream":
        writer = divided.writeStream.format("tidemill").options(**sink)
    else:
        writer = divided.writeStream.foreachBatch(put)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
