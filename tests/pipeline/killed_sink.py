"""A streaming query of its own, from one topic into another, exactly once; something kills it at one step.

``python tests/pipeline/killed_sink.py BOOTSTRAP SOURCE TARGET CHECKPOINT CORES SHUFFLES``. It leads a process
group, whose number it writes beside the checkpoint.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tidemill.pipeline.jobs.session import local_session

TASK_FAILURES_MAX = 4
OFFSETS_PER_TRIGGER = 60


def main(bootstrap: str, source: str, target: str, checkpoint: str, cores: str, shuffles: str) -> None:
    """Writes what is there."""
    Path(checkpoint + ".driver").write_text(str(os.getpgrp()))
    spark = local_session(
        "killed sink",
        master=f"local[{cores},{TASK_FAILURES_MAX}]",
        settings={
            "spark.sql.shuffle.partitions": shuffles,
            "spark.speculation": "true",
            "spark.speculation.interval": "50ms",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.quantile": "0.3",
        },
    )
    spark.sparkContext.setLogLevel("OFF")
    stream = (
        spark.readStream.format("tidemill")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", OFFSETS_PER_TRIGGER)
        .load()
        .select("key", "value")
        .repartition(int(shuffles), "value")
    )
    query = (
        stream.writeStream.format("tidemill")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("delivery", "exactly-once")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
